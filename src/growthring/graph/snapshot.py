"""Snapshot: the state that a model's code can change, and the way back to it.

A forward pass may write anywhere: attributes, buffers, parameters through `.data`, lists and dicts, arrays,
generators, class attributes, globals of the file that it lives in, variables of a closure, cached
functions. A snapshot walks all of that from the model, notes what every container holds (by identity)
and what every tensor is, and puts back what differs. Libraries (torch, numpy, Python's own) are left
out; so is running machinery (threads, files, queues), which is not state.
"""

from __future__ import annotations

import array
import dis
import enum
import functools
import gc
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from growthring.errors import UnsupportedModelError
from growthring.graph.interrupts import uninterrupted

Children = Iterable[Any]
# A tensor or array outside of parameters and buffers that is larger (a data set, say) is not copied.
_LARGE = 1 << 26
_ATOMS = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size)
_LIBRARIES = {*sys.stdlib_module_names, "builtins", "torch", "numpy", "sympy", "pytest", "_pytest"} - {
    "__main__"
}
_OPENED = (
    nn.Module, torch.optim.Optimizer, torch.distributions.Distribution, types.SimpleNamespace,
)  # fmt: skip
_OPENED_NAMES = {
    ("_thread", "_local"), ("weakref", "WeakValueDictionary"), ("weakref", "WeakKeyDictionary"),
    ("argparse", "Namespace"), ("collections", "UserDict"), ("collections", "UserList"),
}  # fmt: skip
_MACHINERY = {"threading", "socket", "_io", "io", "queue", "_queue", "multiprocessing", "concurrent", "subprocess"}
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
_METHODS = (
    types.FunctionType, property, staticmethod, classmethod, functools.cached_property,
    functools._lru_cache_wrapper,
)  # fmt: skip
_CONSTANT = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
_MISSING = object()


