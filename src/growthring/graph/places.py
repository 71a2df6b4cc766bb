"""Places: where a model keeps its numbers, and how one of them is changed.

A place is a module and a name within it. The name may lead through the settings that the module
holds: `n_head`, `config.text_config.hidden_size`, `cfg[d_model]` (an entry of a dict). Objects with
slots, frozen dataclasses and named tuples are settings as well. What is computed (a property) or
cannot be changed is no place: `assign` says so.
"""

from __future__ import annotations

import enum
import re
import sys
import types
from collections.abc import Iterator, MutableMapping
from typing import Any

import numpy as np
import torch
from torch import nn

Place = tuple[str, str]
_STEP = re.compile(r"\[([^\[\]]*)\]|([^.\[\]]+)")
_DEEPEST = 3


class FixedPlaceError(Exception):
    """The number at a place cannot be changed; says why."""


def steps_of_name(name: str) -> list[tuple[bool, str]]:
    """A name as steps: (is it an entry of a dict, its key or attribute).

    >>> steps_of_name("cfg[block].width")
    [(False, 'cfg'), (True, 'block'), (False, 'width')]
    """
    return [(bool(m.group(1)), m.group(1) or m.group(2)) for m in _STEP.finditer(name)]


def is_settings(value: Any) -> bool:
    """Whether something holds settings: an object with attributes, not a module, tensor or function."""
    if isinstance(value, (nn.Module, type, torch.Tensor, enum.Enum, types.ModuleType)):
        return False
    if isinstance(value, (list, dict, set, frozenset, str, bytes, int, float, complex, type(None))):
        return False
    package = type(value).__module__.split(".")[0]
    of_python = package in sys.stdlib_module_names and package not in ("types", "argparse")
    if callable(value) or of_python or package == "torch":
        return False
    is_plain_tuple = isinstance(value, tuple) and not hasattr(value, "_fields")
    return not is_plain_tuple and bool(hasattr(value, "__dict__") or list(stored_names(value)))


def is_whole(value: Any) -> bool:
    """Whether something is a whole number; `numpy.prod` gives one of numpy's, and truth values are none.

    >>> is_whole(4), is_whole(np.prod((2, 2))), is_whole(True), is_whole(4.0)
    (True, True, False, False)
    """
    return type(value) is int or isinstance(value, np.integer)


def stored_names(holder: Any) -> Iterator[str]:
    """The names that an object itself stores: in its `__dict__`, its slots or its fields."""
    if isinstance(holder, tuple):
        yield from getattr(holder, "_fields", ())
        return
    yield from getattr(holder, "__dict__", {})
    for cls in type(holder).__mro__:
        for name, item in vars(cls).items():
            if isinstance(item, types.MemberDescriptorType) and hasattr(holder, name):
                yield name


def leaves(value: Any, name: str, deepest: int = _DEEPEST) -> Iterator[tuple[str, Any]]:
    """The numbers, lists and tuples inside settings, with the names that lead to them."""
    if isinstance(value, dict):
        inner = [(f"{name}[{k}]", v) for k, v in value.items() if _is_plain_key(k)]
    elif is_settings(value):
        inner = [(f"{name}.{k}", getattr(value, k, None)) for k in stored_names(value)]
    else:
        yield name, value
        return
    if deepest:
        for child, item in inner:
            yield from leaves(item, child, deepest - 1)


def plain_numbers(model: nn.Module) -> Iterator[tuple[Place, Any]]:
    """The numbers, and lists and tuples of them, that modules and the settings they hold keep."""
    for path, module in model.named_modules():
        for name, value in list(vars(module).items()):
            if name.startswith("_") or name == "training":
                continue
            for leaf, held in leaves(value, name):
                numbers = held if isinstance(held, (tuple, list)) else (held,)
                if numbers and all(type(n) in (int, float) for n in numbers):
                    yield (path, leaf), held


def _is_plain_key(key: Any) -> bool:
    return isinstance(key, str) and key != "" and not set(key) & set("[]")


