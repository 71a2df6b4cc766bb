"""Fade: the weights of the entries of one axis in one reduction."""

from __future__ import annotations

import torch


class Fade:
    """The weights of the entries of one axis.

    Attributes:
        start: weight of each entry when the fade began (1 for old entries, 0 for new ones).
        progress: 0 … 1; the weights are start + (1 - start) · progress.
        is_mean: of a sum that the code divides by the number of entries: weights are shared out over all of them.
        is_spread: of a mean that centres what it is taken of: each entry is shifted as much as it counts.
    """

    def __init__(
        self,
        start: torch.Tensor,
        progress: float = 0.0,
        is_mean: bool = False,
        is_spread: bool = False,
    ) -> None:
        self.start, self.progress = start, progress
        self.is_mean, self.is_spread = is_mean, is_spread
        self._cast: torch.Tensor | None = None
        self._total: float | None = None

    def __len__(self) -> int:
        return len(self.start)

    @property
    def weights(self) -> torch.Tensor:
        """Present weights, between 0 and 1."""
        return self.start + (1 - self.start) * self.progress

    @property
    def total(self) -> float:
        """Sum of the present weights: the number of entries that count."""
        if self._total is None:
            self._total = float(self.weights.sum())
        return self._total

    def along(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Present weights for axis `dim` of a tensor, in a type wide enough to sum it in."""
        dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.real.dtype
        cast = self._cast
        if cast is None or cast.device != x.device or cast.dtype != dtype:
            # without gradient tracking: an inference tensor could not be saved for backward later
            with torch.inference_mode(False):
                weights = self.weights * (len(self) / self.total if self.is_mean else 1.0)
                cast = weights.to(device=x.device, dtype=dtype)
            if type(cast) is torch.Tensor:  # none of a tracer's
                self._cast = cast
        return cast.reshape([-1] + [1] * (x.dim() - 1 - dim))

    def advance(self, progress: float) -> None:
        """Moves on to a share of the stage."""
        if progress != self.progress:
            self.progress, self._cast, self._total = progress, None, None
