"""Checkpoints into the folder of a run: whole or not at all, and only the last few are kept."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import warnings
import zlib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from growthring.checkpoint.encode import encode
from growthring.checkpoint.errors import CheckpointError
from growthring.checkpoint.files import write_error
from growthring.checkpoint.folders import (
    FORMAT,
    STATE,
    TENSORS,
    VERSION,
    candidates,
    checkpoints_folder,
    delete_folder,
    leftovers,
    new_folder,
    step_folder,
)
from growthring.checkpoint.tensorfile import write_tensors
from growthring.errors import InputError
from growthring.files.atomic import sync_file, sync_folder
from growthring.files.foreign import refuse_link


def write_checkpoint(
    folder: str | os.PathLike[str],
    state: Any,
    step: int,
    keep: int | None = 3,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the state of a run at a step, then deletes all but the newest checkpoints.

    It is on the disk, power cuts included, before it gets its name and before an older one goes. One
    of the same step is replaced. One process at a time may do this to a run (`RunLock`).

    Args:
        folder: of the run; the checkpoint is RUN/checkpoints/step-000001234.
        state: anything that `encode` takes.
        keep: how many stay, the one just written included; None keeps all.
        metadata: what other programs may want to read; plain JSON, unlike the state.

    Returns:
        The folder of the checkpoint.

    Raises:
        CheckpointError: the state is not data, or the system refused something (a full disk, say);
            all older checkpoints are as they were then, and there is no part of a new one.

    >>> import tempfile
    >>> run = tempfile.TemporaryDirectory()
    >>> write_checkpoint(run.name, {"weight": torch.ones(2)}, step=12).name
    'step-000000012'
    """
    _check(step, keep)
    parent = checkpoints_folder(folder)
    target = step_folder(parent, step)
    tensors, tree = encode(state)
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "step": step,
        "versions": _versions(),
        "metadata": _plain_metadata(metadata),
        "tensors": {},
        "tree": tree,
    }
    temporary: Path | None = None
    try:
        refuse_link(parent)
        if not parent.exists():
            parent.mkdir(parents=True, exist_ok=True)
            sync_folder(parent.parent)
        _clean(parent)  # first: on a full disk this is what makes room
        temporary = new_folder(parent, step)
        size, crc = write_tensors(temporary / TENSORS, tensors)
        document["tensors"] = {"file": TENSORS, "size": size, "crc32": f"{crc:08x}"}
        with open(temporary / STATE, "xb") as file:
            file.write(seal(document))
            sync_file(file)
        sync_folder(temporary)
        _put(temporary, target)
    except BaseException as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        raise write_error(target, error, "Every older checkpoint", num_bytes) from error
    _prune(folder, target, keep)
    return target


def discard_after(folder: str | os.PathLike[str], step: int) -> list[Path]:
    """Deletes the checkpoints of later steps, newest first; returns what they were.

    For a run that goes back to a step: what it did after that no longer counts, and the newest
    checkpoint has to be one that it wrote.

    >>> discard_after("no/such/run", 100)
    []
    """
    gone = []
    for other, path in candidates(folder):
        if other > step:
            try:
                delete_folder(path)
            except OSError as error:
                raise write_error(path, error, "Every older checkpoint") from error
            gone.append(path)
    return gone


def seal(document: dict[str, Any]) -> bytes:
    """Returns a JSON document with the CRC-32 of the rest in its last field, "crc32".

    The rest is what `json.dumps` makes of it with its default settings, so that a file that was
    indented by someone still fits.

    >>> seal({"step": 1})
    b'{"step": 1, "crc32": "3a87913d"}'
    """
    text = json.dumps(document).encode("ascii")
    return text[:-1] + f', "crc32": "{zlib.crc32(text):08x}"}}'.encode("ascii")


def _check(step: Any, keep: Any) -> None:
    if type(step) is not int or step < 0:
        raise InputError(f"step={step!r}: a checkpoint needs a whole number of steps, 0 or more.")
    if keep is not None and (type(keep) is not int or keep < 1):
        raise InputError(f"keep={keep!r}: keep at least 1 checkpoint, or None for all.")


def _plain_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        text = json.dumps(dict(metadata or {}), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the metadata is not plain JSON: {error}. Put it into the state instead."
        ) from None
    result: dict[str, Any] = json.loads(text)
    return result


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("growthring", "numpy"):
        with contextlib.suppress(PackageNotFoundError):  # run from a source folder
            versions[package] = version(package)
    return versions


def _put(temporary: Path, target: Path) -> None:
    """Gives the written folder its name; a whole checkpoint of that step is there at any moment."""
    old = target.with_name(f"{target.name}.old")
    moved = False
    if target.exists():
        if old.exists():
            delete_folder(old)  # of a killed process; the target is newer
        os.rename(target, old)
        moved = True
    try:
        os.rename(temporary, target)
    except BaseException:
        if moved:
            os.rename(old, target)
        raise
    sync_folder(target.parent)


def _clean(parent: Path) -> None:
    for path in leftovers(parent):
        shutil.rmtree(path, ignore_errors=True)


def _prune(run: str | os.PathLike[str], written: Path, keep: int | None) -> None:
    try:
        paths = [path for _, path in candidates(run)]
    except CheckpointError as error:
        warnings.warn(f"the checkpoint '{written}' is written, but {error}", stacklevel=3)
        return
    replaced = [path for path in paths if path.suffix == ".old" and path.with_suffix("") in paths]
    others = [path for path in paths if path != written and path not in replaced]
    surplus = others[keep - 1 :] if keep is not None else []
    for path in replaced + surplus[::-1]:  # the oldest first
        try:
            delete_folder(path)
        except OSError as error:
            warnings.warn(
                f"the checkpoint '{written}' is written, but '{path}' could not be deleted: "
                f"{error.strerror or error}.",
                stacklevel=3,
            )
