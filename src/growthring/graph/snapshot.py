"""Snapshot: the state that a model's code can change, and the way back to it.

A forward pass may write anywhere: attributes, buffers, parameters through `.data`, lists and dicts, arrays,
generators, class attributes, globals of the file that it lives in, variables of a closure, cached
functions. A snapshot walks all of that from the model, notes what every container holds (by identity)
and what every tensor is, and puts back what differs. Libraries (torch, numpy, Python's own) are left
out; so is running machinery (threads, files, queues), which is not state.
"""

from __future__ import annotations

import array
import contextvars
import enum
import functools
import random
import types
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from growthring.distributed.shards import is_shard, local_of
from growthring.errors import UnsupportedModelError
from growthring.graph.code import Code, is_library
from growthring.graph.interrupts import uninterrupted
from growthring.graph.restore import (
    MISSING,
    equal,
    restore_attribute,
    restore_dict,
    restoring_shard,
    same_memory,
    set_data,
)

Children = Iterable[Any]
# A tensor or array outside of parameters and buffers that is larger (a data set, say) is not copied.
_LARGE = 1 << 26
_ATOMS = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size)
_OPENED = (
    nn.Module, torch.optim.Optimizer, torch.distributions.Distribution, types.SimpleNamespace,
)  # fmt: skip
_OPENED_NAMES = {
    ("_thread", "_local"), ("weakref", "WeakValueDictionary"), ("weakref", "WeakKeyDictionary"),
    ("argparse", "Namespace"), ("collections", "UserDict"), ("collections", "UserList"),
}  # fmt: skip
_MACHINERY = {
    "threading", "socket", "_io", "io", "queue", "_queue", "multiprocessing", "concurrent", "subprocess",
}  # fmt: skip


