"""Equality to the bit and to the type, for any nesting."""

import math
import struct
from typing import Any

import numpy as np
import torch
from torch import Tensor


def assert_same(a: Any, b: Any, path: str = "state", ordered: bool = True) -> None:
    if isinstance(a, torch.nn.Parameter):
        a = a.detach()
    assert type(a) is type(b), f"{path}: {type(a)} became {type(b)}"
    if isinstance(a, Tensor):
        assert (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device), path
        assert tensor_bytes(a) == tensor_bytes(b), path
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), path
        assert a.tobytes() == b.tobytes(), path
    elif isinstance(a, np.generic):
        assert a.dtype == b.dtype, path
        assert a.tobytes() == b.tobytes(), path
    elif isinstance(a, dict):
        keys = [list(map(repr, a)), list(map(repr, b))]
        if not ordered:
            keys = list(map(sorted, keys))
        assert keys[0] == keys[1], f"{path}: keys"
        for key, x in a.items():
            assert_same(x, b[key], f"{path}[{key!r}]", ordered)
        if hasattr(a, "_metadata"):
            assert_same(a._metadata, b._metadata, f"{path}._metadata")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}[{i}]", ordered)
    elif isinstance(a, float):
        assert struct.pack("<d", a) == struct.pack("<d", b), path
        assert math.isnan(a) or a == b
    else:
        assert a == b, path


def tensor_bytes(tensor: Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()
