"""Labels of a data set: found where it keeps them, or read example by example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from growthring.data import Batches, DatasetBatches, FolderBatches, ImageData
from growthring.errors import InputError
from growthring.streams.base import known_length

_NAMES = ("targets", "labels", "_labels", "y")  # where data sets are used to keep them


def labels_of(data: Any, name: str = "the data set") -> Tensor:
    """The label (n,) of every example, as int64.

    Data sets of torchvision's kind keep them in `targets`; of others every example is read once.

    Args:
        data: a data set, a DataLoader over one, or a stream of batches of growthring.
        name: for messages.

    Raises:
        InputError: the targets are no whole numbers.

    >>> labels_of(Subset(TensorDataset(torch.ones(3, 2), torch.tensor([5, 6, 7])), [2, 0])).tolist()
    [7, 5]
    """
    found = known_labels(data)
    if found is None:
        found = _whole([_target_of(example, name) for example in _examples(data, name)], name)
    if not len(found):
        raise InputError(f"{name} has no examples.")
    if int(found.min()) < 0:
        raise InputError(
            f"{name} has the label {int(found.min())}: classes are numbered from 0. Pass labels= with a class for "
            "each example."
        )
    return found


def known_labels(data: Any) -> Tensor | None:
    """The labels, if they can be had without reading the examples.

    >>> known_labels([(torch.ones(2), 1)]) is None
    True
    """
    if isinstance(data, Batches | DatasetBatches):
        return known_labels(data.data)
    if isinstance(data, FolderBatches):
        return data.folder.labels
    if isinstance(data, ImageData):
        return data.labels
    if isinstance(data, DataLoader):
        return known_labels(data.dataset)
    if isinstance(data, Subset):
        inner = known_labels(data.dataset)
        return None if inner is None else inner[torch.as_tensor(list(data.indices))]
    if isinstance(data, ConcatDataset):
        parts = [known_labels(one) for one in data.datasets]
        known = [part for part in parts if part is not None]
        return torch.cat(known) if len(known) == len(parts) else None
    if isinstance(data, TensorDataset):
        return _as_labels(data.tensors[1], len(data)) if len(data.tensors) == 2 else None
    # a transform of targets makes other labels of those that are kept
    if getattr(data, "target_transform", None) is not None:
        return None
    for name in _NAMES:
        found = _as_labels(getattr(data, name, None), known_length(data))
        if found is not None:
            return found
    return None


def given_labels(labels: Any, count: int) -> Tensor:
    """A user's own labels, checked.

    Raises:
        InputError: they are no whole numbers, one for each example.

    >>> given_labels([1, 0], 2)
    tensor([1, 0])
    """
    found = _as_labels(labels, count)
    if found is None or (len(found) and int(found.min()) < 0):
        raise InputError(
            f"labels={labels!r:.60}: needed is a class from 0 on for each of the {count:,} examples, as whole "
            "numbers."
        )
    return found


def _examples(data: Any, name: str) -> Sequence[Any]:
    inner = data.dataset if isinstance(data, DataLoader) else data
    inner = inner.data if isinstance(inner, DatasetBatches) else inner
    if not hasattr(inner, "__getitem__") or known_length(inner) is None:
        raise InputError(
            f"{name}: the classes of a {type(inner).__name__} cannot be told, as it has no examples by number. "
            "Pass a map-style data set (__len__ and __getitem__)."
        )
    return _Rows(inner)


class _Rows(Sequence[Any]):
    def __init__(self, data: Dataset[Any]) -> None:
        self._data: Any = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> Any:
        if index >= len(self):  # a data set need not know where it ends
            raise IndexError(index)
        return self._data[index]


def _target_of(example: Any, name: str) -> Any:
    if not isinstance(example, tuple | list) or len(example) != 2:
        raise InputError(
            f"{name} gives a {type(example).__name__} where (input, target) is needed. Pass labels= with the "
            "class of each example."
        )
    return example[1]


def _whole(targets: Sequence[Any], name: str) -> Tensor:
    found = _as_labels(targets, len(targets))
    if found is None:
        raise InputError(
            f"{name} has targets that are no classes (such as {targets[0]!r:.40}). Pass labels= with the class "
            "of each example."
        )
    return found


def _as_labels(values: Any, count: int | None) -> Tensor | None:
    """Whole numbers (n,), if these are such."""
    if values is None or isinstance(values, str):
        return None
    try:
        found = torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        return None
    is_float = found.is_floating_point() or found.is_complex() or found.dtype is torch.bool
    if is_float or found.ndim != 1 or (count is not None and len(found) != count):
        return None
    return found.long()
