"""Translation: sentences of one language, and the same in another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from growthring.data import (
    PAIRS,
    BatchStream,
    LoaderBatches,
    Pairs,
    PairSplits,
    SentenceBatches,
    Vocabulary,
    encode_pairs,
    load_pairs,
)
from growthring.data.batch import Stream
from growthring.data.vocabulary import EOS, LEAST, PAD, cached_vocabulary
from growthring.errors import InputError
from growthring.runs.metrics import ACCURACY, BLEU, LOSS, PERPLEXITY
from growthring.train.card import Card
from growthring.train.recipe import Recipe
from growthring.train.tasks.base import Outcome, Place, Streams
from growthring.train.tasks.tokens import TokenTask
from growthring.train.translating import bleu, check_bleu, translate_tokens
from growthring.train.trial import check_tokens

VOCABULARY = "vocabulary.json"
_SAMPLES = 5
_MANY = 20_000  # sentence pairs whose encoding takes more than a moment


class Translation(TokenTask):
    """Sentence pairs; `input_shape` is (source, target), the mean numbers of tokens, for plans.

    The model is called with source tokens (b, s), target tokens (b, t) and where the source is padding (b, s), and
    gives logits (b, t, tokens). Batches have about as many tokens as `batch_size` sentences of mean length.
    """

    name = "translation"
    data = PAIRS
    metrics = (BLEU, PERPLEXITY, LOSS, ACCURACY)
    options: ClassVar[Mapping[str, Any]] = {
        "source": "de",
        "target": "en",
        "vocab_size": 8000,  # subwords of both languages together
        "max_length": 128,  # tokens of a sentence
        "beam": 4,
        "length_penalty": 1.0,
        "num_test": None,  # only the first so many pairs of the test data
        "test_on": "test",  # or "valid", to choose settings by
    }

    def options_of(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings, each within its bounds."""
        options = super().options_of(given)
        allowed = {
            "vocab_size": (
                options["vocab_size"] >= LEAST,
                f"at least {LEAST}: single bytes and marks",
            ),
            "max_length": (options["max_length"] >= 2, "at least 2, a token and the end"),
            "beam": (options["beam"] >= 1, "at least 1, which is greedy"),
            "length_penalty": (abs(options["length_penalty"]) <= 10, "from -10 to 10"),
            "num_test": (_is_count(options["num_test"]), "a number from 1 on, or None for all"),
            "test_on": (options["test_on"] in ("test", "valid"), "'test' or 'valid'"),
        }
        for key, (is_fit, words) in allowed.items():
            if not is_fit:
                raise InputError(f"task_options.{key}={options[key]!r}: it is {words}.")
        return options

    def example(self, recipe: Recipe, count: int = 2) -> tuple[Tensor, Tensor, Tensor]:
        """Sentences of mean length, without padding."""
        if len(recipe.input_shape) != 2:
            raise InputError(
                f"input_shape={recipe.input_shape}: of translations it is the mean number of source and of target "
                "tokens, such as (20, 20)."
            )
        source, target = recipe.input_shape
        tokens = [torch.full((count, n), EOS, dtype=torch.int64) for n in (source, target)]
        return tokens[0], tokens[1], torch.zeros(count, source, dtype=torch.bool)

    def check(self, model: nn.Module, example: Any, streams: Iterable[Stream | None]) -> None:
        """A logit for each token of the vocabulary at each place of the target, also of the longest sentence."""
        ours = [s.data for s in streams if isinstance(s, SentenceBatches)]
        size = max((len(data.vocabulary) for data in ours), default=2)
        longest = max((data.max_length for data in ours), default=0)
        embedding = getattr(model, "src_embedding", None)
        if isinstance(embedding, nn.Embedding) and embedding.num_embeddings < size:
            raise InputError(
                f"the model takes {embedding.num_embeddings} source tokens, the vocabulary has {size}: give both "
                "one size (model_options.src_vocab_size and tgt_vocab_size, task_options.vocab_size)."
            )
        check_tokens(model, example, size, places=example[1].shape, noun="subwords")
        positions = getattr(model, "max_length", None)
        if not isinstance(positions, int) and longest:  # only trying tells
            tokens = torch.full((2, longest), EOS)
            given = (tokens, tokens[:, 1:], tokens == PAD)
            check_tokens(model, given, size, places=given[1].shape, noun="subwords")
        if isinstance(positions, int) and positions < longest:
            raise InputError(
                f"sentences may have task_options.max_length={longest} tokens, but the model has {positions} "
                f"positions: lower it to {positions}, or give the model more (model_options.max_length)."
            )

    def streams(self, recipe: Recipe, generator: torch.Generator, place: Place) -> Streams:
        """The recipe's sentences as batches, with a vocabulary of the training sentences."""
        options = self.options_of(recipe.task_options)
        check_bleu()  # which is measured at the end, when it is late to find out
        splits = _splits(recipe.data, options, place)
        train = splits.train.first(recipe.num_train)
        longest, size = options["max_length"], options["vocab_size"]
        vocabulary = cached_vocabulary([*train.sources, *train.targets], size, place.say)
        if len(train) > _MANY:
            place.say(f"encoding {len(train):,} sentence pairs ...")
        test = encode_pairs(_tested(splits, options), vocabulary, longest, is_training=False)
        return Streams(
            SentenceBatches(
                encode_pairs(train, vocabulary, longest, is_training=True),
                recipe.batch_size,
                generator,
                device=place.device,
            ),
            SentenceBatches(test, recipe.batch_size, None, device=place.device),
        )

    def files(self, test: Stream | LoaderBatches | None) -> Mapping[str, str]:
        """The vocabulary."""
        return {VOCABULARY: test.data.vocabulary.text} if isinstance(test, SentenceBatches) else {}

    def finish(self, model: nn.Module, test: Stream, recipe: Recipe) -> Outcome:
        """BLEU of the test sentences, and some of them to read."""
        if not isinstance(test, SentenceBatches):  # batches of the user's own
            return Outcome()
        options, data = self.options_of(recipe.task_options), test.data
        found = translate_tokens(
            model,
            [row.tolist() for row in data.sources.values.split(data.sources.lengths.tolist())],
            data.vocabulary,
            beam=options["beam"],
            length_penalty=options["length_penalty"],
            max_length=options["max_length"],
            device=test.device,
        )
        tokenize = _tokenize(recipe.data)
        score = bleu(found, data.pairs.targets, tokenize)
        rows = zip(data.pairs.sources, found, data.pairs.targets, strict=True)
        samples = tuple(
            (("source", a), ("translation", b), ("reference", c))
            for a, b, c in list(rows)[:_SAMPLES]
        )
        notes = (
            f"BLEU by sacrebleu: {score.signature}; beam {options['beam']}, length penalty "
            f"{options['length_penalty']:g}, {len(data):,} sentences of '{data.name}'.",
        )
        return Outcome({BLEU.key: score.value}, samples, notes)

    def test_stream(
        self, card: Card, place: Place, batch_size: int, files: Mapping[str, str]
    ) -> BatchStream:
        """The test sentences of a card, in the vocabulary of its run."""
        if VOCABULARY not in files:
            raise InputError(
                f"the vocabulary of the model is not there: {VOCABULARY} of the run, which an export has beside it."
            )
        options = self.options_of(card.task_options)
        vocabulary = Vocabulary(files[VOCABULARY])
        splits = _splits(card.data or "", options, place)
        data = encode_pairs(_tested(splits, options), vocabulary, options["max_length"], False)
        return SentenceBatches(data, batch_size, None, device=place.device)


def _splits(name: str, options: Mapping[str, Any], place: Place) -> PairSplits:
    return load_pairs(name, place.root, options["source"], options["target"])


def _tested(splits: PairSplits, options: Mapping[str, Any]) -> Pairs:
    pairs = splits.test if options["test_on"] == "test" else splits.valid
    return pairs.first(options["num_test"])


def _is_count(value: Any) -> bool:
    return value is None or (type(value) is int and value >= 1)


def _tokenize(data: str) -> str:
    """How BLEU cuts words: fairseq's IWSLT'14 has its punctuation separated already."""
    return "none" if data == "iwslt14" else "13a"
