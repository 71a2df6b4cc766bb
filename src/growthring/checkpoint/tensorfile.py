"""The safetensors format, written and read without a copy and with a checksum on the way.

The library of that name writes the same bytes, but refuses tied tensors, has no checksum, and does not
tell a full disk from a wrong argument. The file is: the length of the header as 8 bytes, the header
(JSON: dtype, shape and place of each tensor), the tensors one after the other, little-endian.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from growthring.checkpoint.errors import CheckpointError
from growthring.checkpoint.files import sync_file

_TORCH_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
    "C64": "complex64",
}
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, attribute)
    for name, attribute in _TORCH_NAMES.items()
    if hasattr(torch, attribute)
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

_BUFFER = 1 << 20  # small tensors are gathered; larger ones pass the buffer by
_MAX_HEADER = 100_000_000  # as in the library


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """Writes a new safetensors file, down to the disk; returns its size and CRC-32.

    Raises:
        OSError: as the system gives it; a part of the file may be left.
    """
    if sys.byteorder != "little":
        raise CheckpointError("safetensors files are little-endian; this machine is not.")
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    # Wide dtypes first, as in the library, so that every tensor is aligned in a mapped file.
    names = sorted(tensors, key=lambda name: -tensors[name].element_size())
    position = 0
    for name in names:
        tensor = tensors[name]
        end = position + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    opening = len(text).to_bytes(8, "little") + text
    with open(path, "xb", buffering=_BUFFER) as file:
        file.write(opening)
        crc = zlib.crc32(opening)
        for name in names:
            data = _bytes_of(tensors[name])
            file.write(data)
            crc = zlib.crc32(data, crc)
        sync_file(file)
    return len(opening) + position, crc


def read_tensors(path: Path, crc: int | None = None) -> dict[str, Tensor]:
    """Reads a safetensors file into tensors with a memory of their own, in the order of the header.

    Args:
        crc: the CRC-32 that the file must have.

    Raises:
        CheckpointError: it is not a whole safetensors file, or has another checksum.
        OSError: as the system gives it.
    """
    size = path.stat().st_size
    with open(path, "rb", buffering=_BUFFER) as file:
        header, opening = _read_header(file, size)
        header.pop("__metadata__", None)
        found = zlib.crc32(opening)
        tensors = {}
        for name, dtype, shape, num_bytes in _layout(header, size - len(opening)):
            memory = torch.empty(num_bytes, dtype=torch.uint8)
            data = memory.numpy().data
            if file.readinto(data) != num_bytes:  # type: ignore[attr-defined]
                raise CheckpointError(f"'{path.name}' became shorter while it was read.")
            if crc is not None:
                found = zlib.crc32(data, found)
            tensors[name] = memory.view(dtype).reshape(shape)
    if crc is not None and found != crc:
        raise CheckpointError(
            f"'{path.name}' is corrupt: its CRC-32 is {found:08x}, it was written with {crc:08x}."
        )
    return tensors


def read_metadata(path: Path) -> dict[str, str]:
    """Returns the strings that a safetensors file carries beside its tensors."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        header, _ = _read_header(file, size)
    metadata = header.get("__metadata__", {})
    return dict(metadata) if isinstance(metadata, dict) else {}


def _bytes_of(tensor: Tensor) -> memoryview:
    # One tensor at a time comes from its device, or is made contiguous.
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _read_header(file: BinaryIO, size: int) -> tuple[dict[str, Any], bytes]:
    """Returns the header, and the bytes up to its end."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(size - 8, _MAX_HEADER):
        raise CheckpointError("not a safetensors file, or a truncated one: it ends in the header.")
    text = file.read(length)
    try:
        header = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not a safetensors file: its header is no JSON ({error}).") from None
    if not isinstance(header, dict):
        raise CheckpointError("not a safetensors file: its header is no JSON object.")
    return header, start + text


def _layout(
    header: dict[str, Any], num_bytes: int
) -> list[tuple[str, torch.dtype, list[int], int]]:
    """Returns (name, dtype, shape, bytes) in the order of the data, which must have no gaps."""
    layout = []
    position = 0
    try:
        entries = sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"]))
        for name, entry in entries:
            start, end = entry["data_offsets"]
            dtype, shape = DTYPES[entry["dtype"]], [int(n) for n in entry["shape"]]
            if start != position or end - start != math.prod(shape) * dtype.itemsize or end < start:
                raise ValueError(f"the place of '{name}' does not fit its shape")
            if any(n < 0 for n in shape):
                raise ValueError(f"'{name}' has a negative size")
            layout.append((name, dtype, shape, end - start))
            position = end
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"not a safetensors file that can be read here ({type(error).__name__}: {error})."
        ) from None
    if position != num_bytes:
        raise CheckpointError(
            f"a truncated or overlong safetensors file: {num_bytes} bytes of tensors instead of "
            f"{position}."
        )
    return layout
