"""A log of one JSON object per line that survives kills and forgets what a resumed run will do again."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from growthring.checkpoint.errors import CheckpointError
from growthring.checkpoint.files import write_error
from growthring.checkpoint.jsontext import MOST, dumps, loads
from growthring.files.foreign import open_plain, refuse_link

_BLOCK = 1 << 16


@dataclass(frozen=True)
class Mark:
    """A place in a log, and what is before it, so that a change of that shows.

    Attributes:
        size: in bytes.
        lines: how many.
        crc: their CRC-32.
    """

    size: int
    lines: int
    crc: int

    def check(self, path: str | os.PathLike[str]) -> None:
        """Refuses a log that does not begin as it did when this mark was made; what follows may be anything.

        Raises:
            CheckpointError: lines are missing or were changed, or it cannot be read.
        """
        current = mark_of(path, self.size)
        if current.size < self.size:
            raise CheckpointError(
                f"'{os.fspath(path)}' was shortened: it has {current.lines} whole lines ({current.size} bytes), "
                f"and had {self.lines} ({self.size} bytes) when the checkpoint was written."
            )
        if current != self:
            raise CheckpointError(
                f"'{os.fspath(path)}' was changed: its first {self.size} bytes are not the {self.lines} lines that "
                "were there when the checkpoint was written."
            )


def mark_of(path: str | os.PathLike[str], size: int) -> Mark:
    """What the first bytes of a log are; an absent one is empty.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        with open_plain(path) as file:
            return _mark(file, size)
    except FileNotFoundError:
        return Mark(0, 0, 0)
    except OSError as error:
        raise CheckpointError(
            f"cannot read '{os.fspath(path)}': {error.strerror or error}."
        ) from error


def _mark(file: IO[bytes], size: int) -> Mark:
    done = lines = crc = 0
    while done < size and (block := file.read(min(_BLOCK, size - done))):
        done, lines, crc = done + len(block), lines + block.count(b"\n"), zlib.crc32(block, crc)
    return Mark(done, lines, crc)


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
        self._mark = Mark(0, 0, 0)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        descriptor = None
        try:
            refuse_link(self.path)
            descriptor = os.open(self.path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError("it is not a regular file")
            self._descriptor = descriptor
            self._cut(os.fstat(descriptor).st_size)
        except OSError as error:
            if descriptor is not None:
                os.close(descriptor)
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
        self._mark = Mark(start + len(line), self._mark.lines + 1, zlib.crc32(line, self._mark.crc))

    def mark(self) -> Mark:
        """Where the log ends and what it holds, for `Mark.check` and `truncate`; that is on the disk then."""
        self.position()
        return self._mark

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
                newline = file.read(end - start).rfind(b"\n")
                end = start + newline + 1 if newline >= 0 else start
                if newline >= 0:
                    break
            file.seek(0)
            self._mark = _mark(file, end)
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
        with open_plain(path) as file:
            number = 0
            while (line := file.readline(MOST)).endswith(b"\n"):
                number += 1
                try:
                    value = loads(line)
                except ValueError as error:
                    raise CheckpointError(
                        f"line {number} of '{os.fspath(path)}' is not JSON: {error}."
                    ) from error
                yield value
            if len(line) == MOST:
                raise CheckpointError(f"line {number + 1} of '{os.fspath(path)}' has no end.")
    except OSError as error:
        raise CheckpointError(
            f"cannot read '{os.fspath(path)}': {error.strerror or error}."
        ) from error