class Snapshot:
    """What is reachable from some objects, as it is now.

    Args:
        roots: models, optimizers, plain objects.
        values: also keep the values of tensors and arrays. Without it a tensor gets its memory and its
            gradient back, which is enough where nothing is computed in place.
        code: also follow the code of classes and functions to the globals that it names.
    """

    def __init__(self, roots: Iterable[Any], *, values: bool = True, code: bool = True) -> None:
        self._values = values
        self._back: list[Callable[[], None]] = []
        self._code = Code(self._back) if code else None
        self._changed_data: list[str] = []
        self._seen: dict[int, Any] = {}  # holds the objects, so that no other one gets their id
        stack = list(roots)
        self._own = {
            id(t)
            for root in stack
            if isinstance(root, nn.Module)
            for tensor in (*root.parameters(), *root.buffers())
            for t in (tensor, local_of(tensor))
        }
        while stack:
            item = stack.pop()
            if isinstance(item, _ATOMS) or id(item) in self._seen:
                continue
            self._seen[id(item)] = item
            stack.extend(self._visit(item))

    def restore(self) -> None:
        """Puts everything back; Ctrl-C waits until that is done.

        Raises:
            UnsupportedModelError: something too large to be copied was changed; the rest is as it was.
        """
        uninterrupted(self._restore)
        if self._changed_data:
            raise UnsupportedModelError(
                f"the forward pass changes {self._changed_data[0]} in place, which is no parameter or "
                f"buffer and with more than {_LARGE >> 20} MB too large to be put back. Make it a buffer."
            )

    def forget(self) -> None:
        """Lets go of everything, for good: copies of weights had better not wait for Python's collector."""
        self._back.clear()
        self._seen.clear()

    def empty_caches(self) -> bool:
        """Lets cached functions compute anew until `restore`; whether there was anything to forget."""
        functions = [] if self._code is None else self._code.caches
        filled = [function for function in functions if function.cache_info().currsize]
        for function in filled:
            function.cache_clear()
        return bool(filled)

    def _restore(self) -> None:
        self._changed_data.clear()
        with torch.inference_mode(False), torch.no_grad():
            errors = []
            for back in self._back:
                try:
                    back()
                except Exception as error:  # the rest all the same
                    errors.append(error)
        if errors:
            raise errors[0]

    def _visit(self, item: Any) -> Children:
        """Notes how to restore one object; returns what it refers to."""
        if isinstance(item, torch.Tensor):
            return self._tensor(item)
        if isinstance(item, dict):
            keys, values = list(dict.keys(item)), list(dict.values(item))
            self._back.append(functools.partial(restore_dict, item, keys, values))
            return [*keys, *values, *self._attributes(item)]
        if isinstance(item, (list, deque, set, bytearray, array.array)):
            return self._sequence(item)
        if isinstance(item, (tuple, frozenset)):
            return [*item, *self._attributes(item)]
        if isinstance(item, (random.Random, torch.Generator)) or type(item).__module__.startswith(
            "numpy"
        ):
            return self._numeric(item)
        if self._code is not None and isinstance(item, Code.KINDS):
            return self._code.visit(item)
        if isinstance(item, (types.MethodType, functools.partial, property, staticmethod, classmethod,
                             functools.cached_property)):  # fmt: skip
            names = ("__self__", "__func__", "func", "args", "keywords", "fget", "fset")
            return [getattr(item, name, None) for name in names]
        if isinstance(item, contextvars.ContextVar):
            value = item.get(MISSING)
            self._back.append(functools.partial(_set_context, item, value))
            return [value]
        return self._object(item) if _is_opened(item) else ()

    def _tensor(self, tensor: torch.Tensor) -> Children:
        if type(tensor).__name__ == "FakeTensor" and self._values:
            return ()
        if is_shard(tensor):
            self._back.append(restoring_shard(tensor))
            gradient = tensor.grad if tensor.is_leaf else None
            return [local_of(tensor), gradient, getattr(tensor, "__dict__", None)]
        is_leaf, needs_gradient, data = tensor.is_leaf, tensor.requires_grad, tensor.data
        gradient = tensor.grad if is_leaf else None
        version = None if tensor.is_inference() else tensor._version
        copy = None
        # an expanded tensor shares its memory with one that can be written to
        is_expanded = tensor.layout is torch.strided and 0 in tensor.stride() and tensor.numel() > 1
        if self._values and tensor.device.type != "meta" and not is_expanded:
            is_small = tensor.numel() * tensor.element_size() <= _LARGE
            if id(tensor) in self._own or is_small or tensor.layout is not torch.strided:
                copy = data.clone()
            elif version is not None:
                self._back.append(functools.partial(self._check_version, tensor, version))

        def back() -> None:
            if not same_memory(tensor, data):
                tensor.grad = None
                set_data(tensor, data)
            if copy is not None and (
                (version is not None and tensor._version != version) or not equal(data, copy)
            ):
                with torch.inference_mode(tensor.is_inference()):
                    data.copy_(copy)
            if is_leaf and tensor.is_leaf:
                if tensor.grad is not gradient:
                    tensor.grad = gradient
                if tensor.requires_grad != needs_gradient:
                    tensor.requires_grad_(needs_gradient)

        self._back.append(back)
        return [gradient, getattr(tensor, "__dict__", None)]

    def _check_version(self, tensor: torch.Tensor, version: int) -> None:
        if tensor._version != version:
            self._changed_data.append(f"a tensor of shape {tuple(tensor.shape)}")

    def _check_sum(self, item: Any, before: int) -> None:
        if zlib.crc32(item) != before:
            self._changed_data.append(f"an array of shape {item.shape}")

    def _sequence(self, item: Any) -> Children:
        kept = list(item)

        def back() -> None:
            if len(item) == len(kept) and (
                set(map(id, item)) == set(map(id, kept))
                if isinstance(item, set)
                else all(a is b for a, b in zip(item, kept, strict=True))
            ):
                return
            if isinstance(item, (list, bytearray)):
                item[:] = kept
            elif isinstance(item, array.array):
                item[:] = array.array(item.typecode, kept)
            else:
                item.clear()
                (item.update if isinstance(item, set) else item.extend)(kept)

        self._back.append(back)
        return (
            () if isinstance(item, (bytearray, array.array)) else [*kept, *self._attributes(item)]
        )

    def _numeric(self, item: Any) -> Children:
        """Arrays and sources of random numbers."""
        if isinstance(item, torch.Generator):
            state = item.get_state()
            self._back.append(functools.partial(_set_state, item, state))
        elif isinstance(item, random.SystemRandom):
            return ()
        elif isinstance(item, random.Random):
            kept = item.getstate()
            self._back.append(lambda: item.setstate(kept))
        elif hasattr(item, "bit_generator"):  # numpy.random.Generator
            return [item.bit_generator]
        elif hasattr(item, "get_state") and hasattr(item, "set_state"):  # RandomState
            legacy = item.get_state()
            self._back.append(lambda: item.set_state(legacy))
        elif isinstance(getattr(item, "state", None), dict):  # BitGenerator
            bits = item.state
            self._back.append(lambda: setattr(item, "state", bits))
        elif hasattr(item, "flags") and self._values and item.flags.writeable and item.ndim:
            return self._array(item)
        return ()

    def _array(self, item: Any) -> Children:
        if item.nbytes <= _LARGE:
            kept = item.copy()
            self._back.append(lambda: item.__setitem__(..., kept))
        elif item.flags.c_contiguous and not item.dtype.hasobject:
            self._back.append(functools.partial(self._check_sum, item, zlib.crc32(item)))
        return list(item.flat) if item.dtype.hasobject else ()

    def _object(self, item: Any) -> Children:
        """A module or a plain object: its class and attributes."""
        kind = type(item)
        attributes = self._attributes(item)

        def back() -> None:
            if type(item) is not kind:
                item.__class__ = kind

        self._back.append(back)
        return [kind, *attributes]

    def _attributes(self, item: Any) -> list[Any]:
        """What an object holds in `__dict__` and slots."""
        reached: list[Any] = []
        own = getattr(item, "__dict__", None)
        if isinstance(own, dict):
            if id(own) not in self._seen:
                self._seen[id(own)] = own
                kept = functools.partial(restore_dict, own, list(own), list(own.values()))
                self._back.append(kept)
            reached += _entered(item, own)
        for name in _slots(type(item)):
            value = getattr(item, name, MISSING)
            self._back.append(functools.partial(restore_attribute, item, name, value))
            reached.append(value)
        return reached


