"""What a forward pass gives: the tensors that a model returns, and those that it leaves on its modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from growthring.errors import InputError

_OF_TORCH = frozenset(vars(nn.Module()))
_OF_FSDP = "__composable_api_state_key"  # where torch's fully_shard keeps its machinery on a module
_PLAIN = (str, bytes, int, float, complex, bool, type, torch.dtype, torch.device, nn.Module)


def output_tensors(output: Any, names: Sequence[str] | None = None) -> list[torch.Tensor]:
    """All tensors of a model's output, in order: containers, dataclasses and plain objects are opened.

    Key-value caches (classes derived from one named `Cache`) are left out: they are working memory,
    not a result, and their shapes may grow.

    Args:
        output: what the model returned.
        names: of an output with named parts, only these; by-products such as hidden states may
            grow.
    """
    if names is not None:
        output = _named(output, names)
    tensors: list[torch.Tensor] = []
    seen: set[int] = set()

    def visit(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            tensors.append(item)
        elif item is None or isinstance(item, _PLAIN) or id(item) in seen:
            return
        elif not any(c.__name__ == "Cache" for c in type(item).__mro__):
            seen.add(id(item))
            for child in _children(item):
                visit(child)

    visit(output)
    return tensors


def _named(output: Any, names: Sequence[str]) -> list[Any]:
    is_tensor = isinstance(output, torch.Tensor)
    parts = (
        output if isinstance(output, Mapping) else {} if is_tensor else dict(_attributes(output))
    )
    missing = [name for name in names if name not in parts]
    if missing:
        kind = "tensor" if is_tensor else type(output).__name__
        has = f"; it has {', '.join(map(str, parts))}." if parts else " and without named parts."
        raise InputError(
            f"outputs={list(names)}: the model's output is a {kind} without '{missing[0]}'{has}"
        )
    return [parts[name] for name in names]


def _children(item: Any) -> Iterable[Any]:
    if isinstance(item, Mapping):
        return list(item.values())
    if isinstance(item, (list, tuple, set, frozenset)):
        return list(item)
    return [value for _, value in _attributes(item)]


def _attributes(item: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of an object's attributes, those in slots and a named tuple's included."""
    if isinstance(item, tuple):
        yield from zip(getattr(item, "_fields", ()), item, strict=False)
    yield from getattr(item, "__dict__", {}).items()
    for cls in type(item).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(item, name):
                yield name, getattr(item, name)


class Leavings:
    """The tensors that a pass leaves on a model's modules: an auxiliary loss, features for a hook.

    Made before the pass, it tells afterwards what is new. Parameters and buffers do not count, and
    neither do a module's own sub-modules.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        # Held, so that no new tensor gets the address of an old one.
        self._before = [t for _, value in self._plain() for t in output_tensors(value)]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Qualified attribute name -> the tensor left there (`name[k]` for the k-th of several)."""
        known = {id(t) for t in self._before}
        known |= {id(t) for t in (*self._model.parameters(), *self._model.buffers())}
        tensors: dict[str, torch.Tensor] = {}
        for name, value in self._plain():
            left = [t for t in output_tensors(value) if id(t) not in known]
            for k, tensor in enumerate(left):
                tensors[name if isinstance(value, torch.Tensor) else f"{name}[{k}]"] = tensor
                known.add(id(tensor))
        return tensors

    def _plain(self) -> Iterator[tuple[str, Any]]:
        for path, module in self._model.named_modules():
            for name, value in list(vars(module).items()):
                if name in _OF_TORCH or value is None or isinstance(value, _PLAIN):
                    continue  # most of them, and nothing to be found there
                if not callable(value) and not name.startswith(_OF_FSDP):
                    yield f"{path}.{name}".lstrip("."), value
