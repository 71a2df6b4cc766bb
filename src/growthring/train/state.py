"""Where a run is, what it came to, and how it can fail."""

from __future__ import annotations

import time
from dataclasses import dataclass

from growthring.errors import GrowthError


class TrainingError(GrowthError, RuntimeError):
    """A run cannot go on; what it has so far is kept."""


class Interrupted(TrainingError):
    """Ctrl-C: the step was finished and the state saved."""


@dataclass
class Totals:
    """Where a run is, and what it has spent."""

    stage: int = 0
    epoch: int = 0
    step: int = 0
    steps_in_stage: int = 0
    epochs_in_stage: int = 0
    examples_flops: float = 0.0  # forward FLOPs of all training examples so far
    search_flops: float = 0.0  # of the growth method's own optimisation, forward and backward
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory: int | None = None

    @property
    def flops(self) -> float:
        """Of training so far: a backward pass costs about two forward ones."""
        return 3 * self.examples_flops + self.search_flops


class Clock:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def add_to(self, totals: Totals) -> None:
        """Adds what it has run."""
        totals.seconds += time.perf_counter() - self._wall
        totals.cpu_seconds += time.process_time() - self._cpu


@dataclass(frozen=True)
class Result:
    """What a finished run came to.

    Attributes:
        test_accuracy: 0 to 1; None where outputs are no classes.
        test_loss: mean over the test data.
        seconds: of training and growing, by the clock on the wall.
        cpu_seconds: the same in processor time, which other work on the machine does not add to.
        flops: of training and of the method's own search.
        flops_share: of those of fixed-size training for the same epochs.
        search_flops: the method's part of them.
        peak_memory: bytes above what the process had before, None where that cannot be measured.
        steps, epochs: how many.
        parameters: of the final model.
    """

    test_accuracy: float | None
    test_loss: float | None
    seconds: float
    cpu_seconds: float
    flops: float
    flops_share: float
    search_flops: float
    peak_memory: int | None
    steps: int
    epochs: int
    parameters: int
