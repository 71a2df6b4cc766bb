"""Where a run is, what it has spent, and how it can fail."""

from __future__ import annotations

import time
from dataclasses import dataclass

from growthring.errors import GrowthError
from growthring.planning.lengths import Unit


class TrainingError(GrowthError, RuntimeError):
    """A run cannot go on; what it has so far is kept."""


class Interrupted(TrainingError):
    """Ctrl-C: the step was finished and the state saved."""


@dataclass
class Totals:
    """Where a run is, and what it has spent.

    An epoch is a pass over the data. In a run that is so many steps long, a growth comes anywhere in one.
    """

    stage: int = 0
    epoch: int = 0
    step: int = 0
    steps_in_stage: int = 0
    epochs_in_stage: int = 0
    examples_flops: float = 0.0  # forward FLOPs of all training examples so far
    full_flops: float = 0.0  # the same if the model had been of full size
    examples: int = 0
    search_flops: float = 0.0  # of the growth method's own optimisation, forward and backward
    pass_flops: float = 0.0  # of passes over the data of stages that ended, forward and backward
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    compile_seconds: float = 0.0  # the part of `seconds` that torch.compile took
    peak_memory: int | None = None

    def done(self, unit: Unit) -> tuple[int, int]:
        """How many epochs or steps the run has behind it, and how many of them its present stage.

        >>> Totals(stage=1, step=12, steps_in_stage=4).done("steps")
        (12, 4)
        """
        if unit == "epochs":
            return self.epoch, self.epochs_in_stage
        return self.step, self.steps_in_stage

    @property
    def flops(self) -> float:
        """Of training so far: a backward pass costs about two forward ones."""
        return 3 * self.examples_flops + self.search_flops + self.pass_flops


class Clock:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def add_to(self, totals: Totals) -> None:
        """Adds what it has run."""
        totals.seconds += time.perf_counter() - self._wall
        totals.cpu_seconds += time.process_time() - self._cpu
