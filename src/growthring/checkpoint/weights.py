"""Plain model weights as one safetensors file, which any other program can read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from growthring.checkpoint.errors import CheckpointError
from growthring.checkpoint.files import write_error
from growthring.checkpoint.tensorfile import (
    DTYPES,
    read_metadata,
    read_tensors,
    write_tensors,
)
from growthring.files.atomic import write_with


def save_weights(
    path: str | os.PathLike[str],
    state_dict: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a model's state_dict as a safetensors file, whole or not at all.

    Tied tensors are written under each of their names, so that loading needs no knowledge of them.

    Args:
        metadata: strings for the header; "format": "pt", which transformers asks for, is added.

    Raises:
        CheckpointError: something is not a tensor that the format has, or it cannot be written.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name) / "model.safetensors"
    >>> save_weights(path, torch.nn.Linear(2, 1, bias=False).state_dict(), {"stage": "8"})
    >>> {name: tuple(tensor.shape) for name, tensor in load_weights(path).items()}
    {'weight': (1, 2)}
    """
    path = Path(path)
    for name, tensor in state_dict.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise CheckpointError(f"cannot save weights under the name {name!r}.")
        if not isinstance(tensor, Tensor):
            raise CheckpointError(
                f"cannot save '{name}': it is of type {type(tensor).__name__}, weights are tensors."
            )
        if tensor.dtype not in DTYPES or tensor.layout != torch.strided or tensor.is_meta:
            kind = "meta" if tensor.is_meta else f"{tensor.dtype}, {tensor.layout}"
            raise CheckpointError(
                f"cannot save '{name}' ({kind}): safetensors has no such tensors. Convert it first."
            )
    strings = {"format": "pt", **(metadata or {})}
    for key, value in strings.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise CheckpointError(f"metadata[{key!r}]={value!r}: safetensors takes strings only.")
    try:
        write_with(path, lambda temporary: write_tensors(temporary, state_dict, strings))
    except OSError as error:
        raise write_error(path, error) from error


def load_weights(
    path: str | os.PathLike[str], device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Reads the tensors of a safetensors file, whoever wrote it.

    Raises:
        CheckpointError: it cannot be read, or is not a whole safetensors file.
    """
    try:
        tensors = read_tensors(Path(path))
    except (OSError, CheckpointError) as error:
        raise _read_error(path, error) from error
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def weights_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Reads the strings that a safetensors file carries beside its tensors.

    Raises:
        CheckpointError: it cannot be read, or is not a safetensors file.
    """
    try:
        return read_metadata(Path(path))
    except (OSError, CheckpointError) as error:
        raise _read_error(path, error) from error


def _read_error(path: str | os.PathLike[str], error: Exception) -> CheckpointError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return CheckpointError(f"cannot read '{os.fspath(path)}': {reason.rstrip('.')}.")
