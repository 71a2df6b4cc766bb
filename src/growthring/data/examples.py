"""DatasetBatches: batches of any map-style data set of torch, in an order that resumes anywhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from growthring.data.batch import Batch, checked_batch
from growthring.data.stream import BatchStream, Prepare
from growthring.errors import InputError


class DatasetBatches(BatchStream):
    """Epochs of (inputs, targets), put together of a data set's examples as a DataLoader does.

    Examples are read in this process, one batch at a time; where that is too slow, pass a DataLoader with workers.

    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.arange(10.0), torch.arange(10))
    >>> batches = DatasetBatches(data, 4, torch.Generator().manual_seed(0))
    >>> [len(targets) for inputs, targets in batches]
    [4, 4, 2]

    Args:
        data: has a length, and (input, target) for each index: tensors, arrays, numbers, and structures of these.
        batch_size: examples per batch; the last one may be smaller.
        generator: on the CPU; reshuffled every epoch. None: in the order of the data.
        drop_last: leave out a last batch that is smaller.
        name: for messages.
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        generator: torch.Generator | None,
        *,
        drop_last: bool = False,
        name: str = "train",
    ) -> None:
        try:
            length = len(data)
        except (TypeError, NotImplementedError) as error:
            raise InputError(
                f"{name}: the data set {type(data).__name__} has no length ({error}). Give it a __len__, or pass a "
                "DataLoader."
            ) from error
        if length < 1:
            raise InputError(f"{name}: the data set {type(data).__name__} has no examples.")
        super().__init__(length, batch_size, generator, drop_last)
        self.data, self._name = data, name

    def _preparing(self) -> AbstractContextManager[Prepare]:
        return nullcontext(self._prepare)

    def _prepare(self, indices: Tensor) -> Callable[[], Batch]:
        return lambda: self._read(indices.tolist())

    def _read(self, indices: list[int]) -> Batch:
        at_once = getattr(self.data, "__getitems__", None)  # as a DataLoader asks for them
        rows = at_once(indices) if callable(at_once) else [self.data[i] for i in indices]
        try:
            batch = default_collate(rows)
        except (TypeError, RuntimeError) as error:
            raise InputError(
                f"the examples of {self._name} cannot be put into one batch: {error}. Give the data set examples "
                "of one shape, or pass a DataLoader with a collate_fn that makes them so."
            ) from error
        return checked_batch(batch, self._name)
