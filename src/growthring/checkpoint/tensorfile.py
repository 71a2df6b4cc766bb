"""Tensors in a safetensors file that is on the disk, with a checksum, and read into memory of their own."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from growthring.checkpoint.errors import CheckpointError
from growthring.files.atomic import sync_file
from growthring.files.foreign import open_plain

DTYPES = frozenset(  # of the format; float4_e2m1fn_x2 is left out, as its shape counts half bytes
    {torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64}
    | {torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e4m3fn, torch.float8_e4m3fnuz}
    | {torch.float8_e8m0fnu, torch.float16, torch.bfloat16, torch.float32, torch.float64}
    | {torch.complex64}
)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """Writes a new safetensors file, down to the disk; returns its size and CRC-32.

    Raises:
        CheckpointError: the library refuses it.
        OSError: as the system gives it; a part of the file may be left.
    """
    plain: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        # The library refuses tied tensors; each of their names gets the data here.
        plain[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    # The library renames a file that only its owner may read; this one has the mode of any new file.
    path.touch(exist_ok=False)
    mode = path.stat().st_mode
    try:
        save_file(plain, path, dict(metadata) if metadata else None)
    except SafetensorError as error:
        # The library gives what the system said as text: "I/O error: File too large (os error 27)".
        if match := re.search(r": ([^:]+) \(os error (\d+)\)", str(error)):
            code = int(match[2])
            raise OSError(code, match[1], None, code) from error  # the last is for Windows
        raise CheckpointError(f"cannot write '{path}': {error}.") from error
    path.chmod(mode)
    with open(path, "r+b") as file:  # Windows syncs only what is open for writing
        crc = _crc32(file)
        sync_file(file)
        return file.tell(), crc


def read_tensors(path: Path, crc: int | None = None) -> dict[str, Tensor]:
    """Reads a safetensors file into tensors with a memory of their own, in the order of the file.

    Args:
        crc: the CRC-32 that the file must have.

    Raises:
        CheckpointError: it is not a whole safetensors file, or has another checksum.
        OSError: as the system gives it.
    """
    with open_plain(path) as file:  # also because errors of the library have no errno
        if crc is not None and (checksum := _crc32(file)) != crc:
            raise CheckpointError(
                f"'{path.name}' is corrupt: its CRC-32 is {checksum:08x}, it was written with {crc:08x}."
            )
    try:
        with safe_open(path, "pt") as tensors:
            # The library's tensors map the file, which may be pruned or cut short while they are in
            # use: to touch them would then end the process (SIGBUS), and Windows keeps such files.
            return {name: tensors.get_tensor(name).clone() for name in tensors.offset_keys()}
    except SafetensorError as error:
        raise _foreign(error) from error


def read_metadata(path: Path) -> dict[str, str]:
    """Returns the strings that a safetensors file carries beside its tensors."""
    try:
        with open_plain(path), safe_open(path, "pt") as file:
            return dict(file.metadata() or {})
    except SafetensorError as error:
        raise _foreign(error) from error


def _crc32(file: IO[bytes]) -> int:
    crc = 0
    while chunk := file.read(1 << 20):
        crc = zlib.crc32(chunk, crc)
    return crc


def _foreign(error: SafetensorError) -> CheckpointError:
    return CheckpointError(f"not a safetensors file, or a truncated one ({error}).")
