"""Files that appear whole or not at all: written beside their place, synced to the disk, renamed.

A killed process cannot leave half a file behind under the final name, and neither can a power cut:
the rename is only done once the contents are on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from growthring.checkpoint.errors import CheckpointError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def sync_file(file: IO[Any]) -> None:
    """Brings what was written to a file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Brings the names in a folder to the disk (there is no such thing on Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file as UTF-8, whole or not at all.

    Raises:
        CheckpointError: it cannot be written; a file that was there before is as it was.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_text(Path(folder.name) / "note.txt", "grown")
    >>> (Path(folder.name) / "note.txt").read_text()
    'grown'
    """

    def write(temporary: Path) -> None:
        with open(temporary, "xb") as file:
            file.write(text.encode("utf-8"))
            sync_file(file)

    write_whole(Path(path), write)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` make and sync a new file beside `path`, then gives it that name.

    Raises:
        CheckpointError: the system refused something; a file that was there before is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # of a killed process that had this number
        write(temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):  # the error on its way says more
            temporary.unlink(missing_ok=True)


def write_error(
    path: Path, error: OSError, kept: str = "What was there before", num_bytes: int | None = None
) -> CheckpointError:
    """Returns the error for what the system refused to write."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        with contextlib.suppress(OSError):
            needed = f"{num_bytes / 1e6:.1f} MB are needed, " if num_bytes is not None else ""
            reason += f" ({needed}{shutil.disk_usage(path.parent).free / 1e6:.1f} MB free)"
        advice = "Free some space there, or write to another disk."
    elif isinstance(error, PermissionError) or error.errno == errno.EROFS:
        advice = "Check who may write there."
    else:
        advice = "Check the path and the disk."
    return CheckpointError(f"cannot write '{path}': {reason}. {kept} is as it was. {advice}")