def _is_opened(item: Any) -> bool:
    """Whether an object is looked into."""
    kind = type(item)
    if isinstance(item, _OPENED) or any(
        (c.__module__, c.__name__) in _OPENED_NAMES for c in kind.__mro__
    ):
        return True
    if is_library(kind.__module__) or isinstance(item, (enum.Enum, type, types.ModuleType)):
        return False
    values = getattr(item, "__dict__", {}).values()
    return not any(type(v).__module__.partition(".")[0] in _MACHINERY for v in values)


def _entered(item: Any, own: Mapping[str, Any]) -> Iterator[Any]:
    """The values of an object's attributes, but not those that it keeps out of copies (a trainer, say)."""
    copied: Any = own
    own_way: Any = type(item).__getstate__
    if own_way is not object.__getstate__ and not is_library(type(item).__module__):
        try:
            copied = item.__getstate__()
        except Exception:  # the user's own code
            copied = own
        if not isinstance(copied, Mapping):
            copied = own
    for name, value in own.items():
        if copied is own or copied.get(name, MISSING) is value:
            yield value


# By class: of objects of few classes there are many.
_SLOTS: WeakKeyDictionary[type, tuple[str, ...]] = WeakKeyDictionary()


def _slots(kind: type) -> tuple[str, ...]:
    """The attributes that objects of a class keep in slots."""
    if kind not in _SLOTS:
        _SLOTS[kind] = () if is_library(kind.__module__) else tuple(_find_slots(kind))
    return _SLOTS[kind]


def _find_slots(kind: type) -> Iterator[str]:
    for cls in kind.__mro__:
        names = vars(cls).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else tuple(names):
            if name not in ("__dict__", "__weakref__"):
                hidden = name.startswith("__") and not name.endswith("__")
                yield f"_{cls.__name__.lstrip('_')}{name}" if hidden else name


def _set_state(generator: torch.Generator, state: torch.Tensor) -> None:
    generator.set_state(state)


def _set_context(variable: contextvars.ContextVar[Any], value: Any) -> None:
    # a variable that had no value cannot lose it again
    if value is not MISSING and variable.get(MISSING) is not value:
        variable.set(value)
