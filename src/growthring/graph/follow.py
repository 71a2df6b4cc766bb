"""Attributes that hold sizes follow the widths; with `build=`, those in which fresh models differ are adopted."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from growthring.core.axes import Axis, size
from growthring.graph.places import (
    FixedPlaceError,
    Place,
    assign,
    holder_of,
    is_settings,
    read,
    stored_names,
)
from growthring.graph.rebind import Rebinder, contents


@dataclass(frozen=True)
class Scaled:
    """A stored number that follows a width: `value` · (size / its full size) ** power."""

    axis: Axis
    power: float
    value: float
    full: int

    def at(self, widths: Mapping[int, int]) -> float:
        """The number at the given widths; at the full ones exactly the stored one."""
        now = size(self.axis, widths)
        return self.value if now == self.full else self.value * (now / self.full) ** self.power


Sizes = tuple[Axis, ...]
Attributes = Mapping[Place, Sizes | Scaled]


def attribute_value(held: Any, rule: Sizes | Scaled, widths: Mapping[int, int]) -> Any:
    """What an attribute holds at the given widths, in the type of what it holds now."""
    if isinstance(rule, Scaled):
        return rule.at(widths)
    sizes = [size(axis, widths) for axis in rule]
    if isinstance(held, (tuple, list)):
        return torch.Size(sizes) if isinstance(held, torch.Size) else type(held)(sizes)
    if len(sizes) > 1:
        return tuple(sizes)
    return type(held)(sizes[0]) if isinstance(held, np.integer) else sizes[0]


def follow_attributes(
    model: nn.Module,
    attributes: Attributes,
    before: Mapping[int, int],
    after: Mapping[int, int],
) -> None:
    """Sets the attributes that hold sizes.

    An attribute that does not hold the size it should at widths `before` is left alone: it means
    something else.
    """
    done: set[tuple[int, str]] = set()
    for place, rule in attributes.items():
        held = read(model, place)
        if held is None or isinstance(held, bool) or held != attribute_value(held, rule, before):
            continue
        stored = holder_of(model, place)
        if stored in done:  # one settings object, held by several modules
            continue
        done.add(stored)
        fresh = attribute_value(held, rule, after)
        if fresh != held:
            with contextlib.suppress(FixedPlaceError):  # computed from others, which follow
                assign(model, place, fresh)


def adopt_attributes(model: nn.Module, before: nn.Module, after: nn.Module) -> None:
    """Takes over what depends on the widths: all in which two freshly built modules differ.

    What training changed (a temperature, a counter) stays, unless it is the very number that depends on a width.
    Tensors and sub-modules are left alone; functions with widths in their closures are taken over.

    Args:
        model: what grows.
        before: what `build` makes of the present widths.
        after: what `build` makes of the next ones.
    """
    counterpart = _counterparts(model, after)
    rebinder = Rebinder(counterpart)
    for path, fresh in after.named_modules():
        module, old = model.get_submodule(path), before.get_submodule(path)
        if type(old) is not type(fresh):
            module.__class__ = type(fresh)
        for name, value in _differences(old, fresh, ""):
            new = rebinder.value(value)
            try:
                assign(module, ("", name), new)
            except (FixedPlaceError, AttributeError, KeyError, TypeError):
                continue  # a module of the user's own that has none such; the proof runs anyway


def _counterparts(model: nn.Module, built: nn.Module) -> dict[int, Any]:
    counterparts: dict[int, Any] = {}
    for path, module in built.named_modules():
        counterparts[id(module)] = model.get_submodule(path)
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, tensor in [*built.named_parameters(), *built.named_buffers()]:
        counterparts[id(tensor)] = tensors.get(name, tensor)
    return counterparts


def _differences(old: Any, new: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """The attributes in which two like objects differ, by name; settings are looked into."""
    for name in dict.fromkeys(stored_names(new)):
        if not prefix and (name.startswith("_") or name == "training"):
            continue
        value, before = getattr(new, name), getattr(old, name, None)
        if isinstance(value, torch.Tensor) or _same(before, value):
            continue
        whole = f"{prefix}{name}"
        if is_settings(value) and type(value) is type(before) and not isinstance(value, tuple):
            yield from _differences(before, value, f"{whole}.")
        elif isinstance(value, dict) and isinstance(before, dict) and value.keys() == before.keys():
            for key, item in value.items():
                if not _same(before[key], item):
                    yield (f"{whole}[{key}]", item) if isinstance(key, str) else (whole, value)
        else:
            yield whole, value


def _same(a: Any, b: Any, deepest: int = 6) -> bool:
    """Whether two things made by the same code at different widths are alike."""
    if a is b:
        return True
    if type(a) is not type(b) or deepest == 0:
        return type(a) is type(b)
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a, b))
    if isinstance(a, types.FunctionType):
        parts = [(*contents(f.__closure__ or ()), *(f.__defaults__ or ())) for f in (a, b)]
        return a.__code__ == b.__code__ and _same(parts[0], parts[1], deepest - 1)
    if isinstance(a, (nn.Module, types.BuiltinMethodType)):
        return True  # each has its own
    if isinstance(a, types.MethodType):
        return a.__func__ is b.__func__ and _same(a.__self__, b.__self__, deepest - 1)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k], deepest - 1) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y, deepest - 1) for x, y in zip(a, b, strict=True))
    if hasattr(a, "__dict__") and not isinstance(a, type):
        return _same(vars(a), vars(b), deepest - 1)
    return bool(a == b)
