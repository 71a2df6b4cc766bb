"""Notes which whole numbers a model's code reads from the attributes of its modules."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from growthring.graph.places import is_settings, is_whole, stored_names

_DEEPEST = 3
_KINDS = (list, tuple, dict, torch.Size)


@contextlib.contextmanager
def watch_reads(model: nn.Module, reads: set[tuple[str, str]]) -> Iterator[None]:
    """Notes which whole numbers the code of the model's modules reads from their attributes.

    Each watched object is lent a subclass of its own class for the time being. Modules of torch
    itself are left alone: rules and handlers know their attributes. Settings that cannot be lent a class (dicts,
    named tuples) are noted as a whole when the code asks for them.
    """
    classes: dict[type, type] = {}
    places: dict[int, list[tuple[str, str]]] = {}
    lent: list[tuple[Any, type]] = []
    opaque: dict[int, Any] = {}
    names = {id(module): path for path, module in model.named_modules()}

    def watched(cls: type) -> type:
        def __getattribute__(self: Any, name: str) -> Any:
            value = cls.__getattribute__(self, name)  # type: ignore[call-arg]
            counts = type(value) in _KINDS or is_whole(value) or id(value) in opaque
            if counts and id(self) in places and not name.startswith("__"):
                its_places = places[id(self)]
                # A config object is shared by many modules: only the one whose code reads it counts.
                caller = sys._getframe(1).f_locals.get("self")
                own = [place for place in its_places if place[0] == names.get(id(caller))]
                reads.update((path, prefix + name) for path, prefix in own or its_places)
            return value

        body = {"__getattribute__": __getattribute__, "__module__": cls.__module__, "__slots__": ()}
        return type(cls.__name__, (cls,), body)

    def lend(item: Any, path: str, prefix: str) -> None:
        known = id(item) in places
        places.setdefault(id(item), []).append((path, prefix))
        if known:
            return
        cls = type(item)
        try:
            if isinstance(item, tuple):
                raise TypeError
            if cls not in classes:
                classes[cls] = watched(cls)
            item.__class__ = classes[cls]
            lent.append((item, cls))
        except (TypeError, AttributeError):  # named tuples, C types, odd metaclasses
            opaque[id(item)] = item

    def lend_settings(holder: Any, path: str, prefix: str, deepest: int) -> None:
        for name in list(stored_names(holder)):
            value = getattr(holder, name, None)
            if is_settings(value) and not name.startswith("__"):
                again = (path, f"{prefix}{name}.") in places.get(id(value), ())
                lend(value, path, f"{prefix}{name}.")
                if deepest and not again:
                    lend_settings(value, path, f"{prefix}{name}.", deepest - 1)

    try:
        for path, module in model.named_modules():
            is_leaf = not any(True for _ in module.children())
            from_torch = type(module).__module__.startswith("torch.")
            if from_torch and is_leaf and not isinstance(module, nn.Unflatten):
                continue
            lend_settings(module, path, "", _DEEPEST)
            lend(module, path, "")
        yield
    finally:
        for item, cls in lent:
            item.__class__ = cls
