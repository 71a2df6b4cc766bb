"""Named tensors and a JSON tree, as `encode` makes them, as the nested state that they came from."""

from __future__ import annotations

import base64
import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from growthring.checkpoint.errors import CheckpointError

Node = Any


def decode(
    tensors: Mapping[str, Tensor], tree: Node, device: torch.device | str | None = None
) -> Any:
    """The state that `encode` took apart; the tensors are used, not copied.

    Args:
        device: where tensors go that were on an accelerator. Those that were on the CPU (states of
            generators, the step counts of Adam) stay there. None leaves all where they are.

    Raises:
        CheckpointError: the tree is not one of `encode`, or not of these tensors.

    >>> decode({"momentum": torch.zeros(2)}, {"tuple": [{"tensor": "momentum"}, {"int": "0x7"}]})
    (tensor([0., 0.]), 7)
    """
    try:
        return _Decoder(tensors, device).decode(tree)
    except CheckpointError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        raise CheckpointError(
            f"the tree does not describe a state ({type(error).__name__}: {error}). It was not made "
            "by growthring.checkpoint.encode, or belongs to other tensors."
        ) from error


class _Decoder:
    def __init__(
        self, tensors: Mapping[str, Tensor], device: torch.device | str | None = None
    ) -> None:
        self._tensors = tensors
        self._device = device
        self._tags: dict[str, Callable[[Node], Any]] = {
            "dict": lambda node: {k: self.decode(v) for k, v in node["dict"].items()},
            "items": lambda node: dict(self._items(node["items"])),
            "OrderedDict": self._ordered,
            "Counter": lambda node: Counter(dict(self._items(node["Counter"]))),
            "tuple": lambda node: tuple(map(self.decode, node["tuple"])),
            "set": lambda node: set(map(self.decode, node["set"])),
            "frozenset": lambda node: frozenset(map(self.decode, node["frozenset"])),
            "int": lambda node: int(node["int"], 16),
            "float": lambda node: struct.unpack(">d", bytes.fromhex(node["float"]))[0],
            "str": lambda node: bytes.fromhex(node["str"]).decode("utf-8", "surrogatepass"),
            "bytes": lambda node: base64.b64decode(node["bytes"], validate=True),
            "Size": lambda node: torch.Size(node["Size"]),
            "dtype": lambda node: _dtype(node["dtype"]),
            "device": _device,
            "tensor": self._tensor,
            "array": self._array,
            "scalar": _scalar,
        }

    def decode(self, node: Node) -> Any:
        if type(node) is list:
            return [self.decode(item) for item in node]
        if type(node) is not dict:
            return node
        tag = next(iter(node), None)  # the tag comes first
        if tag not in self._tags:
            raise CheckpointError(
                f"the tree has an unknown tag {tag!r:.60}. It was not made by growthring, or by a newer "
                "version of it."
            )
        return self._tags[tag](node)

    def _items(self, pairs: list[list[Node]]) -> list[tuple[Any, Any]]:
        return [(self.decode(key), self.decode(value)) for key, value in pairs]

    def _ordered(self, node: Node) -> OrderedDict[Any, Any]:
        result = OrderedDict(self._items(node["OrderedDict"]))
        if "metadata" in node:  # Module.load_state_dict looks for it there
            result._metadata = self.decode(node["metadata"])  # type: ignore[attr-defined]
        return result

    def _tensor(self, node: Node) -> Tensor:
        name = node["tensor"]
        if name not in self._tensors:
            raise CheckpointError(
                f"the tensor {name!r:.200} is missing: the tree is of other tensors."
            )
        tensor = self._tensors[name]
        try:
            if "dtype" in node:
                tensor = tensor.view(_dtype(node["dtype"]))
            if "stride" in node:
                if (
                    math.prod(node["shape"]) != tensor.numel()
                ):  # strides of 0 make much out of little
                    raise RuntimeError(f"{tensor.numel()} values for the shape {node['shape']}")
                tensor = tensor.as_strided(node["shape"], node["stride"])
        except RuntimeError as error:
            raise CheckpointError(f"the tensor '{name}' is not as the tree says: {error}") from None
        if "device" in node and self._device is not None:
            tensor = tensor.to(self._device)
        return tensor

    def _array(self, node: Node) -> np.ndarray[Any, Any]:
        array = self._tensor(node["array"]).numpy()
        # A view, except for dtypes that torch lacks: those were stored as bytes.
        return array.reshape(-1).view(_numpy_dtype(node["dtype"])).reshape(node["shape"])


def _device(node: Node) -> torch.device:
    try:
        return torch.device(node["device"])
    except RuntimeError as error:
        raise CheckpointError(f"torch has no such device: {error}") from None


def _scalar(node: Node) -> Any:
    dtype = _numpy_dtype(node["scalar"])
    return np.ndarray((), dtype, bytes.fromhex(node["bytes"]))[()]


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"torch has no dtype '{name}'.")
    return dtype


def _numpy_dtype(text: str) -> np.dtype[Any]:
    dtype = np.dtype(text)
    if dtype.hasobject or dtype.kind == "V":
        raise CheckpointError(f"a numpy dtype '{text}' is not plain.")
    return dtype