def read(model: nn.Module, place: Place) -> Any:
    """The value at a place, or None where there is none (any more)."""
    try:
        *_, (holder, is_entry, step) = _chain(model, place)
        return holder[step] if is_entry else getattr(holder, step)
    except (AttributeError, KeyError, TypeError, IndexError):
        return None


def exists(model: nn.Module, place: Place) -> bool:
    """Whether there is such a place."""
    return read(model, place) is not None


def holder_of(model: nn.Module, place: Place) -> tuple[int, str]:
    """Which stored number a place means: several modules may hold one settings object.

    A named tuple is not changed but replaced, so what holds it counts.
    """
    inner = ""
    for holder, _, step in reversed(_chain(model, place)):
        if not isinstance(holder, tuple):
            return id(holder), _own_name(holder, step) + inner
        inner = f".{step}{inner}"
    raise FixedPlaceError(f"'{place[1]}' is part of a tuple that nothing holds")


def assign(model: nn.Module, place: Place, value: Any) -> None:
    """Puts a value at a place.

    Raises:
        FixedPlaceError: the place is computed, or what holds it cannot be changed.
    """
    chain = _chain(model, place)
    for holder, is_entry, step in reversed(chain):
        if isinstance(holder, tuple) and hasattr(holder, "_replace"):
            value = holder._replace(**{step: value})  # its holder takes the new tuple
            continue
        if is_entry:
            _set_entry(holder, step, value)
        else:
            _set_attribute(holder, _own_name(holder, step), value)
        return
    raise FixedPlaceError(f"'{place[1]}' is part of a tuple that nothing holds")


def _chain(model: nn.Module, place: Place) -> list[tuple[Any, bool, str]]:
    holder: Any = model.get_submodule(place[0])
    holders = []
    steps = steps_of_name(place[1])
    for i, (is_entry, step) in enumerate(steps):
        holders.append((holder, is_entry, step))
        if i < len(steps) - 1:
            holder = holder[step] if is_entry else getattr(holder, step)
    return holders


def _own_name(holder: Any, step: str) -> str:
    """The name under which an attribute is stored; configs of transformers have second names for some."""
    if step in set(stored_names(holder)):
        return step
    second = getattr(type(holder), "attribute_map", None)
    return second.get(step, step) if isinstance(second, dict) else step


def _set_entry(holder: Any, key: str, value: Any) -> None:
    if not isinstance(holder, MutableMapping):
        raise FixedPlaceError(f"a {type(holder).__name__} cannot be changed")
    try:
        holder[key] = value
    except Exception as error:  # a mapping of the user's own that refuses
        raise FixedPlaceError(f"a {type(holder).__name__} refuses it ({error})") from error


def _set_attribute(holder: Any, name: str, value: Any) -> None:
    stored = name in set(stored_names(holder))
    of_class = next((vars(c)[name] for c in type(holder).__mro__ if name in vars(c)), None)
    if not stored and (of_class is None or hasattr(of_class, "__get__")):
        raise FixedPlaceError(f"'{name}' of {type(holder).__name__} is computed, not stored")
    declared = any(name in vars(c).get("__annotations__", {}) for c in type(holder).__mro__)
    shadows = type(of_class) is int and not declared  # a field of a dataclass is always stored
    if stored and shadows and of_class == value:
        delattr(holder, name)
    else:  # what is of the class stays there: the instance gets one of its own
        _set(holder, name, value)


def _set(holder: Any, name: str, value: Any) -> None:
    try:
        setattr(holder, name, value)
    except Exception:  # frozen dataclasses and others that mean "do not", not "cannot"
        try:
            object.__setattr__(holder, name, value)
        except Exception as error:
            text = f"'{name}' of {type(holder).__name__} cannot be set ({error})"
            raise FixedPlaceError(text) from error
    if getattr(holder, name, None) != value:
        raise FixedPlaceError(f"'{name}' of {type(holder).__name__} does not take another value")
