"""loader_over: a DataLoader over some examples of another one's data set, with all its settings."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from growthring.errors import InputError


def check_selectable(loader: Any, name: str) -> None:
    """Refuses a loader of whose data set no examples can be chosen.

    Raises:
        InputError: says why.
    """
    why = None
    if not isinstance(loader, DataLoader):
        why = f"it is a {type(loader).__name__}, whose examples cannot be chosen"
    elif isinstance(loader.dataset, IterableDataset):
        why = f"its {type(loader.dataset).__name__} is iterable: it has no examples by number"
    elif type(loader.batch_sampler) not in (BatchSampler, type(None)):
        why = f"its {type(loader.batch_sampler).__name__} makes batches of all examples"
    elif not _has_plain_order(loader.sampler):
        why = f"its {type(loader.sampler).__name__} draws from all examples"
    if why is not None:
        raise InputError(
            f"{name}: {why}. Give a data set (map-style), or a DataLoader over one with shuffle=True or False."
        )


def loader_over(loader: Any, indices: Tensor) -> DataLoader[Any]:
    """The loader over some examples only: same batch size, order (shuffled or not), workers, collation.

    >>> import torch
    >>> whole = DataLoader(list(range(10)), batch_size=2)
    >>> [batch.tolist() for batch in loader_over(whole, torch.tensor([1, 5, 5]))]
    [[1, 5], [5]]
    """
    check_selectable(loader, "the loader")
    has_workers = loader.num_workers > 0
    return DataLoader(
        Subset(loader.dataset, indices.tolist()),
        batch_size=loader.batch_size,
        shuffle=isinstance(loader.sampler, RandomSampler),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor if has_workers else None,
        persistent_workers=loader.persistent_workers,
        in_order=loader.in_order,
    )


def _has_plain_order(sampler: Any) -> bool:
    """Whether it goes over all examples once, shuffled or not."""
    if type(sampler) is SequentialSampler:
        return True
    is_random = type(sampler) is RandomSampler
    return is_random and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
