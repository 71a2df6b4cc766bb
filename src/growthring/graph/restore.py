"""Putting things back: dicts, attributes, cells, tensors; each does nothing where nothing differs."""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable
from operator import is_
from typing import Any

import torch

from growthring.distributed.shards import is_shard, set_shard

MISSING = object()
CONSTANT = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)


def set_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    """Gives a tensor other data, perhaps of another shape; the object stays the same.

    A graph that is still alive (a loss that was kept) keeps the parameter's gradient accumulator, and that
    remembers the old shape. torch drops the accumulator when the *type* of the data changes, so the
    way there leads through another type.
    """
    if is_shard(tensor):
        set_shard(tensor, data)  # no graph leads to it
        return
    if tensor.shape != data.shape and tensor.requires_grad:
        other = torch.float64 if data.dtype != torch.float64 else torch.float32
        tensor.data = torch.empty(0, dtype=other, device=data.device)
    tensor.data = data


def restoring_shard(tensor: Any) -> Callable[[], None]:
    """What gives a tensor that other processes hold parts of the part back that is here; nothing is sent."""
    local, spec, data = tensor._local_tensor, tensor._spec, tensor.data
    needs_gradient, gradient = tensor.requires_grad, tensor.grad if tensor.is_leaf else None

    def back() -> None:
        if tensor._local_tensor is not local or tensor._spec is not spec:
            tensor.grad = None
            set_shard(tensor, data)
            tensor._local_tensor, tensor._spec = local, spec
        if tensor.is_leaf:
            if tensor.grad is not gradient:
                tensor.grad = gradient
            if tensor.requires_grad != needs_gradient:
                tensor.requires_grad_(needs_gradient)

    return back


def same_memory(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    """Whether a tensor still lies where its data lay."""
    if tensor.dtype != data.dtype or tensor.device != data.device or tensor.shape != data.shape:
        return False
    if tensor.layout is not torch.strided:
        return True
    return (
        tensor.untyped_storage()._cdata == data.untyped_storage()._cdata
        and tensor.storage_offset() == data.storage_offset()
        and tensor.stride() == data.stride()
    )


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold equal values; False where nobody can tell."""
    try:
        return torch.equal(a, b)
    except (RuntimeError, NotImplementedError):  # sparse ones and other rare kinds
        return False


def contents(cell: Any) -> Any:
    """What a variable of a closure holds."""
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return MISSING


def restore_cell(cell: Any, value: Any) -> None:
    """A variable of a closure."""
    if contents(cell) is value:
        return
    if value is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def restore_entry(scope: dict[str, Any], name: str, value: Any) -> None:
    """One name of a scope."""
    if value is MISSING:
        # what was imported late stays: Python would not bind it again
        if not isinstance(scope.get(name), CONSTANT):
            scope.pop(name, None)
    elif scope.get(name, MISSING) is not value:
        scope[name] = value


def restore_attribute(item: Any, name: str, value: Any) -> None:
    """An attribute in a slot."""
    if getattr(item, name, MISSING) is value:
        return
    if value is MISSING:
        object.__delattr__(item, name)
    else:
        object.__setattr__(item, name, value)


def restore_dict(item: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
    """All entries of a dict, in their order."""
    if len(keys) == dict.__len__(item) and (
        not keys  # as most dicts of a module are
        or (all(map(is_, dict.values(item), values)) and all(map(is_, dict.keys(item), keys)))
    ):
        return
    base: Any = OrderedDict if isinstance(item, OrderedDict) else dict
    base.clear(item)
    for key, value in zip(keys, values, strict=True):
        base.__setitem__(item, key, value)
