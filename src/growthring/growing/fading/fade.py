"""Fade: the weights of the entries of one axis in one reduction.

They are kept in tensors that last as long as the fade and are written to when it advances, so that code which is
compiled (or captured) reads the present ones, and nothing of it has to be made anew.
"""

from __future__ import annotations

import copy

import torch


class Fade:
    """The weights of the units of one axis.

    An axis may hold each unit several times: in a run (pixels, after a flatten) or over and over (time
    steps). How often may differ between inputs.

    Attributes:
        start: weight of each unit when the fade began (1 for old ones, 0 for new ones).
        progress: 0 … 1; the weights are start + (1 - start) · progress.
        outer: how often the traced axis repeats the whole.
        inner: how often in a row it repeats each unit.
        is_mean: of a sum that the code divides by the number of entries: weights are shared out over all of them.
        is_spread: of a mean that centres what it is taken of: each entry is shifted as much as it counts.
        share: mean of the present weights: which part of the entries counts.
    """

    def __init__(
        self,
        start: torch.Tensor,
        progress: float = 0.0,
        outer: int = 1,
        inner: int = 1,
        is_mean: bool = False,
        is_spread: bool = False,
    ) -> None:
        self.start, self.progress = start, progress
        self.outer, self.inner = outer, inner
        self.is_mean, self.is_spread = is_mean, is_spread
        with torch.inference_mode(False):  # an inference tensor could not be written to later
            self.share, self._factors = self._present()

    def __len__(self) -> int:
        return len(self.start) * self.outer * self.inner

    @property
    def weights(self) -> torch.Tensor:
        """Present weights, between 0 and 1."""
        return self.start + (1 - self.start) * self.progress

    def _present(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Share and factors of the present weights."""
        weights = self.weights
        share = weights.mean()
        return share, weights / share if self.is_mean else weights.clone()

    def fits(self, size: int) -> bool:
        """Whether an axis of that size can be the one that fades."""
        if self.outer > 1 and self.inner > 1:
            return size == len(self)
        repeats = self.outer > 1 or self.inner > 1
        return size % len(self.start) == 0 if repeats else size == len(self)

    def along(self, x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
        """Present weights for axis `dim`, of that size, of a tensor, in a type wide enough to sum it in."""
        dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
        factors = self._factors
        if size != len(factors):
            inner = self.inner if self.outer > 1 else size // len(factors)
            factors = factors.repeat_interleave(inner)
            factors = factors.repeat(size // len(factors))
        # a copy: what is kept for a backward pass must not change when the fade advances
        factors = factors.to(device=x.device, dtype=dtype, copy=True)
        return factors.reshape([-1] + [1] * (x.dim() - 1 - dim))

    def advance(self, progress: float) -> None:
        """Moves on to a share of the stage."""
        if progress != self.progress:
            self.progress = progress
            share, factors = self._present()
            with torch.no_grad():
                self.share.copy_(share)
                self._factors.copy_(factors)

    def place(self, device: torch.device) -> None:
        """Keeps what is computed with where that happens."""
        if device.type not in ("meta", "mps"):  # the latter has no 64 bits
            self.share, self._factors = self.share.to(device), self._factors.to(device)

    def renewed(self) -> Fade:
        """A fade that begins where this one is."""
        return Fade(self.weights, 0.0, self.outer, self.inner, self.is_mean, self.is_spread)

    def frozen(self) -> Fade:
        """A fade that stays where this one is."""
        kept = copy.copy(self)
        kept.share, kept._factors = self.share.clone(), self._factors.clone()
        return kept
