"""Ctrl-C, or torchrun's signal to end, that lets a step finish."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Sequence
from typing import Any


class Interrupt:
    """While it is entered, the first Ctrl-C only sets `is_asked`; a second one ends at once.

    Args:
        say: tells the user.
        signals: that ask.
    """

    def __init__(
        self, say: Callable[[str], None], signals: Sequence[signal.Signals] = (signal.SIGINT,)
    ) -> None:
        self.is_asked = False
        self._say, self._signals = say, signals
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        self.is_asked = False
        with contextlib.suppress(ValueError):  # not the main thread, which alone gets signals
            for each in self._signals:
                self._before[each] = signal.signal(each, self._ask)
        return self

    def __exit__(self, *raised: object) -> None:
        for each, before in self._before.items():
            if before is not None:
                signal.signal(each, before)
        self._before.clear()

    def _ask(self, number: int, frame: Any) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        self._say("stopping after this step (Ctrl-C again: at once) ...")
