"""Rates per ring around a step that knows none: what it moved in ring k is multiplied by the ring's factor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from growthring.distributed.shards import local_of
from growthring.optim.geometry import as_real
from growthring.optim.ringbatch import buckets
from growthring.optim.ringrates import RingRates
from growthring.optim.shards import locals_of


class Rescaling:
    """One step of an optimizer between `begin` and `end`: w ← w_before + f_k (w_after − w_before).

    That is the optimizer's formula with lr · f_k for every one whose step is proportional to `lr`. It costs a copy
    of the parameters that have factors and one more pass over them.
    """

    def __init__(self, ring_rates: RingRates) -> None:
        self._ring_rates = ring_rates
        self._before: list[tuple[list[Tensor], list[Tensor], Tensor]] = []

    def begin(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> None:
        """Keeps those of the parameters that have factors, and the factors that their values give."""
        ringed = [p for p in parameters if self._ring_rates.has_factors(group, p)]
        for params in buckets(ringed):
            factors = self._ring_rates.factors(group, params)
            self._before.append((params, [local_of(p).detach().clone() for p in params], factors))

    def end(self) -> None:
        """Scales what was moved since."""
        for params, before, factors in self._before:
            values, old = list(map(as_real, locals_of(params))), list(map(as_real, before))
            self._ring_rates.batch(params).lerp_(values, old, 1 - factors)
        self.forget()

    def forget(self) -> None:
        """Drops the copies of a step that did not end."""
        self._before = []


def in_layout(parameter: Tensor, value: Tensor) -> Tensor:
    """A tensor with the strides of its parameter: torch's fused kernels on a CPU look at memory only.

    >>> w = torch.ones(2, 3)
    >>> in_layout(w, torch.ones(3, 2).t()).stride()
    (3, 1)
    """
    if value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
