"""Ctrl-C that lets a step finish."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any


class Interrupt:
    """While it is entered, the first Ctrl-C only sets `is_asked`; a second one ends at once.

    Args:
        say: tells the user.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.is_asked = False
        self._say = say
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        self.is_asked = False
        try:
            self._before = signal.signal(signal.SIGINT, self._ask)
        except ValueError:  # not the main thread, which alone gets signals
            self._before = None
        return self

    def __exit__(self, *raised: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: Any) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        self._say("stopping after this step (Ctrl-C again: at once) ...")
