"""as_stream: whatever a user gives as data, as batches that can be trained on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from growthring.data.batch import Batch, Stream, first_examples
from growthring.data.examples import DatasetBatches
from growthring.data.loader import LoaderBatches
from growthring.data.randomness import seed_shared_random, set_shared_random, shared_random
from growthring.data.stream import BatchStream

# A stream of growthring, a map-style data set, a DataLoader, or any other iterable of (inputs, targets).
Data = Stream | Dataset[Any] | Iterable[Any]


def as_stream(
    given: Data, name: str, batch_size: int, generator: torch.Generator | None
) -> BatchStream | LoaderBatches:
    """Batches of (inputs, targets) out of what a user gave.

    Args:
        given: a `BatchStream` stays what it is; of a data set batches are made; anything else gives its own.
        name: for messages.
        batch_size: of batches that are made.
        generator: decides the order of batches that are made; None for testing, in the order of the data.

    Raises:
        InputError: it cannot be trained on; the message says what it is.

    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.ones(6, 2), torch.ones(6))
    >>> [type(as_stream(d, "test", 2, None)).__name__ for d in (data, DataLoader(data, 3))]
    ['DatasetBatches', 'LoaderBatches']
    """
    if isinstance(given, BatchStream | LoaderBatches):
        return given
    if isinstance(given, IterableDataset):
        given = DataLoader(given, batch_size)
    if isinstance(given, Dataset):
        return DatasetBatches(given, batch_size, generator, name=name)
    return LoaderBatches(given, name, is_training=generator is not None)


def examples_of(stream: BatchStream | LoaderBatches) -> Batch:
    """The first two examples of a stream, which stays where it is, as do all random numbers."""
    if isinstance(stream, LoaderBatches):
        return stream.first
    before = shared_random()
    try:
        seed_shared_random(0)
        return first_examples(next(iter(stream)), 2)
    finally:
        stream.rewind()
        set_shared_random(before)
