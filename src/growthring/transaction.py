"""All or nothing: an action that an error or an interrupt takes back entirely."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from growthring.graph.running import own_settings
from growthring.graph.snapshot import Snapshot

Result = TypeVar("Result")


def all_or_nothing(roots: Iterable[Any], act: Callable[[], Result]) -> Result:
    """What `act` returns; if it raises, or Ctrl-C stops it at any line, the roots are exactly as they were.

    What there is was noted before anything happens, so nothing depends on how far `act` came. It has to
    replace tensors, not to write into them.

    Args:
        roots: modules, optimizers, generators, dicts and plain objects that `act` changes.
        act: does it, under settings of our own.
    """
    kept = Snapshot(roots, values=False, code=False)
    try:
        with own_settings():
            return act()
    except BaseException:
        _take_back(kept)
        raise


def _take_back(kept: Snapshot) -> None:
    """Restores, however often Ctrl-C is pressed meanwhile; it counts afterwards."""
    is_done = False
    while not is_done:
        try:
            with interrupts_deferred(), own_settings():
                kept.restore()
                is_done = True
        except KeyboardInterrupt:
            if is_done:
                raise


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
