"""ProgressiveSets: a user's own data sets or loaders, one for each stage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from growthring.core.wording import counted
from growthring.data import LoaderBatches
from growthring.data.batch import Stream
from growthring.errors import InputError
from growthring.streams.base import Examples, GrowingData, check_growth, check_indexed
from growthring.streams.data import arrivals
from growthring.streams.labels import known_labels


class ProgressiveSets(GrowingData):
    """Your own data sets, one for each stage; or DataLoaders, whose batches stay as they are.

    Args:
        sets: all of them map-style data sets, or all of them DataLoaders.

    Raises:
        InputError: one of them shrinks the data, or has no examples.

    >>> from torch.utils.data import TensorDataset
    >>> sets = [TensorDataset(torch.randn(n, 2), torch.arange(n) % 3) for n in (6, 9)]
    >>> stream = ProgressiveSets(sets)
    >>> stream.sizes, stream.classes
    ((6, 9), ((0, 1, 2), ()))
    """

    def __init__(self, sets: Iterable[Dataset[Any]] | Iterable[DataLoader[Any]]) -> None:
        if isinstance(sets, Dataset | DataLoader) or not isinstance(sets, Iterable):
            raise InputError(
                f"sets is a {type(sets).__name__}: needed is a list of data sets, one for each stage."
            )
        self._sets: list[Any] = list(sets)
        if not self._sets:
            raise InputError("sets=[]: there are no stages.")
        num_loaders = sum(isinstance(one, DataLoader) for one in self._sets)
        if num_loaders not in (0, len(self._sets)):
            raise InputError(
                f"sets has {counted(num_loaders, 'DataLoader')} among {len(self._sets)}: needed are data sets "
                "only, or loaders only."
            )
        self._has_loaders = bool(num_loaders)
        for one in self._sets:
            if not self._has_loaders:
                check_indexed(one)
        self.sizes = tuple(map(_size, self._sets))
        check_growth(self.sizes)
        labels = [known_labels(one) for one in self._sets]
        known = [each for each in labels if each is not None]
        if len(known) == len(labels):
            self.classes = arrivals(known)

    def __getitem__(self, stage: int) -> Any:
        return self._sets[self._at(stage)]

    @property
    def whole(self) -> Examples:
        """All data sets behind one another; of loaders, the first."""
        first: Examples = self._sets[0]
        return first if self._has_loaders else ConcatDataset(self._sets)

    def enter(self, stream: Stream, stage: int) -> None:
        """Chooses the stage's data set, or its loader."""
        stage = min(stage, len(self) - 1)
        if self._has_loaders:
            assert isinstance(stream, LoaderBatches)  # it is over `whole`
            stream.use(self._sets[stage])
        else:
            stream.select(self._indices(stage))

    def _indices(self, stage: int) -> Tensor:
        start = sum(self.sizes[:stage])
        return torch.arange(start, start + self.sizes[stage])

    def __repr__(self) -> str:
        return f"ProgressiveSets({', '.join(f'{size:,}' for size in self.sizes)} examples)"


def _size(one: Any) -> int:
    """Examples of a data set or loader; of a loader that does not know, as many as its batches hold."""
    if not isinstance(one, DataLoader):
        return len(one)
    try:
        return len(one.dataset)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        pass
    try:
        return len(one) * (one.batch_size or 1)
    except (TypeError, NotImplementedError) as error:
        raise InputError(
            f"a DataLoader over a {type(one.dataset).__name__} has no length ({error}): stages and learning rates "
            "follow from it. Give the data set a __len__."
        ) from error
