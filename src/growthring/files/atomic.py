"""Files that appear whole or not at all: written beside their place, synced to the disk, renamed.

A killed process cannot leave half a file behind under the final name, and neither can a power cut:
the rename is only done once the contents are on the disk.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


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


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` make and sync a new file beside `path`, then gives it that name.

    Raises:
        OSError: as the system gives it; a file that was there before is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # of a killed process that had this number
        write(temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):  # the error on its way says more
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file, whole or not at all.

    Raises:
        OSError: as the system gives it; a file that was there before is as it was.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_bytes(Path(folder.name) / "note.txt", b"grown")
    >>> (Path(folder.name) / "note.txt").read_bytes()
    b'grown'
    """

    def write(temporary: Path) -> None:
        with open(temporary, "xb") as file:
            file.write(content)
            sync_file(file)

    write_with(path, write)
