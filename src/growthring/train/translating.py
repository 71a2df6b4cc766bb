"""Translating with a trained model: from texts to texts, and how good they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from growthring.data.sentences import Ragged
from growthring.data.vocabulary import BOS, EOS, PAD, Vocabulary
from growthring.decoding import beam_search, default_limit
from growthring.errors import InputError

_TOKENS = 2000  # source tokens that are decoded at a time


@dataclass(frozen=True)
class Bleu:
    """A score by sacrebleu, and the signature that says how it was computed."""

    value: float
    signature: str


def translate_tokens(
    model: nn.Module,
    sources: Sequence[Sequence[int]],
    vocabulary: Vocabulary,
    *,
    beam: int,
    length_penalty: float,
    max_length: int,
    device: torch.device,
) -> list[str]:
    """Sentences as tokens (each with its EOS) in the other language, as texts in the same order.

    A translation has up to `max_length` tokens, and up to twice those of its sentence and 10: a model that has not
    learnt to end would go on for ever.
    """
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    ragged, result = Ragged.of(sources), [""] * len(sources)
    for part in _parts(order, [len(source) for source in sources]):
        tokens = ragged.padded(torch.tensor(part), PAD).to(device)
        found = beam_search(
            model,
            tokens,
            tokens == PAD,
            bos=BOS,
            eos=EOS,
            pad=PAD,
            beam=beam,
            length_penalty=length_penalty,
            max_length=[min(default_limit(len(sources[i])), max_length) for i in part],
        )
        for index, hypothesis in zip(part, found, strict=True):
            result[index] = vocabulary.decode(hypothesis.tokens)
    return result


def _parts(order: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """Sentences of like length, as many as make some tokens."""
    part: list[int] = []
    for index in order:
        if part and (len(part) + 1) * lengths[index] > _TOKENS:
            yield part
            part = []
        part.append(index)
    if part:
        yield part


def bleu(translations: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Bleu:
    """BLEU of translations, 0 to 100.

    Args:
        translations, references: as many of each.
        tokenize: of sacrebleu; "none" for texts whose punctuation is separated already.

    Raises:
        InputError: sacrebleu is not installed.

    >>> bleu(["a dog runs fast ."], ["a dog runs fast ."]).value
    100.0
    """
    metric = _library().BLEU(tokenize=tokenize, force=tokenize == "none")
    score = metric.corpus_score(list(translations), [list(references)])
    return Bleu(round(float(score.score), 10), str(metric.get_signature()))


def check_bleu() -> None:
    """Whether BLEU can be measured.

    Raises:
        InputError: sacrebleu is not installed.
    """
    _library()


def _library() -> Any:
    try:
        from sacrebleu import metrics
    except ImportError:
        raise InputError(
            "BLEU needs the sacrebleu library: pip install 'growthring[translation]'."
        ) from None
    return metrics
