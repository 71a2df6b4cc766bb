"""GrowingData: which examples each stage has; what the kinds of growing data share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from growthring.core.wording import counted
from growthring.data import BatchStream, LoaderBatches
from growthring.data.batch import Stream
from growthring.data.selecting import check_selectable, loader_over
from growthring.errors import InputError

Examples = Dataset[Any] | DataLoader[Any] | BatchStream


class GrowingData(ABC):
    """A data set for each stage: D_0 ⊂ D_1 ⊂ … ⊂ D_{N-1}.

    What each stage has follows from the arguments and the seed alone, so that it is the same in every process
    and in every run that is resumed. `data[t]` is what stage t has, of the kind that was given.

    Attributes:
        sizes: examples at each stage, repeated ones counted as often as they come.
        classes: that each stage brings, in order of arrival; None where the targets are no classes that are known.
    """

    sizes: tuple[int, ...]
    classes: tuple[tuple[int, ...], ...] | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[Any]:
        return (self[stage] for stage in range(len(self)))

    @abstractmethod
    def __getitem__(self, stage: int) -> Any:
        """What a stage has: a data set, or a DataLoader where loaders were given."""

    @property
    @abstractmethod
    def whole(self) -> Examples:
        """What a stream of batches is made of; `enter` then chooses a stage's part."""

    @abstractmethod
    def enter(self, stream: Stream, stage: int) -> None:
        """Lets a stream over `whole` go on with a stage's examples; after the last stage, with those of the last.

        A new epoch begins.
        """

    @property
    def shares(self) -> tuple[float, ...]:
        """Examples of each stage, over those of the last."""
        return tuple(size / self.sizes[-1] for size in self.sizes)

    def seen(self, stage: int) -> tuple[int, ...] | None:
        """The classes that have come by a stage, in order of arrival; None where they are not known."""
        if self.classes is None:
            return None
        return tuple(c for part in self.classes[: stage + 1] for c in part)

    def check_stages(self, num_stages: int) -> None:
        """Refuses a plan that has fewer stages than the data.

        Raises:
            InputError: it has.
        """
        if len(self) > num_stages:
            raise InputError(
                f"the data grows in {counted(len(self), 'stage')}, the plan has {num_stages}: the last "
                f"{len(self) - num_stages} would never be trained on. Plan as many stages (stages={len(self)}), or "
                "let the data grow in fewer."
            )

    def _at(self, stage: int) -> int:
        """A stage of this data; negative ones count from the end, as in a list."""
        if not -len(self) <= stage < len(self):
            raise IndexError(f"stage {stage} of {len(self)}")
        return stage % len(self)


class IndexedData(GrowingData):
    """Growing data of which each stage is a choice of examples of one data set.

    Args:
        data: a map-style data set, a DataLoader over one, or a stream of growthring.
    """

    def __init__(self, data: Examples) -> None:
        check_indexed(data)
        self._data = data

    @abstractmethod
    def indices(self, stage: int) -> Tensor:
        """The examples (n,) of a stage, by their number in the whole data set."""

    @property
    def whole(self) -> Examples:
        """The data set, loader or stream that was given."""
        return self._data

    def __getitem__(self, stage: int) -> Any:
        chosen = self.indices(self._at(stage))
        if isinstance(self._data, DataLoader):
            return loader_over(self._data, chosen)
        if isinstance(self._data, BatchStream):
            twin = self._data.fork(0)
            twin.select(chosen)
            return twin
        return Subset(self._data, chosen.tolist())

    def enter(self, stream: Stream, stage: int) -> None:
        """Chooses the stage's examples."""
        stream.select(self.indices(min(stage, len(self) - 1)))


def check_indexed(data: Any) -> None:
    """Refuses what has no examples by number.

    Raises:
        InputError: says what it is and what is needed.
    """
    if isinstance(data, LoaderBatches) or not isinstance(data, Dataset | DataLoader | BatchStream):
        raise InputError(
            f"the data is a {type(data).__name__}; needed is a data set of torch with examples by number, or a "
            "DataLoader over one."
        )
    if isinstance(data, DataLoader):
        check_selectable(data, "the DataLoader")
    elif isinstance(data, IterableDataset) or (
        isinstance(data, Dataset) and known_length(data) is None
    ):
        raise InputError(
            f"the data is a {type(data).__name__}, which has no examples by number (__len__ and __getitem__), so "
            "that none can be chosen. Give a list of data sets, one for each stage, to gr.streams.ProgressiveSets."
        )


def known_length(data: Any) -> int | None:
    """Examples of a data set that knows how many it has; None of one that does not.

    >>> known_length([1, 2]), known_length(iter([1, 2]))
    (2, None)
    """
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def count_of(data: Examples) -> int:
    """Examples in all.

    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.ones(5), torch.ones(5))
    >>> count_of(data), count_of(DataLoader(data, batch_size=2))
    (5, 5)
    """
    if isinstance(data, BatchStream):
        return data.num_whole
    inner: Any = data.dataset if isinstance(data, DataLoader) else data
    return len(inner)


def check_growth(sizes: Sequence[int]) -> None:
    """Refuses stages that shrink the data, or have none.

    Raises:
        InputError: names the stage.

    >>> check_growth([3, 2])
    Traceback (most recent call last):
    growthring.errors.InputError: the data shrinks from 3 examples to 2 at stage 1: ...
    """
    if not sizes:
        raise InputError("there are no stages: the data is empty.")
    for stage, size in enumerate(sizes):
        if size < 1:
            raise InputError(f"stage {stage} has no examples.")
        if stage and size < sizes[stage - 1]:
            raise InputError(
                f"the data shrinks from {counted(sizes[stage - 1], 'example')} to {size:,} at stage {stage}: data "
                "that grows keeps what it had. Put the stages in order, or let each have the examples of the one "
                "before."
            )


def check_seed(seed: Any) -> int:
    """A seed.

    Raises:
        InputError: it is none.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"seed={seed!r}: needed is a whole number from 0 on.")
    return seed


def permutation(count: int, seed: int) -> Tensor:
    """The numbers below `count` in an order that follows from the seed.

    >>> sorted(permutation(4, seed=0).tolist())
    [0, 1, 2, 3]
    """
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
