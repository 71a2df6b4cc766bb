"""Ctrl-C while things are put back: it waits."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


def uninterrupted(act: Callable[[], None]) -> None:
    """Does something that may be repeated to its end, however often Ctrl-C is pressed; it counts afterwards."""
    is_done, interrupt = False, None
    while not is_done:
        try:
            with interrupts_deferred():
                act()
                is_done = True
        except KeyboardInterrupt as pressed:
            interrupt = pressed
    if interrupt is not None:
        raise interrupt


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Ctrl-C inside takes effect at the end."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pressed:
            signal.raise_signal(signal.SIGINT)
