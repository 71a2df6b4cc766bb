"""Children that are killed, or whose calls to the file system fail, at a chosen moment."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.scandir", "os.truncate"}


def run_in_child(work: Callable[..., object], kill_after: int | None = None) -> int:
    """Runs `work` in a forked child; returns its exit code, or minus the signal that ended it.

    With `kill_after`, `work` is given a function to call whenever it has come a bit further. The child is
    killed when it has called it so often: at some moment after that, as it goes on all the while.
    """
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(told)
            work() if kill_after is None else work(lambda: os.write(tell, b"!"))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    os.close(tell)
    try:
        if kill_after is not None:
            while kill_after > 0 and (found := os.read(told, kill_after)):
                kill_after -= len(found)
            os.kill(
                pid, signal.SIGKILL
            )  # a child that ended by itself is still there to be waited for
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(told)


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
