"""The state that a model's code holds: classes, globals that functions name, closures, cached results.

Which methods and globals matter is read from the names in the code: from every `forward` on, whatever
it could call by a name is followed, except into libraries.
"""

from __future__ import annotations

import dis
import enum
import functools
import gc
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

from growthring.graph.restore import (
    CONSTANT,
    MISSING,
    contents,
    restore_cell,
    restore_entry,
)

_LIBRARIES = {
    *sys.stdlib_module_names,
    "builtins",
    "torch",
    "numpy",
    "sympy",
    "pytest",
    "_pytest",
} - {"__main__"}
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
_METHODS = (
    types.FunctionType, property, staticmethod, classmethod, functools.cached_property,
    functools._lru_cache_wrapper,
)  # fmt: skip


class Code:
    """Follows functions, classes and cached functions.

    Args:
        back: where to add what restores them.

    Attributes:
        caches: the cached functions.
    """

    KINDS = (types.FunctionType, type, functools._lru_cache_wrapper)

    def __init__(self, back: list[Callable[[], None]]) -> None:
        self._back = back
        self._names: set[str] = set()  # that the code refers to
        self._waiting: dict[str, list[Any]] = {}  # methods that nothing has referred to yet
        self.caches: list[Any] = []
        self._bare: list[types.FunctionType] = []  # functions without attributes of their own
        back.append(self._strip)

    def _strip(self) -> None:
        """Takes attributes from functions that had none."""
        for function in self._bare:
            if function.__dict__:
                function.__dict__.clear()

    def visit(self, item: Any) -> Iterable[Any]:
        """Notes how to restore one of `KINDS`; returns what it refers to."""
        if isinstance(item, type):
            return self._class(item)
        if isinstance(item, functools._lru_cache_wrapper):
            return self._cache(item)
        is_foreign = is_library(item.__globals__.get("__name__"))
        if is_foreign and is_library(item.__module__):
            return ()
        reached = [item.__defaults__, item.__kwdefaults__]
        if item.__dict__:
            reached.append(item.__dict__)
        else:  # most have none, and there are thousands of functions
            self._bare.append(item)
        for cell in item.__closure__ or ():
            reached.append(contents(cell))
            self._back.append(functools.partial(restore_cell, cell, reached[-1]))
        if is_foreign:  # a library's wrapper around a function of the model
            return reached
        names, makes_globals = _facts(item.__code__)
        for name in names - self._names:
            reached += self._waiting.pop(name, ())
        self._names |= names
        reached += self._named(item.__globals__, names, makes_globals)
        opened: set[int] = set()
        for value in reached:  # which gets longer: `package.file.function`
            is_file = isinstance(value, types.ModuleType) and id(value) not in opened
            if is_file and not is_library(value.__name__):
                opened.add(id(value))
                reached += self._named(vars(value), names, False)
        return reached

    def _named(self, scope: dict[str, Any], names: Iterable[str], may_add: bool) -> list[Any]:
        reached = []
        for name in names:
            value = scope.get(name, MISSING)
            if isinstance(value, CONSTANT) or (value is MISSING and not may_add):
                if value is not MISSING:
                    reached.append(value)
                continue
            self._back.append(functools.partial(restore_entry, scope, name, value))
            reached.append(value)
        return reached

    def _class(self, item: type) -> Iterable[Any]:
        if is_library(item.__module__) or issubclass(item, enum.Enum):
            return ()
        kept = {k: v for k, v in vars(item).items() if k not in ("__dict__", "__weakref__")}

        def back() -> None:
            for name in [n for n in vars(item) if n not in kept and not n.startswith("__")]:
                delattr(item, name)
            for name, value in kept.items():
                if vars(item).get(name, MISSING) is not value:
                    setattr(item, name, value)

        self._back.append(back)
        reached = list(item.__bases__)
        for name, value in kept.items():
            if not isinstance(value, _METHODS) or self._may_run(item, name):
                reached.append(value)
            else:
                self._waiting.setdefault(name, []).append(value)
        return reached

    def _may_run(self, owner: type, name: str) -> bool:
        """Whether something refers to a method of a class, or Python itself calls it."""
        if name in self._names or name == "forward":
            return True
        is_built = issubclass(owner, nn.Module) and name in ("__init__", "__init_subclass__")
        return name.startswith("__") and not is_built

    def _cache(self, item: Any) -> Iterable[Any]:
        """A cached function: results that are new are forgotten again.

        A bounded cache keeps its results in a linked list beside the dict, which nobody else may touch:
        if anything in it changed, all of it is forgotten and will be computed anew.
        """
        cache = next(
            d for d in gc.get_referents(item) if isinstance(d, dict) and d is not item.__dict__
        )
        self.caches.append(item)
        kept = {key: _results(value) for key, value in cache.items()}
        is_bounded = item.cache_parameters()["maxsize"] is not None

        def back() -> None:
            now = {key: _results(value) for key, value in cache.items()}
            if _same(now, kept):
                return
            if is_bounded:
                item.cache_clear()
                return
            cache.clear()
            cache.update({key: value for key, (value,) in kept.items()})

        self._back.append(back)
        return [item.__wrapped__, *(r for results in kept.values() for r in results)]


def _same(now: dict[Any, list[Any]], kept: dict[Any, list[Any]]) -> bool:
    """Whether two caches hold the very same results."""
    return now.keys() == kept.keys() and all(
        len(now[key]) == len(results)
        and all(a is b for a, b in zip(now[key], results, strict=True))
        for key, results in kept.items()
    )


def _results(value: Any) -> list[Any]:
    """What an entry of a cache holds, whichever kind of cache it is."""
    if type(value).__name__ != "_lru_list_elem":
        return [value]
    return [r for r in gc.get_referents(value) if not isinstance(r, type)]


def is_library(module: str | None) -> bool:
    """Whether a module is part of Python, torch or another package that holds no state of a model."""
    return (module or "builtins").partition(".")[0] in _LIBRARIES


# What is known of code by its identity: it never changes, and a model's code is walked at every pass. The code is
# held, so that no other one gets its identity.
_FACTS: dict[int, tuple[types.CodeType, frozenset[str], bool]] = {}
_MOST_FACTS = 100_000


def _facts(code: types.CodeType) -> tuple[frozenset[str], bool]:
    """The names that code refers to, and whether it binds global ones."""
    if id(code) not in _FACTS:
        if len(_FACTS) >= _MOST_FACTS:
            _FACTS.clear()
        _FACTS[id(code)] = code, frozenset(_names(code)), _makes_globals(code)
    return _FACTS[id(code)][1:]


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that code refers to, and texts that could be names (`getattr(module, "table")`)."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def _makes_globals(code: types.CodeType) -> bool:
    """Whether a function binds a global name, perhaps a new one."""
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    is_direct = _STORE_GLOBAL in code.co_code[::2] or "globals" in code.co_names
    return is_direct or any(map(_makes_globals, inner))
