"""One step of decoding: a model that remembers its past, and one that is run over all of it again.

Axes: B sentences, N rows (sentences × beams), S source tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from growthring.decoding.ranking import logits_of


class Decoder(Protocol):
    """A model in the middle of decoding a batch of sentences."""

    def next(self, tokens: Tensor) -> Tensor:
        """Takes the next token of each row (N,) and returns the logits (N, V) of the one after it."""
        ...

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Goes on with other rows; see `growthring.zoo.cache.DecodingCache.select`."""
        ...


class CachedDecoder:
    """A model with `start_decoding` and `continue_decoding`, as `zoo.Transformer`."""

    def __init__(self, model: Any, src: Tensor, src_padding_mask: Tensor | None) -> None:
        self._model = model
        self._cache = model.start_decoding(src, src_padding_mask)

    def next(self, tokens: Tensor) -> Tensor:
        """Takes tokens (N,) and returns logits (N, V)."""
        logits: Tensor = self._model.continue_decoding(tokens[:, None], self._cache)
        return logits

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Goes on with other rows."""
        self._cache.select(rows, sentences)


class PlainDecoder:
    """Any model of the signature `model(src, tgt, src_padding_mask)`, or `model(src, tgt)` without a mask."""

    def __init__(self, model: nn.Module, src: Tensor, src_padding_mask: Tensor | None) -> None:
        self._model, self._src, self._mask = model, src, src_padding_mask
        self._tgt = src.new_empty(len(src), 0)

    def next(self, tokens: Tensor) -> Tensor:
        """Takes tokens (N,) and returns logits (N, V)."""
        self._tgt = torch.cat([self._tgt, tokens[:, None]], dim=1)
        masks = () if self._mask is None else (self._repeated(self._mask),)
        return logits_of(self._model(self._repeated(self._src), self._tgt, *masks))[:, -1]

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Goes on with other rows."""
        self._tgt = self._tgt.index_select(0, rows)
        if sentences is not None:
            self._src = self._src.index_select(0, sentences)
            self._mask = None if self._mask is None else self._mask.index_select(0, sentences)

    def _repeated(self, x: Tensor) -> Tensor:
        # (B, S) to (N, S)
        return x.repeat_interleave(len(self._tgt) // len(x), dim=0)


def remembers(model: nn.Module) -> bool:
    """Whether a model has steps of its own for decoding that do what its `forward` does.

    A subclass with a `forward` of its own inherits steps that know nothing of it.

    Example:
        >>> from growthring import zoo
        >>> class Louder(zoo.GPT):
        ...     def forward(self, tokens):
        ...         return 2 * super().forward(tokens)
        >>> sizes = dict(vocab_size=9, block_size=8, num_layers=1, num_heads=1, width=4)
        >>> remembers(zoo.GPT(**sizes)), remembers(Louder(**sizes)), remembers(nn.ReLU())
        (True, False, False)
    """
    if "forward" in vars(model):
        return False
    for kind in type(model).__mro__:
        if "continue_decoding" in vars(kind):
            return hasattr(model, "start_decoding")
        if "forward" in vars(kind):
            return False
    return False


def make_decoder(
    model: nn.Module, src: Tensor, src_padding_mask: Tensor | None, use_cache: bool
) -> Decoder:
    """A decoder with a cache where there may be and can be one, else without."""
    kind = CachedDecoder if use_cache and remembers(model) else PlainDecoder
    return kind(model, src, src_padding_mask)
