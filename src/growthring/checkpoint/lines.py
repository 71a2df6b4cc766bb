"""A log of one JSON object per line that survives kills and forgets what a resumed run will do again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from growthring.checkpoint.errors import CheckpointError
from growthring.checkpoint.files import write_error
from growthring.checkpoint.jsontext import dumps, loads

_BLOCK = 1 << 16


class JsonLines:
    """A file to which objects are appended, one line each, at once and whole.

    Opening drops a last line that was cut off. NaN and infinities are written as "NaN", "Infinity"
    and "-Infinity", and read back as floats. One process at a time may write.

    Raises:
        CheckpointError: the file cannot be opened or written.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> log = JsonLines(Path(folder.name) / "metrics.jsonl")
    >>> log.append({"step": 1, "loss": 2.5})
    >>> position = log.position()  # goes into the checkpoint
    >>> log.append({"step": 2, "loss": float("nan")})
    >>> list(log)
    [{'step': 1, 'loss': 2.5}, {'step': 2, 'loss': nan}]
    >>> log.truncate(position)  # after a resume
    >>> list(log)
    [{'step': 1, 'loss': 2.5}]
    >>> log.close()
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        try:
            self._descriptor = os.open(self.path, flags, 0o666)
            self._cut(os.fstat(self._descriptor).st_size)
        except OSError as error:
            raise write_error(self.path, error) from error
        self._closed = False

    def append(self, value: Any) -> None:
        """Writes one object; it is with the system when this returns, and survives a kill.

        Raises:
            CheckpointError: it is not JSON, or cannot be written; the log is as it was then.
        """
        self._check_open()
        line = (dumps(value) + "\n").encode("utf-8")
        start = os.fstat(self._descriptor).st_size
        try:
            rest = memoryview(line)
            while rest:  # a nearly full disk takes a part
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            os.ftruncate(self._descriptor, start)
            raise write_error(self.path, error) from error

    def position(self) -> int:
        """Where the log ends, in bytes, for `truncate`; what is before is on the disk then."""
        self._check_open()
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise write_error(self.path, error) from error
        return os.fstat(self._descriptor).st_size

    def truncate(self, position: int) -> None:
        """Drops the lines from a position on.

        In the middle of a line, that line goes as well. A log that ends before the position stays as
        it is: what someone deleted cannot come back.
        """
        self._check_open()
        try:
            self._cut(min(position, os.fstat(self._descriptor).st_size))
        except OSError as error:
            raise write_error(self.path, error) from error

    def close(self) -> None:
        """Closes the file; nothing happens if it is closed."""
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)

    def __iter__(self) -> Iterator[Any]:
        return read_jsonl(self.path)

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise CheckpointError(f"the log '{self.path}' is closed.")

    def _cut(self, size: int) -> None:
        """Shortens the file to the whole lines within its first `size` bytes."""
        end = size
        with open(self.path, "rb") as file:
            while end > 0:
                start = max(0, end - _BLOCK)
                file.seek(start)
                found = file.read(end - start).rfind(b"\n")
                end = start + found + 1 if found >= 0 else start
                if found >= 0:
                    break
        if end != os.fstat(self._descriptor).st_size:
            os.ftruncate(self._descriptor, end)


def read_jsonl(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Yields the objects of a log, whole lines only; another process may be writing it.

    Raises:
        CheckpointError: it cannot be read, or a line is not JSON.

    >>> import tempfile
    >>> file = tempfile.NamedTemporaryFile()
    >>> _ = Path(file.name).write_bytes(b'{"step": 1}' + bytes([10]) + b'{"st')
    >>> list(read_jsonl(file.name))
    [{'step': 1}]
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    value = loads(line)
                except (ValueError, RecursionError) as error:
                    raise CheckpointError(
                        f"line {number} of '{os.fspath(path)}' is not JSON: {error}."
                    ) from error
                yield value
    except OSError as error:
        raise CheckpointError(
            f"cannot read '{os.fspath(path)}': {error.strerror or error}."
        ) from error
