"""Fade: the weights of the entries of one axis in one reduction."""

from __future__ import annotations

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
        self._cast: torch.Tensor | None = None
        self._share: float | None = None

    def __len__(self) -> int:
        return len(self.start) * self.outer * self.inner

    @property
    def weights(self) -> torch.Tensor:
        """Present weights, between 0 and 1."""
        return self.start + (1 - self.start) * self.progress

    @property
    def share(self) -> float:
        """Mean of the present weights: which part of the entries counts."""
        if self._share is None:
            self._share = float(self.weights.mean())
        return self._share

    def fits(self, size: int) -> bool:
        """Whether an axis of that size can be the one that fades."""
        if self.outer > 1 and self.inner > 1:
            return size == len(self)
        repeats = self.outer > 1 or self.inner > 1
        return size % len(self.start) == 0 if repeats else size == len(self)

    def along(self, x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
        """Present weights for axis `dim`, of that size, of a tensor, in a type wide enough to sum it in."""
        dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
        cast = self._cast
        if cast is None or cast.device != x.device or cast.dtype != dtype or cast.shape[0] != size:
            # an inference tensor could not be saved for backward later
            with torch.inference_mode(False):
                weights = self.weights / (self.share if self.is_mean else 1.0)
                inner = self.inner if self.outer > 1 else size // len(weights)
                weights = weights.repeat_interleave(inner)
                weights = weights.repeat(size // len(weights))
                cast = weights.to(device=x.device, dtype=dtype)
            if type(cast) is torch.Tensor:  # none of a tracer's
                self._cast = cast
        return cast.reshape([-1] + [1] * (x.dim() - 1 - dim))

    def advance(self, progress: float) -> None:
        """Moves on to a share of the stage."""
        if progress != self.progress:
            self.progress, self._cast, self._share = progress, None, None

    def renewed(self) -> Fade:
        """A fade that begins where this one is."""
        return Fade(self.weights, 0.0, self.outer, self.inner, self.is_mean, self.is_spread)
