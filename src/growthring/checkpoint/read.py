"""The newest checkpoint of a run that is whole."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from growthring.checkpoint.decode import decode
from growthring.checkpoint.errors import CheckpointError
from growthring.checkpoint.folders import (
    FORMAT,
    STATE,
    TENSORS,
    VERSION,
    candidates,
    checkpoints_folder,
)
from growthring.checkpoint.jsontext import MOST, unique
from growthring.checkpoint.tensorfile import read_tensors
from growthring.files.foreign import read_plain


@dataclass(frozen=True)
class Checkpoint:
    """What `read_checkpoint` found.

    Attributes:
        step: of the run when it was written.
        state: what `write_checkpoint` was given.
        path: of its folder.
        metadata: what was written beside the state.
        skipped: newer ones that could not be used, with the reasons, newest first.
        versions: of the libraries that wrote it.
    """

    step: int
    state: Any
    path: Path
    metadata: dict[str, Any]
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


class _NewerError(CheckpointError):
    """Not damaged, but of a later growthring: to skip it would lose work."""


def read_checkpoint(
    folder: str | os.PathLike[str], step: int | None = None, device: torch.device | str = "cpu"
) -> Checkpoint:
    """Reads the newest checkpoint of a run that is whole, or that of a step.

    A truncated, corrupt or foreign one is passed over for the one before; show `skipped` to the user.

    Args:
        folder: of the run.
        step: read this one and no other.
        device: where tensors go that were on an accelerator when they were written.

    Raises:
        CheckpointError: none can be used, or the newest was written by a later growthring.

    >>> from growthring.checkpoint import write_checkpoint
    >>> import tempfile
    >>> run = tempfile.TemporaryDirectory()
    >>> _ = write_checkpoint(run.name, {"weight": torch.ones(2)}, step=12)
    >>> checkpoint = read_checkpoint(run.name)
    >>> checkpoint.step, checkpoint.state
    (12, {'weight': tensor([1., 1.])})
    """
    parent = checkpoints_folder(folder)
    checkpoints = candidates(folder)
    wanted = [(s, path) for s, path in checkpoints if step is None or s == step]
    if not wanted:
        steps = ", ".join(str(s) for s in sorted({s for s, _ in checkpoints}))
        raise CheckpointError(
            f"there is no checkpoint {f'of step {step} ' if step is not None else ''}in '{parent}'"
            + (f"; there are those of steps {steps}." if steps else ".")
        )
    skipped: list[tuple[Path, str]] = []
    for number, path in wanted:
        try:
            return _read(path, number, device, skipped)
        except _NewerError:
            raise
        except CheckpointError as error:
            skipped.append((path, str(error)))
        except OSError as error:
            skipped.append((path, f"cannot be read: {error.strerror or error}."))
        except (LookupError, TypeError, ValueError) as error:
            reason = f"'{STATE}' lacks a field ({type(error).__name__}: {error})."
            skipped.append((path, reason))
    reasons = "".join(f"\n  {path.name}: {reason}" for path, reason in skipped)
    raise CheckpointError(f"no checkpoint in '{parent}' can be used:{reasons}")


def _read(
    path: Path, step: int, device: torch.device | str, skipped: list[tuple[Path, str]]
) -> Checkpoint:
    document = _open_sealed(read_plain(path / STATE, MOST))
    if document.get("format") != FORMAT:
        raise CheckpointError(f"'{STATE}' is not of a growthring checkpoint.")
    if document["version"] != VERSION:
        raise _NewerError(
            f"'{path}' is of version {document['version']} of the format, this growthring reads "
            f"{VERSION}. Update growthring, or read an older checkpoint with step=…"
        )
    if document["step"] != step:
        raise CheckpointError(f"'{STATE}' is of step {document['step']}: the folder was renamed.")
    entry = document["tensors"]
    size = (path / TENSORS).stat().st_size
    if size != entry["size"]:  # without reading it
        raise CheckpointError(
            f"'{TENSORS}' is truncated or overlong: {size} bytes instead of {entry['size']}."
        )
    tensors = read_tensors(path / TENSORS, int(entry["crc32"], 16))
    state = decode(tensors, document["tree"], device)
    return Checkpoint(step, state, path, document["metadata"], skipped, document["versions"])


def _open_sealed(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"'{STATE}' is truncated or corrupt: {error}.") from None
    if not isinstance(document, dict) or "crc32" not in document:
        raise CheckpointError(f"'{STATE}' is not of a growthring checkpoint.")
    crc = document.pop("crc32")
    if crc != f"{zlib.crc32(json.dumps(document).encode()):08x}":
        raise CheckpointError(f"'{STATE}' is corrupt: its CRC-32 does not fit.")
    return document
