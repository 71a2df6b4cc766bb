"""A batch: inputs and targets, each a tensor or a structure of tensors; and what training goes over.

Inputs are what the model is called with, as example inputs are: a tensor, a tuple or list of positional arguments,
or a dict of keyword arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from growthring.errors import InputError

Batch = tuple[Any, Any]  # inputs, targets


class Stream(Protocol):
    """Epochs of batches that can say where it is; `BatchStream` and `LoaderBatches` are such.

    Attributes:
        notes: what a user should know about it, in sentences; each is said once.
    """

    notes: tuple[str, ...]

    @property
    def batch_size(self) -> int:
        """Examples per batch."""

    @property
    def num_examples(self) -> int:
        """Examples per epoch, as far as is known."""

    @property
    def part(self) -> float:
        """How much of the present epoch was handed out, 0 to 1."""

    def __len__(self) -> int:
        """Batches in a whole epoch."""

    def count_examples(self, batches: Iterable[tuple[int, int]]) -> int:
        """Examples in so many batches of a size each, one after the other from the start of an epoch on."""

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the present epoch."""

    def set_batch_size(self, batch_size: int) -> None:
        """Changes the size of the batches that follow, where that can be changed."""

    def select(self, indices: Tensor | None) -> None:
        """Goes over some of the examples from the next batch on, in a new epoch; None for all."""

    def fork(self, seed: int) -> Iterable[Batch]:
        """The same data from its start, in an order of its own: the same each time; this one stays where it is."""

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes where `state` was saved."""


def checked_batch(batch: Any, name: str) -> Batch:
    """A batch with plain dicts in place of other mappings.

    Args:
        batch: what a loader gave.
        name: of the loader, for messages.

    Raises:
        InputError: it is no pair, or its inputs hold no tensor.

    >>> checked_batch([torch.ones(2), torch.zeros(2)], "train")
    (tensor([1., 1.]), tensor([0., 0.]))
    """
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        kind = type(batch).__name__
        what = f"a {kind} of {len(batch)}" if isinstance(batch, tuple | list) else f"a {kind}"
        has = f" with {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else ""
        raise InputError(
            f"{name} gives {what}{has} where (inputs, targets) is needed. Of tensors x and y make a "
            "TensorDataset(x, y); a DataLoader can rearrange what it gives in its collate_fn."
        )
    inputs, targets = (dict(part) if isinstance(part, Mapping) else part for part in batch)
    if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(inputs)):
        raise InputError(
            f"the inputs that {name} gives are {_described(inputs)}, without a tensor in it. Turn them into "
            "tensors (in the data set, or in the DataLoader's collate_fn)."
        )
    return inputs, targets


def examples_in(batch: Batch) -> int:
    """How many examples a batch has: entries of the targets, or where these are no tensor, of the first input.

    >>> examples_in(({"x": torch.ones(3, 5)}, [torch.ones(1)]))
    3
    """
    inputs, targets = batch
    for leaf in (targets, *pytree.tree_leaves(inputs)):
        if isinstance(leaf, Tensor) and leaf.dim():
            return len(leaf)
    return 1


def first_examples(batch: Batch, count: int) -> Batch:
    """The first examples of a batch, on the CPU; tensors without an entry for each example stay whole.

    >>> inputs, targets = first_examples(((torch.ones(4, 3), torch.ones(7, 7)), torch.arange(4)), 2)
    >>> [tuple(x.shape) for x in inputs], targets
    ([(2, 3), (7, 7)], tensor([0, 1]))
    """
    size = examples_in(batch)

    def cut(tensor: Tensor) -> Tensor:
        has_all = bool(tensor.dim()) and len(tensor) == size
        return (tensor[:count] if has_all else tensor).detach().cpu().clone()

    inputs, targets = batch
    return pytree.tree_map_only(Tensor, cut, inputs), pytree.tree_map_only(Tensor, cut, targets)


def moved(batch: Batch, device: torch.device) -> Batch:
    """The batch with all its tensors on a device."""
    inputs, targets = batch
    if isinstance(targets, Tensor):  # nearly always
        if isinstance(inputs, Tensor):
            return inputs.to(device), targets.to(device)
        if type(inputs) is tuple and all(isinstance(part, Tensor) for part in inputs):
            return tuple(part.to(device) for part in inputs), targets.to(device)
    result: Batch = pytree.tree_map_only(Tensor, lambda t: t.to(device), (inputs, targets))
    return result


def shapes_in(part: Any) -> str:
    """The shapes of inputs or targets, for messages.

    >>> shapes_in((torch.ones(2, 3), torch.ones(2)))
    '(2, 3), (2,)'
    """
    shapes = [tuple(leaf.shape) for leaf in pytree.tree_leaves(part) if isinstance(leaf, Tensor)]
    return ", ".join(map(str, shapes)) or _described(part)


def _described(part: Any) -> str:
    kind = type(part).__name__
    return f"a {kind}" if part is not None else "None"
