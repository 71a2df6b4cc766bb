"""Progress of a run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TextIO

from growthring.files.foreign import shown
from growthring.runs.metrics import ACCURACY, LOSS, Metric
from growthring.runs.records import EpochRecord


@dataclass
class Status:
    """What there is to show; `num_epochs` is 0 where the run is counted in steps.

    What takes time to work out is asked for when it is read, and most steps are not shown.
    """

    stage: int
    num_stages: int
    epoch: int
    num_epochs: int
    step: int
    num_steps: int
    seconds: float
    ask: Callable[[], tuple[str, float, float]]

    @property
    def width(self) -> str:
        """How wide the model is, in words."""
        return self._asked[0]

    @property
    def loss(self) -> float:
        """Mean since the last evaluation."""
        return self._asked[1]

    @property
    def flops_share(self) -> float:
        """FLOPs so far, of those of fixed-size training."""
        return self._asked[2]

    @cached_property
    def _asked(self) -> tuple[str, float, float]:
        return self.ask()


class Progress:
    """Shows how far a run is.

    Args:
        stream: where to; standard error by default.
        is_live: one line that is overwritten; by default if the stream is a terminal.
    """

    def __init__(self, stream: TextIO | None = None, is_live: bool | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_live = self._stream.isatty() if is_live is None else is_live
        self._shown = 0.0
        self._length = 0

    def step(self, status: Status) -> None:
        """Called after every step; draws at most five times a second, and only on a terminal."""
        now = time.monotonic()
        if not self._is_live or now - self._shown < 0.2:
            return
        self._shown = now
        done = status.step / max(status.num_steps, 1)
        filled = round(20 * done)
        left = status.seconds / max(done, 1e-9) * (1 - done)
        place = f"step {status.step:,}/{status.num_steps:,}"
        if status.num_epochs:
            place = f"epoch {status.epoch + 1}/{status.num_epochs}"
        self._draw(
            f"stage {status.stage + 1}/{status.num_stages} {'█' * filled}{'░' * (20 - filled)} "
            f"{place}  {status.width}  loss {status.loss:.3f}  "
            f"{status.flops_share:.1%} of fixed-size FLOPs  {_time(status.seconds)} < {_time(left)}"
        )

    def epoch(
        self,
        record: EpochRecord,
        width: str,
        is_last_of_stage: bool,
        metrics: Sequence[Metric] = (ACCURACY, LOSS),
    ) -> None:
        """Called after every evaluation: a line each, on a terminal one for each stage.

        Args:
            record: of the evaluation.
            width: of the model, in words.
            is_last_of_stage: whether the stage ends with it.
            metrics: the first one that was measured is shown.
        """
        if self._is_live and not is_last_of_stage:
            return
        loss = record.train_loss
        values = ((metric, record.value(metric.key)) for metric in metrics)
        said = next((f"  {m.title} {m.text(v)}" for m, v in values if v is not None), "")
        is_whole = isinstance(record.number, int)  # else the run is counted in steps
        place = f"epoch {record.number}" if is_whole else f"step {record.step:,}"
        self.say(
            f"stage {record.stage}  {place}  {width}  "
            f"loss {float('nan') if loss is None else loss:.4f}{said}  "
            f"{record.flops_share or 0:.1%} of fixed-size FLOPs  {_time(record.seconds or 0)}"
        )

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._is_live and self._length:
            self._stream.write("\r" + " " * self._length + "\r")
            self._length = 0
        self._stream.write(shown(text) + "\n")
        self._stream.flush()

    def _draw(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._length))
        self._stream.flush()
        self._length = len(text)


class Silence(Progress):
    """Shows nothing."""

    def step(self, status: Status) -> None:
        """Nothing."""

    def epoch(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


def _time(seconds: float) -> str:
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}"
    return f"{whole // 60}:{whole % 60:02d}"
