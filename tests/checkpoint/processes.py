"""Children that are killed, or whose calls to the file system fail, at a chosen moment."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.scandir", "os.truncate"}


def run_in_child(
    work: Callable[[], object],
    kill_after: float | None = None,
    once: Callable[[], bool] = lambda: True,
) -> int:
    """Runs `work` in a forked child; returns its exit code, or minus the signal that ended it.

    It is killed after some seconds, at the first moment after that when `once` holds.
    """
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    if kill_after is not None:
        try:
            time.sleep(kill_after)
            end = time.monotonic() + 10
            while not once() and time.monotonic() < end:
                pass
        finally:
            os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def on_call(folder: Path, number: int, act: Callable[[], None]) -> Callable[[], int]:
    """In this process, from now on: `act` before the number-th use of the file system in a folder.

    There is no way back, so call it in a child. Returns how many calls there were.
    """
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1
        if count == number:
            act()

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in EVENTS and arguments and str(arguments[0]).startswith(str(folder)):
            tick()

    sys.addaudithook(hook)
    real = os.fsync  # has no audit event

    def fsync(descriptor: int) -> None:
        tick()
        real(descriptor)

    os.fsync = fsync
    return lambda: count


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
