"""What comes from strangers: files that may be devices or endless, texts that may steer a terminal."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader


def open_plain(path: str | os.PathLike[str]) -> BufferedReader:
    """Opens a regular file for reading; a link to one is followed.

    A FIFO would wait for its writer for ever, and a device may have no end.

    Raises:
        OSError: as the system gives it, or because it is another kind of file.
    """
    _check_mode(os.stat(path).st_mode)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = open(path, "rb", opener=lambda name, _: os.open(name, flags))  # noqa: SIM115
    try:
        _check_mode(os.fstat(file.fileno()).st_mode)  # it may have been exchanged
    except OSError:
        file.close()
        raise
    return file


def read_plain(path: str | os.PathLike[str], most: int) -> bytes:
    """The contents of a regular file of at most so many bytes.

    Raises:
        OSError: as the system gives it, or because it is another kind of file or too large.

    >>> read_plain("/dev/null", 100)
    Traceback (most recent call last):
    OSError: [Errno 22] it is not a regular file
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size) if size <= most else b""  # so much is allocated for it
    if size > most:
        raise OSError(
            errno.EFBIG, f"it has more than the {most:,} bytes that are read of such a file"
        )
    return content


def refuse_link(path: str | os.PathLike[str]) -> None:
    """Refuses a symbolic link where something is changed in place: it may lead out of the folder.

    Raises:
        OSError: it is one.
    """
    if os.path.islink(path):
        raise OSError(errno.ELOOP, "it is a symbolic link, and what it leads to would be changed")


def shown(text: str) -> str:
    r"""A text as a terminal may show it: without controls, but for the ends of lines and tabs.

    >>> shown("a\x1b[31m\n\tb\u202ec")
    'a?[31m\n\tb?c'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def _check_mode(mode: int) -> None:
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # to open a folder gives a better error
        raise OSError(errno.EINVAL, "it is not a regular file")
