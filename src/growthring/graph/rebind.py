"""Functions that a model holds must speak of that model: `copy.deepcopy` does not copy functions.

`self.act = lambda x: x * self.alpha`, a hook that closes over a module, a weak reference to the parent: in a deep
copy they still mean the original, and the copy would train the original's parameters. Here they are
made anew with what they refer to replaced by its copy.
"""

from __future__ import annotations

import dis
import functools
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from growthring.errors import UnsupportedModelError
from growthring.graph.places import is_settings

_ATOMS = (str, bytes, int, float, complex, type, type(None), types.ModuleType, torch.Tensor)

_PLAIN = frozenset((str, bytes, int, float, bool, type(None)))  # most of a long list or table


class Rebinder:
    """Replaces references to objects of one model by their counterparts in another.

    Args:
        replaced: id of an object -> its counterpart (the memo of a deep copy).
        own: ids of the containers that may be changed; by default all.
    """

    def __init__(self, replaced: Mapping[int, Any], own: set[int] | None = None) -> None:
        self._replaced, self._own = replaced, own
        self._functions: dict[int, Any] = {}
        self._cells: dict[int, Any] = {}
        self._copies: dict[int, Any] = {}
        self._seen: dict[
            int, Any
        ] = {}  # also keeps what was visited alive, so that ids stay unique
        self._place = ""

    def rebind(self, model: nn.Module) -> None:
        """Makes everything that the modules of `model` hold refer to `model`."""
        for path, module in model.named_modules():
            self._seen[id(module)] = module
            for name, value in list(vars(module).items()):
                if name in ("_parameters", "_buffers", "_modules"):
                    continue
                self._place = f"'{name}' of '{path or '(model)'}'"
                new = self.value(value)
                if new is not value:
                    vars(module)[name] = new

    def value(self, item: Any) -> Any:
        """The item itself, or what stands for it in the other model; containers change in place."""
        replacement = self._replaced.get(id(item))
        if replacement is not None and type(replacement) is type(item):
            return replacement
        if isinstance(item, (*_ATOMS, nn.Module)):
            return item
        if isinstance(item, types.FunctionType):
            return self._function(item)
        if isinstance(item, types.MethodType):
            function, owner = self.value(item.__func__), self.value(item.__self__)
            same = function is item.__func__ and owner is item.__self__
            return item if same else types.MethodType(function, owner)
        if isinstance(item, types.BuiltinMethodType):
            owner = self.value(item.__self__)
            return item if owner is item.__self__ else getattr(owner, item.__name__)
        if isinstance(item, weakref.ReferenceType):
            target = self.value(item())
            return item if target is item() else type(item)(target)
        if isinstance(item, functools._lru_cache_wrapper):
            function = self.value(item.__wrapped__)
            again = functools.lru_cache(**item.cache_parameters())
            return item if function is item.__wrapped__ else again(function)
        if id(item) in self._copies:
            return self._copies[id(item)]
        if id(item) in self._seen:
            return item
        self._seen[id(item)] = item
        if self._own is None or id(item) in self._own or isinstance(item, tuple):
            return self._container(item)
        if not self._refers(item, set()):
            return item
        if isinstance(item, (list, dict)):  # of a function of the original
            self._copies[id(item)] = mine = item.copy()
            return self._container(mine)
        raise UnsupportedModelError(
            f"{self._place} holds a {type(item).__name__} that is not copied with the model but refers to it: "
            "the thin model would compute with, and train, the full one's. Let it be deep-copied."
        )

    def _container(self, item: Any) -> Any:
        if isinstance(item, functools.partial):
            parts = (item.func, item.args, item.keywords)
            func, args, keywords = (self.value(part) for part in parts)
            if func is item.func and args is item.args:
                return item  # keywords are a dict, which changed in place
            return type(item)(func, *args, **keywords)
        if isinstance(item, dict):
            for key, value in list(item.items()):
                new = value if type(value) in _PLAIN else self.value(value)
                if new is not value:
                    item[key] = new
        elif isinstance(item, list):
            item[:] = [v if type(v) in _PLAIN else self.value(v) for v in item]
        elif isinstance(item, tuple):
            new = [self.value(value) for value in item]
            if any(a is not b for a, b in zip(item, new, strict=True)):
                return type(item)(*new) if hasattr(item, "_fields") else type(item)(new)
        elif is_settings(item) or callable(item):
            holder = getattr(item, "__dict__", {})
            for name, value in list(holder.items()):
                new = self.value(value)
                if new is not value:
                    holder[name] = new
        return item

    def _function(self, function: types.FunctionType) -> Any:
        if id(function) in self._functions:
            return self._functions[id(function)]
        self._refuse_globals(function)
        cells = function.__closure__ or ()
        given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        inside = [*contents(cells), *given]
        self._functions[id(function)] = function
        if not any(self._refers(item, set()) for item in inside):
            return function
        rebound = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, None,
            tuple(self._cells.setdefault(id(c), types.CellType()) for c in cells),
        )  # fmt: skip
        self._functions[id(function)] = rebound
        functools.update_wrapper(rebound, function, updated=("__dict__",))
        vars(rebound).pop("__wrapped__", None)
        if hasattr(function, "__wrapped__"):
            rebound.__wrapped__ = self.value(function.__wrapped__)  # type: ignore[attr-defined]
        for old in cells:
            new = self._cells[id(old)]
            for content in contents([old]):
                new.cell_contents = self.value(content)
        if function.__defaults__ is not None:
            rebound.__defaults__ = tuple(self.value(item) for item in function.__defaults__)
        if function.__kwdefaults__ is not None:
            named = function.__kwdefaults__.items()
            rebound.__kwdefaults__ = {name: self.value(item) for name, item in named}
        return rebound

    def _refers(self, item: Any, seen: set[int]) -> bool:
        """Whether something leads to an object that has a counterpart."""
        if id(item) in self._replaced and type(self._replaced[id(item)]) is type(item):
            return self._replaced[id(item)] is not item
        if isinstance(item, _ATOMS) or id(item) in seen:
            return False
        seen.add(id(item))
        if isinstance(item, types.FunctionType):
            inside = [*contents(item.__closure__ or ()), *(item.__defaults__ or ())]
            inside += (item.__kwdefaults__ or {}).values()
        elif isinstance(item, (types.MethodType, types.BuiltinMethodType)):
            inside = [item.__self__, getattr(item, "__func__", None)]
        elif isinstance(item, functools.partial):
            inside = [item.func, *item.args, *item.keywords.values()]
        elif isinstance(item, weakref.ReferenceType):
            inside = [item()]
        elif isinstance(item, functools._lru_cache_wrapper):
            inside = [item.__wrapped__]
        elif isinstance(item, dict):
            inside = list(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            inside = list(item)
        elif isinstance(item, nn.Module):
            inside = []
        else:
            inside = list(getattr(item, "__dict__", {}).values())
        return any(self._refers(child, seen) for child in inside if type(child) not in _PLAIN)

    def _refuse_globals(self, function: types.FunctionType) -> None:
        """A global variable is the same for the copy and for the original, so it cannot mean both."""
        for name in _global_names(function.__code__):
            target = function.__globals__.get(name)
            if isinstance(target, (nn.Module, torch.Tensor)) and self._refers(target, set()):
                raise UnsupportedModelError(
                    f"{self._place} holds a function ({function.__qualname__}) that reads the global variable "
                    f"'{name}', which is part of the model: the thin model would compute with, and train, the full "
                    f"one's. Let the function reach it through an argument, `self` or a local variable."
                )


def contents(cells: Iterable[types.CellType]) -> Iterator[Any]:
    """What the cells of a closure hold, empty ones left out."""
    for cell in cells:
        try:
            yield cell.cell_contents
        except ValueError:  # an empty cell
            continue


def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """The global variables that a function or one inside it reads."""
    names = [i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names += _global_names(inner)
    return tuple(dict.fromkeys(names))
