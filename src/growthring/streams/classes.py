"""ProgressiveClasses: classes come in with the stages (the paper's "progressive class" setting)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from growthring.core.wording import counted
from growthring.errors import InputError
from growthring.streams.base import (
    Examples,
    IndexedData,
    check_growth,
    check_seed,
    count_of,
    permutation,
)
from growthring.streams.labels import given_labels, labels_of


class ProgressiveClasses(IndexedData):
    """The first `first` classes in stage 0, and `step` more in each stage; the last one brings what is left.

    Args:
        data: a map-style data set of (input, class), a DataLoader over one, or a stream of growthring.
        first: classes of stage 0.
        step: classes that each later stage brings.
        seed: of the order in which classes come.
        order: of all classes, instead.
        labels: the class of each example; by default they are found in the data set, or read one by one.
        num_classes: how many there are; by default as many as the highest label says.

    Raises:
        InputError: a class has no examples, or the numbers do not fit.

    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.randn(60, 2), torch.arange(60) % 6)
    >>> stream = ProgressiveClasses(data, first=2, step=2, order=[5, 0, 1, 4, 2, 3])
    >>> stream.sizes, stream.seen(1), [len(part) for part in stream]
    ((20, 40, 60), (5, 0, 1, 4), [20, 40, 60])
    """

    def __init__(
        self,
        data: Examples,
        first: int = 20,
        step: int = 10,
        *,
        seed: int = 0,
        order: Iterable[int] | None = None,
        labels: Any = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(data)
        count = count_of(data)
        self._labels = labels_of(data) if labels is None else given_labels(labels, count)
        found = int(self._labels.max()) + 1 if count else 0
        total = _checked("num_classes", num_classes, found) if num_classes is not None else found
        per_class = torch.bincount(self._labels, minlength=total)
        _check_examples(per_class, total)
        _check_steps(first, step, total)
        self._order = _order(order, total, check_seed(seed))
        ends = [min(first + step * t, total) for t in range(1 + math.ceil((total - first) / step))]
        parts = [self._order[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        self.classes = tuple(tuple(part.tolist()) for part in parts)
        self.sizes = tuple(accumulate(int(per_class[part].sum()) for part in parts))
        check_growth(self.sizes)

    def indices(self, stage: int) -> Tensor:
        """The examples of all classes that have come, in the order of the data."""
        seen = self.seen(stage)
        assert seen is not None
        return torch.isin(self._labels, torch.tensor(seen)).nonzero().flatten()

    def __repr__(self) -> str:
        assert self.classes is not None
        counts = ", ".join(str(n) for n in accumulate(map(len, self.classes)))
        return f"ProgressiveClasses({counts} classes)"


def _checked(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name}={value!r}: needed is a whole number, at least {least}.")
    return value


def _check_examples(per_class: Tensor, total: int) -> None:
    missing = (per_class[:total] == 0).nonzero().flatten().tolist()
    if missing:
        listed = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        what = "class has" if len(missing) == 1 else "classes have"
        raise InputError(
            f"{len(missing)} of {total} {what} no examples: {listed}. A stage that brings such a class would bring "
            "nothing. Leave it out and number the others from 0 on, or give it examples."
        )


def _check_steps(first: Any, step: Any, total: int) -> None:
    _checked("first", first, 1)
    _checked("step", step, 1)
    if first > total:
        raise InputError(f"first={first}: the data has {counted(total, 'class', 'classes')} only.")


def _order(given: Iterable[int] | None, total: int, seed: int) -> Tensor:
    if given is None:
        return permutation(total, seed)
    order = list(given)
    if sorted(map(str, order)) != sorted(map(str, range(total))):
        raise InputError(
            f"order={order!s:.60}: it has to name each of the {total} classes, 0 to {total - 1}, once."
        )
    return torch.tensor([int(c) for c in order])
