"""Sending a decision from one process of a run to the others: what they share stays where it is.

A decision may speak of the plan, which every process has: it is sent by name. Tensors travel over the CPU and
land on the receiver's own device.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def packed(value: Any, shared: Mapping[str, Any]) -> tuple[bytes, list[Tensor], list[bool]]:
    """A value as bytes, its tensors (on the CPU), and which of them were on another device."""
    stream = io.BytesIO()
    packer = _Packer(stream, shared)
    packer.dump(value)
    return stream.getvalue(), packer.tensors, packer.elsewhere


def unpacked(
    message: tuple[bytes, list[Tensor], list[bool]], shared: Mapping[str, Any], device: torch.device
) -> Any:
    """The value of a message from a process of the same run."""
    content, tensors, elsewhere = message
    placed = [t.to(device) if moved else t for t, moved in zip(tensors, elsewhere, strict=True)]
    return _Unpacker(io.BytesIO(content), shared, placed).load()


class _Packer(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, shared: Mapping[str, Any]) -> None:
        super().__init__(stream)
        self._names = {id(item): name for name, item in shared.items()}
        self.tensors: list[Tensor] = []
        self.elsewhere: list[bool] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, item: Any) -> tuple[str, Any] | None:
        if id(item) in self._names:
            return "shared", self._names[id(item)]
        if type(item) is not Tensor:
            return None
        if id(item) not in self._places:
            self._places[id(item)] = len(self.tensors)
            self.tensors.append(item.detach().cpu())
            self.elsewhere.append(item.device.type != "cpu")
        return "tensor", self._places[id(item)]


class _Unpacker(pickle.Unpickler):
    def __init__(
        self, stream: io.BytesIO, shared: Mapping[str, Any], tensors: list[Tensor]
    ) -> None:
        super().__init__(stream)
        self._shared, self._tensors = shared, tensors

    def persistent_load(self, key: tuple[str, Any]) -> Any:
        kind, which = key
        return self._shared[which] if kind == "shared" else self._tensors[which]
