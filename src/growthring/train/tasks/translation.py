"""Translation: sentences of one language, and the same in another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from growthring.data import (
    PAIRS,
    BatchStream,
    LoaderBatches,
    PairSplits,
    SentenceBatches,
    Vocabulary,
    encode_pairs,
    load_pairs,
)
from growthring.data.batch import Stream
from growthring.data.vocabulary import EOS, cached_vocabulary
from growthring.errors import InputError
from growthring.methods.base import Loss
from growthring.runs.metrics import ACCURACY, BLEU, LOSS, PERPLEXITY
from growthring.train.tasks.base import Outcome, Place, Streams, Task
from growthring.train.tasks.language import TokenCrossEntropy, perplexity
from growthring.train.translating import bleu, translate_tokens
from growthring.train.trial import check_tokens

if TYPE_CHECKING:
    from growthring.train.card import Card
    from growthring.train.recipe import Recipe

VOCABULARY = "vocabulary.json"
_SAMPLES = 5


class Translation(Task):
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
        "test_on": "test",  # or "valid", to choose settings by
    }

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

    def loss(self, label_smoothing: float) -> Loss:
        """The cross entropy of each next token; padding does not count."""
        return TokenCrossEntropy(label_smoothing)

    def test_loss(self, label_smoothing: float) -> Loss:
        """Without smoothing, so that it is the perplexity's logarithm."""
        return TokenCrossEntropy()

    def scores(self, test_loss: float) -> Mapping[str, float]:
        """The perplexity of a token."""
        return {PERPLEXITY.key: perplexity(test_loss)}

    def check(self, model: nn.Module, example: Any, streams: Iterable[Stream | None]) -> None:
        """A logit for each token of the vocabulary at each place of the target."""
        sizes = [len(s.data.vocabulary) for s in streams if isinstance(s, SentenceBatches)]
        check_tokens(
            model, example, max(sizes, default=2), places=example[1].shape, noun="subwords"
        )

    def streams(self, recipe: Recipe, generator: torch.Generator, place: Place) -> Streams:
        """The recipe's sentences as batches, with a vocabulary of the training sentences."""
        options = self.options_of(recipe.task_options)
        splits = _splits(recipe.data, options, place)
        train = splits.train.first(recipe.num_train)
        vocabulary = cached_vocabulary([*train.sources, *train.targets], options["vocab_size"])
        longest = options["max_length"]
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


def _tested(splits: PairSplits, options: Mapping[str, Any]) -> Any:
    if options["test_on"] not in ("test", "valid"):
        raise InputError(f"task_options.test_on={options['test_on']!r} is not 'test' or 'valid'.")
    return splits.test if options["test_on"] == "test" else splits.valid


def _tokenize(data: str) -> str:
    """How BLEU cuts words: fairseq's IWSLT'14 has its punctuation separated already."""
    return "none" if data == "iwslt14" else "13a"