class Snapshot:
    """What is reachable from some objects, as it is now.

    Args:
        roots: models, optimizers, plain objects.
        values: also keep the values of tensors and arrays. Without it a tensor gets its memory and its
            gradient back, which is enough where nothing is computed in place.
        code: also follow the code of classes and functions to the globals that it names.
    """

    def __init__(self, roots: Iterable[Any], *, values: bool = True, code: bool = True) -> None:
        self._values, self._code = values, code
        self._back: list[Callable[[], None]] = []
        self._changed_data: list[str] = []
        self._names: set[str] = set()  # that the code refers to
        self._waiting: dict[str, list[Any]] = {}  # methods that nothing has referred to yet
        self._seen: dict[int, Any] = {}  # holds the objects, so that no other one gets their id
        stack = list(roots)
        self._own = {
            id(t)
            for root in stack
            if isinstance(root, nn.Module)
            for t in (*root.parameters(), *root.buffers())
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

    def _restore(self) -> None:
        self._changed_data.clear()
        with torch.inference_mode(False), torch.no_grad():
            for back in self._back:
                back()

    def _visit(self, item: Any) -> Children:
        """Notes how to restore one object; returns what it refers to."""
        if isinstance(item, torch.Tensor):
            return self._tensor(item)
        if isinstance(item, dict):
            self._back.append(functools.partial(_restore_dict, item, list(dict.items(item))))
            return [*dict.keys(item), *dict.values(item), *self._attributes(item)]
        if isinstance(item, (list, deque, set, bytearray, array.array)):
            return self._sequence(item)
        if isinstance(item, (tuple, frozenset)):
            return [*item, *self._attributes(item)]
        if isinstance(item, (random.Random, torch.Generator)) or type(item).__module__.startswith("numpy"):
            return self._numeric(item)
        if self._code and isinstance(item, (types.FunctionType, type, functools._lru_cache_wrapper)):
            return self._program(item)
        if isinstance(item, (types.MethodType, functools.partial, property, staticmethod, classmethod,
                             functools.cached_property)):  # fmt: skip
            names = ("__self__", "__func__", "func", "args", "keywords", "fget", "fset")
            return [getattr(item, name, None) for name in names]
        return self._object(item) if _is_opened(item) else ()

    def _tensor(self, tensor: torch.Tensor) -> Children:
        if type(tensor).__name__ == "FakeTensor" and self._values:
            return ()
        is_leaf, data = tensor.is_leaf, tensor.data
        gradient = tensor.grad if is_leaf else None
        version = None if tensor.is_inference() else tensor._version
        copy = None
        if self._values and tensor.device.type != "meta":
            if id(tensor) in self._own or tensor.layout is not torch.strided:
                copy = data.clone()
            elif tensor.numel() * tensor.element_size() <= _LARGE:
                copy = data.clone()
            elif version is not None:
                self._back.append(functools.partial(self._check_version, tensor, version))

        def back() -> None:
            if not _same_memory(tensor, data):
                tensor.grad = None
                set_data(tensor, data)
            if copy is not None and (
                (version is not None and tensor._version != version) or not _equal(data, copy)
            ):
                with torch.inference_mode(tensor.is_inference()):
                    data.copy_(copy)
            if is_leaf and tensor.is_leaf and tensor.grad is not gradient:
                tensor.grad = gradient

        self._back.append(back)
        return [gradient, getattr(tensor, "__dict__", None)]

    def _check_version(self, tensor: torch.Tensor, version: int) -> None:
        if tensor._version != version:
            self._changed_data.append(f"a tensor of shape {tuple(tensor.shape)}")

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
        return () if isinstance(item, (bytearray, array.array)) else [*kept, *self._attributes(item)]

    def _numeric(self, item: Any) -> Children:
        """Arrays and sources of random numbers."""
        if isinstance(item, torch.Generator):
            state = item.get_state()
            self._back.append(lambda: item.set_state(state) and None)
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
        found: list[Any] = []
        own = getattr(item, "__dict__", None)
        if isinstance(own, dict):
            if id(own) not in self._seen:
                self._seen[id(own)] = own
                self._back.append(functools.partial(_restore_dict, own, list(own.items())))
            found += _entered(item, own)
        for name in _slots(type(item)):
            value = getattr(item, name, _MISSING)
            self._back.append(functools.partial(_restore_attribute, item, name, value))
            found.append(value)
        return found

    # Code: what functions and classes hold, and the globals that they name.

    def _program(self, item: Any) -> Children:
        if isinstance(item, type):
            return self._class(item)
        if isinstance(item, functools._lru_cache_wrapper):
            return self._cache(item)
        if _is_library(item.__module__):
            return ()
        found = [item.__defaults__, item.__kwdefaults__, item.__dict__]
        for cell in item.__closure__ or ():
            found.append(_contents(cell))
            self._back.append(functools.partial(_restore_cell, cell, found[-1]))
        names = set(_names(item.__code__))
        for name in names - self._names:
            found += self._waiting.pop(name, ())
        self._names |= names
        found += self._named(item.__globals__, names, _makes_globals(item.__code__))
        for value in list(found):
            if isinstance(value, types.ModuleType) and not _is_library(value.__name__):
                found += self._named(vars(value), names, False)
        return found

    def _named(self, scope: dict[str, Any], names: Iterable[str], may_add: bool) -> list[Any]:
        found = []
        for name in names:
            value = scope.get(name, _MISSING)
            if isinstance(value, _CONSTANT) or (value is _MISSING and not may_add):
                if value is not _MISSING:
                    found.append(value)
                continue
            self._back.append(functools.partial(_restore_entry, scope, name, value))
            found.append(value)
        return found

    def _class(self, item: type) -> Children:
        if _is_library(item.__module__) or issubclass(item, enum.Enum):
            return ()
        kept = {k: v for k, v in vars(item).items() if k not in ("__dict__", "__weakref__")}

        def back() -> None:
            for name in [n for n in vars(item) if n not in kept and not n.startswith("__")]:
                delattr(item, name)
            for name, value in kept.items():
                if vars(item).get(name, _MISSING) is not value:
                    setattr(item, name, value)

        self._back.append(back)
        found = list(item.__bases__)
        for name, value in kept.items():
            if not isinstance(value, _METHODS) or self._may_run(item, name):
                found.append(value)
            else:
                self._waiting.setdefault(name, []).append(value)
        return found

    def _may_run(self, owner: type, name: str) -> bool:
        """Whether something refers to a method of a class, or Python itself calls it."""
        if name in self._names or name == "forward":
            return True
        is_built = issubclass(owner, nn.Module) and name in ("__init__", "__init_subclass__")
        return name.startswith("__") and not is_built

    def _cache(self, item: Any) -> Children:
        """A cached function: results that are new are forgotten again."""
        cache = next(d for d in gc.get_referents(item) if isinstance(d, dict) and d is not item.__dict__)
        kept = dict(cache)

        def back() -> None:
            for key in [k for k in cache if k not in kept]:
                del cache[key]

        self._back.append(back)
        results: list[Any] = []
        for value in kept.values():
            is_link = type(value).__name__ == "_lru_list_elem"
            results += gc.get_referents(value)[-2:] if is_link else [value]
        return [item.__wrapped__, *(r for r in results if not isinstance(r, type))]


def set_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    """Gives a tensor other data, perhaps of another shape; the object stays the same.

    A graph that is still alive (a loss that was kept) keeps the parameter's gradient accumulator, and that
    remembers the old shape. torch drops the accumulator when the *type* of the data changes, so the
    way there leads through another type.
    """
    if tensor.shape != data.shape and tensor.requires_grad:
        other = torch.float64 if data.dtype != torch.float64 else torch.float32
        tensor.data = torch.empty(0, dtype=other, device=data.device)
    tensor.data = data


def _is_library(module: str | None) -> bool:
    return (module or "builtins").partition(".")[0] in _LIBRARIES


def _is_opened(item: Any) -> bool:
    """Whether an object is looked into."""
    kind = type(item)
    if isinstance(item, _OPENED) or any((c.__module__, c.__name__) in _OPENED_NAMES for c in kind.__mro__):
        return True
    if _is_library(kind.__module__) or isinstance(item, (enum.Enum, type, types.ModuleType)):
        return False
    values = getattr(item, "__dict__", {}).values()
    return not any(type(v).__module__.partition(".")[0] in _MACHINERY for v in values)


def _entered(item: Any, own: Mapping[str, Any]) -> Iterator[Any]:
    """The values of an object's attributes, but not those that it keeps out of copies (a trainer, say)."""
    copied: Any = own
    if type(item).__getstate__ is not object.__getstate__ and not _is_library(type(item).__module__):  # type: ignore[attr-defined]
        try:
            copied = item.__getstate__()
        except Exception:  # the user's own code
            copied = own
        if not isinstance(copied, Mapping):
            copied = own
    for name, value in own.items():
        if copied is own or copied.get(name, _MISSING) is value:
            yield value


def _slots(kind: type) -> Iterator[str]:
    if _is_library(kind.__module__):
        return
    for cls in kind.__mro__:
        names = vars(cls).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else tuple(names):
            if name not in ("__dict__", "__weakref__"):
                hidden = name.startswith("__") and not name.endswith("__")
                yield f"_{cls.__name__.lstrip('_')}{name}" if hidden else name


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _makes_globals(code: types.CodeType) -> bool:
    """Whether a function binds a global name, perhaps a new one."""
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return _STORE_GLOBAL in code.co_code[::2] or any(map(_makes_globals, inner))


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return _MISSING


def _restore_cell(cell: Any, value: Any) -> None:
    if _contents(cell) is value:
        return
    if value is _MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def _restore_entry(scope: dict[str, Any], name: str, value: Any) -> None:
    if value is _MISSING:
        # what was imported late stays: Python would not bind it again
        if not isinstance(scope.get(name), _CONSTANT):
            scope.pop(name, None)
    elif scope.get(name, _MISSING) is not value:
        scope[name] = value


def _restore_attribute(item: Any, name: str, value: Any) -> None:
    if getattr(item, name, _MISSING) is value:
        return
    if value is _MISSING:
        object.__delattr__(item, name)
    else:
        object.__setattr__(item, name, value)


def _restore_dict(item: dict[Any, Any], kept: list[tuple[Any, Any]]) -> None:
    now = list(dict.items(item))
    if len(now) == len(kept) and all(
        a is c and b is d for (a, b), (c, d) in zip(now, kept, strict=True)
    ):
        return
    base: Any = OrderedDict if isinstance(item, OrderedDict) else dict
    base.clear(item)
    for key, value in kept:
        base.__setitem__(item, key, value)


def _same_memory(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    if tensor.dtype != data.dtype or tensor.device != data.device or tensor.shape != data.shape:
        return False
    if tensor.layout is not torch.strided:
        return True
    return (
        tensor.untyped_storage()._cdata == data.untyped_storage()._cdata
        and tensor.storage_offset() == data.storage_offset()
        and tensor.stride() == data.stride()
    )


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        return torch.equal(a, b)
    except (RuntimeError, NotImplementedError):  # sparse ones and other rare kinds
        return False
