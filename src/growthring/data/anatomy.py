"""The anatomy of a user's loader: its length, samplers and generators, and whether its batches come again.

They come again when an epoch is gone over once more from the same random states, as far as that can be told by
looking.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from growthring.errors import InputError

_KNOWN = (
    SequentialSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    DistributedSampler,
    BatchSampler,
    list,
    tuple,
    range,
)


def doubt_about(loader: Any) -> str | None:
    """Why a loader's batches may be others when an epoch is gone over again; None if they are the same.

    >>> doubt_about(DataLoader([1, 2, 3], shuffle=True)) is None
    True
    >>> class Mine:
    ...     def __iter__(self): ...
    >>> doubt_about(Mine())
    'in which order Mine gives its batches cannot be seen. If it is always the same, all is well'
    """
    if isinstance(loader, list | tuple):
        return None
    if not isinstance(loader, DataLoader):
        return (
            f"in which order {type(loader).__name__} gives its batches cannot be seen. If it is always the same, "
            "all is well"
        )
    if isinstance(loader.dataset, IterableDataset):
        return (
            f"in which order the iterable data set {type(loader.dataset).__name__} gives its examples cannot be "
            "seen. If it is always the same, all is well"
        )
    samplers = (
        loader.sampler,
        loader.batch_sampler,
        getattr(loader.batch_sampler, "sampler", None),
    )
    strange = [s for s in samplers if s is not None and not _is_known(s)]
    if strange:
        return (
            f"in which order {type(strange[0]).__name__} gives its examples cannot be seen. If it is always the "
            "same, or drawn when an epoch begins from its `generator` or from the generators of torch, Python or "
            "numpy, all is well"
        )
    if loader.num_workers and not loader.in_order:
        return "with in_order=False the order of the batches is that in which the workers get ready"
    if loader.num_workers and loader.persistent_workers:
        return (
            "persistent workers go on with random numbers of their own. Examples come in the right order, but what "
            "is drawn in workers (augmentation) is drawn anew; with persistent_workers=False it is the same"
        )
    return None


def _is_known(sampler: Any) -> bool:
    """Whether it is one of torch's or torchdata's, which draw when an epoch begins, or from a `generator`."""
    return type(sampler) in _KNOWN or type(sampler).__module__.startswith("torchdata.")


def check_loader(loader: Any, name: str) -> None:
    """Refuses what is no loader, or can be gone over only once.

    Raises:
        InputError: says what it is, and what to pass.
    """
    if isinstance(loader, Iterator):
        raise InputError(
            f"{name} is a {type(loader).__name__}, which can be gone over only once, but every epoch goes over it "
            "again. Pass a DataLoader, a data set or a list of batches."
        )
    if not isinstance(loader, Iterable) or isinstance(loader, str | bytes | Mapping | torch.Tensor):
        raise InputError(
            f"{name} is a {type(loader).__name__}; needed is a DataLoader, a data set (torch.utils.data.Dataset), "
            "or anything else that gives (inputs, targets) each time it is iterated over."
        )


def length_of(loader: Any, name: str) -> int:
    """Batches in an epoch, as the loader says.

    Raises:
        InputError: it does not say so, or there are none.
    """
    try:
        length = len(loader)
    except (TypeError, NotImplementedError) as error:
        raise InputError(
            f"{name} has no length ({error}): the learning rate of each step follows from the number of batches. "
            "Give the loader, or its iterable data set, a __len__."
        ) from error
    if length < 1:
        raise InputError(
            f"{name} gives no batch: there are no examples, or fewer than one batch with drop_last."
        )
    return length


def holders_of(loader: Any) -> list[Any]:
    """A loader, and what a DataLoader asks for its order and its examples."""
    found: list[Any] = [loader]
    for path in ("sampler", "batch_sampler", "batch_sampler.sampler", "dataset"):
        holder = loader
        for part in path.split("."):
            holder = getattr(holder, part, None)
        if holder is not None and not any(holder is other for other in found):
            found.append(holder)
    return found


def generators_of(loader: Any) -> list[torch.Generator]:
    """The generators of its own that a loader and its samplers draw from."""
    found = [getattr(holder, "generator", None) for holder in holders_of(loader)]
    distinct = {id(each): each for each in found if isinstance(each, torch.Generator)}
    return list(distinct.values())
