"""Files of a run, written whole or not at all, and the error where the system refuses one."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from growthring.checkpoint.errors import CheckpointError
from growthring.files.atomic import write_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT)


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
    try:
        write_bytes(Path(path), text.encode("utf-8"))
    except OSError as error:
        raise write_error(Path(path), error) from error


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
