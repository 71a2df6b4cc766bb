"""Where a run is, what it came to, and how it can fail."""

from __future__ import annotations

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
    seconds: float = 0.0


@dataclass(frozen=True)
class Result:
    """What a finished run came to."""

    test_accuracy: float | None
    test_loss: float | None
    seconds: float
    flops: float
    flops_share: float
    steps: int
    epochs: int
    parameters: int
