"""A nested state as named tensors and a JSON tree; `decode` is the way back.

In the tree, None, bool, str and lists stand for themselves, and so do finite floats and ints of 64
bits: JSON as Python writes it holds them exactly. Everything else is an object with one tag:

    {"dict": {key: node}}   {"items": [[key, node], ...]}   where a key is not a str
    {"tensor": name}        with "shape" and "stride", "dtype" or "device" where the file cannot say it
    {"array": node, "dtype": "<f8"}   {"scalar": "<f8", "bytes": hex}     of numpy
    {"tuple": [node, ...]}  ... and one tag for each of the types in the table of `decode.py`
"""

from __future__ import annotations

import base64
import math
import struct
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from growthring.checkpoint.errors import CheckpointError
from growthring.checkpoint.tensorfile import DTYPES

_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_TORCH_CLASSES = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


def encode(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Returns the tensors of a state by name, and the rest as a tree that `json` can write.

    Tensors are not copied where that can be avoided: write them before the next training step. Tied
    ones are separate entries. A defaultdict becomes a dict, a Parameter a plain tensor.

    Raises:
        CheckpointError: something is not data (a function, a module); the message has its path.

    >>> tensors, tree = encode({"momentum": torch.zeros(2), "betas": (0.9, 0.999)})
    >>> tensors
    {'momentum': tensor([0., 0.])}
    >>> tree
    {'dict': {'momentum': {'tensor': 'momentum'}, 'betas': {'tuple': [0.9, 0.999]}}}
    """
    encoder = _Encoder()
    try:
        tree = encoder.encode(state, "")
    except RecursionError:
        raise CheckpointError(
            "cannot save the state: it is nested too deep. Save a flatter one."
        ) from None
    return encoder.tensors, tree


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._open: set[int] = set()  # containers around the present value, to find cycles

    def encode(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            # Other readers of JSON have 64 bits, and Python refuses to parse thousands of digits.
            return value if -(2**63) <= value < 2**63 else {"int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if kind is str:
            return value if _is_unicode(value) else {"str": _surrogates(value)}
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if kind in _MAPPINGS or kind in (list, tuple, set, frozenset):
            if id(value) in self._open:
                raise _error(path, "it contains itself", "Save the parts once, without the cycle.")
            self._open.add(id(value))
            node = self._container(value, path)
            self._open.remove(id(value))
            return node
        return self._leaf(value, path)

    def _container(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            return self._mapping(value, path)
        nodes = [  # a data order is a long list of small numbers: no path for each
            item if type(item) is int and abs(item) < 2**63 else self.encode(item, f"{path}[{i}]")
            for i, item in enumerate(value)
        ]
        if isinstance(value, list):
            return nodes
        if isinstance(value, (set, frozenset)):
            nodes.sort(key=repr)  # the order of a set of str differs between processes
        return {type(value).__name__: nodes}

    def _mapping(self, value: dict[Any, Any], path: str) -> Any:
        kind = "dict" if type(value) is defaultdict else type(value).__name__
        if kind == "dict" and all(type(key) is str and _is_unicode(key) for key in value):
            # OrderedDict and Counter always take the form of items: one tag, one form.
            return {"dict": {key: self.encode(v, _join(path, key)) for key, v in value.items()}}
        items = [
            [self._key(key, _join(path, key)), self.encode(v, _join(path, key))]
            for key, v in value.items()
        ]
        node: dict[str, Any] = {"items" if kind == "dict" else kind: items}
        if hasattr(value, "_metadata"):  # of Module.state_dict(): versions of the modules
            node["metadata"] = self.encode(value._metadata, _join(path, "_metadata"))
        return node

    def _key(self, key: Any, path: str) -> Any:
        if key is None or type(key) in (str, int, bool, float):
            return self.encode(key, path)
        if type(key) is tuple:
            return {"tuple": [self._key(part, path) for part in key]}
        raise _error(
            path,
            f"a key is of type {_type_name(key)}",
            "Keys may be str, int, bool, float, None and tuples of these.",
        )

    def _tensor(self, value: Tensor, path: str) -> Any:
        if type(value) not in _TORCH_CLASSES or value.layout != torch.strided:
            what = _type_name(value) if type(value) not in _TORCH_CLASSES else str(value.layout)
            raise _error(
                path, f"it is a tensor of kind {what}", "Save its plain tensors (.values(), …)."
            )
        if value.is_meta or value.is_quantized:
            what = "has no data (meta)" if value.is_meta else "is quantized"
            raise _error(path, f"the tensor {what}", "Save a plain tensor with data.")
        value = value.detach().resolve_conj().resolve_neg()
        if not _in_memory_order(value).is_contiguous():
            value = value.contiguous()  # it has gaps or overlaps
        stored = _in_memory_order(value)
        known = stored.dtype in DTYPES
        node: dict[str, Any] = {}
        if not known or value.stride() != _plain_stride(value.shape):
            # Channels-last, say: it comes back with its strides, as some kernels round by them.
            node |= {"shape": list(value.shape), "stride": list(value.stride())}
        if not known:  # complex128: safetensors has no name for it
            node["dtype"] = _dtype_name(stored.dtype)
            stored = stored.reshape(-1).view(torch.uint8)
        if value.device.type != "cpu":
            node["device"] = str(value.device)
        return {"tensor": self._add(stored, path), **node}

    def _add(self, tensor: Tensor, path: str) -> str:
        # A header is UTF-8, and a key 'a.b' has the path of a nested 'b'.
        wanted = path.encode("utf-8", "backslashreplace").decode("utf-8") or "state"
        name, count = wanted, 1
        while name in self.tensors or name == "__metadata__":
            count += 1
            name = f"{wanted}~{count}"
        self.tensors[name] = tensor
        return name

    def _leaf(self, value: Any, path: str) -> Any:
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode("ascii")}
        if isinstance(value, torch.Size):
            return {"Size": list(value)}
        if isinstance(value, torch.dtype):
            return {"dtype": _dtype_name(value)}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, (np.generic, np.ndarray)):
            return self._numpy(value, path)
        raise _error(path, f"{_what(value)} is not data", _advice(value))

    def _numpy(self, value: np.generic | np.ndarray[Any, Any], path: str) -> Any:
        if value.dtype.hasobject or value.dtype.fields is not None or value.dtype.kind == "V":
            raise _error(path, f"a numpy dtype {value.dtype} is not plain", "Save its columns.")
        if isinstance(value, np.generic):
            return {"scalar": value.dtype.str, "bytes": value.tobytes().hex()}
        if type(value) is not np.ndarray:
            raise _error(path, f"{_what(value)} is not a plain array", "Save its plain arrays.")
        array = np.ascontiguousarray(value).reshape(value.shape)  # it makes 0 axes 1
        if not array.flags.writeable:
            array = array.copy()  # torch warns of tensors that must not be written to
        try:
            tensor = torch.from_numpy(array)
        except (TypeError, ValueError):  # strings, dates, the other byte order
            tensor = torch.from_numpy(array.reshape(-1).view(np.uint8))
        node = self._tensor(tensor, path)
        return {"array": node, "dtype": array.dtype.str, "shape": list(array.shape)}


def _in_memory_order(value: Tensor) -> Tensor:
    stride = value.stride()
    return value.permute(sorted(range(value.dim()), key=lambda i: -stride[i]))


def _plain_stride(shape: torch.Size) -> tuple[int, ...]:
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def _is_unicode(text: str) -> bool:
    """Whether JSON keeps it: two surrogates in a row would come back as one character."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def _surrogates(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").hex()


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _join(path: str, key: Any) -> str:
    if type(key) is str:
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]"


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _what(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    return f"the {_type_name(value)} '{name}'" if name else f"a {_type_name(value)}"


def _advice(value: Any) -> str:
    if isinstance(value, torch.Generator):
        return "Save its get_state()."
    if hasattr(value, "state_dict") and not isinstance(value, type):
        return "Save its state_dict()."
    if callable(value):
        return "Leave code out of the state, and set it again when resuming."
    return "Save numbers, strings, tensors, arrays, and dicts, lists, tuples and sets of these."


def _error(path: str, problem: str, advice: str) -> CheckpointError:
    where = f"'{path}'" if path else "the state"
    return CheckpointError(f"cannot save {where}: {problem}. {advice}")
