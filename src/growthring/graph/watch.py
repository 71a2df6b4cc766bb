"""Notes which whole numbers a model's code reads from the attributes of its modules."""

from __future__ import annotations

import contextlib
import enum
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


@contextlib.contextmanager
def watch_reads(model: nn.Module, reads: set[tuple[str, str]]) -> Iterator[None]:
    """Notes which whole numbers the code of the model's modules reads from their attributes.

    Each watched object is lent a subclass of its own class for the time being. Modules of torch
    itself are left
    alone: rules and handlers know their attributes.
    """
    classes: dict[type, type] = {}
    places: dict[int, list[tuple[str, str]]] = {}
    lent: list[tuple[Any, type]] = []
    names = {id(module): path for path, module in model.named_modules()}

    def watched(cls: type) -> type:
        def __getattribute__(self: Any, name: str) -> Any:
            value = cls.__getattribute__(self, name)  # type: ignore[call-arg]
            if type(value) in (int, list, tuple) and id(self) in places:
                found = places[id(self)]
                # A config object is shared by many modules: only the one whose code reads it counts.
                caller = sys._getframe(1).f_locals.get("self")
                own = [place for place in found if place[0] == names.get(id(caller))]
                reads.update((path, prefix + name) for path, prefix in own or found)
            return value

        body = {"__getattribute__": __getattribute__, "__module__": cls.__module__}
        return type(cls.__name__, (cls,), body)

    def lend(item: Any, path: str, prefix: str) -> None:
        known = id(item) in places
        places.setdefault(id(item), []).append((path, prefix))
        if known:
            return
        cls = type(item)
        try:
            if cls not in classes:
                classes[cls] = watched(cls)
            item.__class__ = classes[cls]
            lent.append((item, cls))
        except (TypeError, AttributeError):  # slots, C types, odd metaclasses: simply not watched
            return

    try:
        for path, module in model.named_modules():
            is_leaf = not any(True for _ in module.children())
            from_torch = type(module).__module__.startswith("torch.")
            if from_torch and is_leaf and not isinstance(module, nn.Unflatten):
                continue
            for name, value in list(vars(module).items()):
                if _is_plain_object(value) and not name.startswith("_"):
                    lend(value, path, f"{name}.")
            lend(module, path, "")
        yield
    finally:
        for item, cls in lent:
            item.__class__ = cls


def _is_plain_object(value: Any) -> bool:
    """Whether something is a holder of settings: an object with attributes, not a module, tensor or function."""
    if isinstance(value, (nn.Module, type, torch.Tensor, enum.Enum)) or callable(value):
        return False
    return hasattr(value, "__dict__") and type(value).__module__ != "builtins"
