"""One process per run, by a lock of the operating system: whoever dies, however, lets go of it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from growthring.checkpoint.errors import CheckpointError, RunLockedError
from growthring.checkpoint.files import write_error
from growthring.files.foreign import read_plain, refuse_link

if sys.platform == "win32":
    import msvcrt

    _FAR = 1 << 30  # locked bytes cannot be read by others, so lock one behind the text

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


_TAKEN = (errno.EAGAIN, errno.EACCES, errno.EDEADLK, errno.EWOULDBLOCK)
_held: set[RunLock] = set()


class RunLock:
    """Keeps other processes from a run while it is held; use it in a `with` statement.

    The lock is on RUN/lock, which says who holds it and stays behind. A killed process has let go of
    it at once, even if data loaders that it forked live on.

    Raises:
        RunLockedError: another process (or this one) holds it; has its `pid` and `host`.
        CheckpointError: the file cannot be made or locked.

    >>> import tempfile
    >>> run = tempfile.TemporaryDirectory()
    >>> with RunLock(run.name) as lock:
    ...     lock.held
    True
    >>> lock.held
    False
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / "lock"
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def acquire(self) -> None:
        """Takes the lock, or raises at once."""
        if self.held:
            raise RunLockedError(
                f"this process holds '{self.path}' already.", os.getpid(), socket.gethostname()
            )
        descriptor = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            refuse_link(self.path)
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            descriptor = os.open(self.path, flags, 0o666)
            try:
                _lock(descriptor)
            except OSError as error:
                raise self._refusal(error) from None
            owner = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}) + "\n"
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, owner.encode())
        except OSError as error:
            if descriptor is not None:
                os.close(descriptor)
            raise write_error(self.path, error, "The run") from error
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise
        self._descriptor = descriptor
        _held.add(self)

    def release(self) -> None:
        """Lets go of the lock; nothing happens if it is not held."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            _held.discard(self)
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)  # no owner; the file itself stays, or two could hold it
            os.close(descriptor)

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *raised: object) -> None:
        self.release()

    def _refusal(self, error: OSError) -> CheckpointError:
        if error.errno not in _TAKEN:
            return CheckpointError(
                f"cannot lock '{self.path}': {error.strerror}. Put the run on a file system with "
                "locks (some network file systems have none)."
            )
        owner = self._owner()
        pid, host = owner.get("pid"), owner.get("host")
        who = f"process {pid} on {host}" if owner else "another process"
        if pid == os.getpid() and host == socket.gethostname():
            who = f"this very process ({pid})"
        return RunLockedError(
            f"{who} works on the run '{self.path.parent}'. Wait for it or stop it; or give this run "
            "another folder.",
            pid,
            host,
        )

    def _owner(self) -> dict[str, Any]:
        try:
            owner = json.loads(read_plain(self.path, 4096))
            return {"pid": int(owner["pid"]), "host": str(owner["host"])}
        except (OSError, ValueError, LookupError, TypeError, RecursionError, OverflowError):
            return {}  # it was just being written


def _let_go_in_child() -> None:
    # A forked child shares the lock, and would hold on to it when its parent is killed. To close its
    # copy does not unlock the parent's.
    for lock in list(_held):
        if lock._descriptor is not None:
            os.close(lock._descriptor)
            lock._descriptor = None
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
