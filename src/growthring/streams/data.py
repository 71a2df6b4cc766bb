"""ProgressiveData: more examples with each stage (the paper's "progressive data" setting)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from growthring.errors import InputError
from growthring.streams.base import (
    Examples,
    IndexedData,
    check_growth,
    check_seed,
    count_of,
    permutation,
)
from growthring.streams.labels import known_labels

FRACTIONS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # the paper's


class ProgressiveData(IndexedData):
    """A fraction of the data in each stage.

    One sequence of examples is drawn, as many as there are, and each stage has its beginning, so that a stage
    keeps what the ones before it had. With replacement, as in the paper, an example may come in several times and
    others never: at fraction 1 about 63 % of the examples have come. Without, it is all of them.

    Args:
        data: a map-style data set, a DataLoader over one, or a stream of growthring.
        fractions: of the number of examples, for each stage, above 0 and at most 1.
        replacement: whether examples are drawn with replacement.
        seed: of the draw.

    Raises:
        InputError: the fractions shrink, or are none; or one leaves no example.

    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.randn(50, 2), torch.arange(50) % 5)
    >>> stream = ProgressiveData(data, (0.2, 0.6, 1.0), replacement=False)
    >>> stream.sizes, stream.indices(2).unique().numel()
    ((10, 30, 50), 50)
    """

    def __init__(
        self,
        data: Examples,
        fractions: Iterable[float] = FRACTIONS,
        *,
        replacement: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(data)
        self.fractions = checked_fractions(fractions)
        self.replacement = bool(replacement)
        count, generator = count_of(data), torch.Generator().manual_seed(check_seed(seed))
        if count < 1:
            raise InputError("the data set has no examples.")
        self._drawn = (
            torch.randint(count, (count,), generator=generator)
            if self.replacement
            else permutation(count, seed)
        )
        self.sizes = tuple(round(fraction * count) for fraction in self.fractions)
        check_growth(self.sizes)
        self.classes = self._arrivals(known_labels(data))

    def indices(self, stage: int) -> Tensor:
        """The examples of a stage, in the order in which they were drawn."""
        return self._drawn[: self.sizes[stage]]

    def _arrivals(self, labels: Tensor | None) -> tuple[tuple[int, ...], ...] | None:
        """The classes that each stage brings: of any usual data all come with stage 0."""
        if labels is None:
            return None
        return arrivals(labels[self.indices(stage)] for stage in range(len(self)))

    def __repr__(self) -> str:
        how = "with" if self.replacement else "without"
        return (
            f"ProgressiveData({', '.join(f'{f:.0%}' for f in self.fractions)}, {how} replacement)"
        )


def checked_fractions(fractions: Any) -> tuple[float, ...]:
    """Fractions over stages that do not shrink.

    Raises:
        InputError: they are none.

    >>> checked_fractions([0.5, 0.25])
    Traceback (most recent call last):
    growthring.errors.InputError: fractions=(0.5, 0.25): the data shrinks at stage 1; ...
    """
    if isinstance(fractions, str) or not isinstance(fractions, Iterable):
        raise InputError(
            f"fractions={fractions!r:.60}: needed is a list of them, one for each stage."
        )
    found = tuple(fractions)
    for fraction in found:
        is_number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
        if not is_number or not 0 < fraction <= 1:
            raise InputError(
                f"fractions={found!r:.80}: {fraction!r} is no share of the data, above 0 and at most 1."
            )
    if not found:
        raise InputError("fractions=(): there are no stages.")
    for stage in range(1, len(found)):
        if found[stage] < found[stage - 1]:
            raise InputError(
                f"fractions={found!r:.80}: the data shrinks at stage {stage}; data that grows keeps what it had."
            )
    return tuple(map(float, found))


def arrivals(parts: Iterable[Tensor]) -> tuple[tuple[int, ...], ...]:
    """The labels that each stage has and no stage before it had.

    >>> arrivals([torch.tensor([1, 0, 1]), torch.tensor([0, 2])])
    ((0, 1), (2,))
    """
    seen: set[int] = set()
    found = []
    for labels in parts:
        new = sorted(set(labels.unique().tolist()) - seen)
        seen.update(new)
        found.append(tuple(new))
    return tuple(found)
