"""Language modelling: the bytes of a text, and the one that follows each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from growthring.data import BatchStream, TextBatches, TextData
from growthring.data.batch import Stream
from growthring.data.text import TEXTS, load_text
from growthring.errors import InputError
from growthring.runs.metrics import ACCURACY, LOSS, PERPLEXITY
from growthring.train.card import Card
from growthring.train.recipe import Recipe
from growthring.train.tasks.base import Place, Streams
from growthring.train.tasks.tokens import TokenTask
from growthring.train.trial import check_tokens

BYTES = 256
_TEST_WINDOWS = 1000  # of a text: enough for a loss of three digits


class Language(TokenTask):
    """The bytes of a text; `input_shape` is (context,), and an epoch has `num_train` windows of it."""

    name = "language"
    data = TEXTS
    metrics = (PERPLEXITY, LOSS, ACCURACY)

    def example(self, recipe: Recipe, count: int = 2) -> Tensor:
        """Windows of zeros."""
        return torch.zeros(count, *recipe.input_shape, dtype=torch.int64)

    def check(self, model: nn.Module, example: Any, streams: Iterable[Stream | None]) -> None:
        """A logit for each byte, at each place."""
        is_bytes = any(isinstance(stream, TextBatches) for stream in streams)
        check_tokens(model, example, BYTES if is_bytes else 2)  # other tokens: the user's own

    def streams(self, recipe: Recipe, generator: torch.Generator, place: Place) -> Streams:
        """Windows of the text; an epoch has `num_train` of them, and the next one others."""
        if len(recipe.input_shape) != 1:
            raise InputError(
                f"input_shape={recipe.input_shape}: of a text it is the length of a window, such as (64,)."
            )
        train, test = load_text(recipe.data, place.root)
        (context,) = recipe.input_shape
        size, per_epoch = recipe.batch_size, recipe.num_train
        batches = TextBatches(
            train, size, context, generator, per_epoch=per_epoch, device=place.device
        )
        return Streams(batches, _held_out(test, max(size, 50), context, place.device))

    def test_stream(
        self, card: Card, place: Place, batch_size: int, files: Mapping[str, str]
    ) -> BatchStream:
        """The windows of what was held out."""
        (context,) = card.input_shape
        text = load_text(card.data or "", place.root)[1]
        return _held_out(text, batch_size, context, place.device)


def _held_out(text: TextData, batch_size: int, context: int, device: torch.device) -> TextBatches:
    """What a model of a text is judged by: windows from all over what was held out, in order."""
    return TextBatches(text, batch_size, context, None, per_epoch=_TEST_WINDOWS, device=device)
