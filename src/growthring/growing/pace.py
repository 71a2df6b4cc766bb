"""Pace: how far a run is, when its next growth is due, and what its loop is told about it."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from growthring.core.wording import counted
from growthring.errors import GrowthWarning, InputError
from growthring.growing.report import GrowthReport
from growthring.planning.plan import Plan

_LOW = 0.5  # of the learning rate's peak: a growth below it is worth a warning


@dataclass(frozen=True)
class StepReport:
    """What happened after one training step; true where something did.

    Attributes:
        step: training steps so far.
        total_steps: of the whole run.
        stage: that the model is in now.
        growth: what a growth did, if this step was followed by one.
        fades_ended: norms whose fading in ended now: they are plain modules again.
        fading: norms that are still fading in.
        is_complete: whether the model has its full size and nothing is fading in.

    >>> bool(StepReport(3, 10, 0, None, 0, 0, False))
    False
    """

    step: int
    total_steps: int
    stage: int
    growth: GrowthReport | None
    fades_ended: int
    fading: int
    is_complete: bool

    def __bool__(self) -> bool:
        return self.growth is not None or self.fades_ended > 0

    def __str__(self) -> str:
        parts = [f"step {self.step:,} of {self.total_steps:,}, stage {self.stage}"]
        if self.growth is not None:
            parts.append(f"grew: {self.growth}")
        if self.fades_ended:
            parts.append(f"{counted(self.fades_ended, 'norm')} faded in")
        return "; ".join(parts)


class Pace:
    """Counts training steps against a plan's.

    Args:
        plan: its stages have lengths in steps, or `step` is refused.
        stage: that the model is in; it is taken to have just begun.
        rate: the learning rate of the first step.

    Attributes:
        step: training steps so far.
        began: step at which the present stage began.
        stage: that the model is in.
        is_saved: whether all this was saved as it is now.
    """

    def __init__(self, plan: Plan, stage: int, rate: float = 0.0) -> None:
        self._ends = list(itertools.accumulate(plan.stage_steps))
        self._last_stage = plan.num_stages - 1
        self.stage, self._fading = stage, 0
        self.step = self.began = self._ends[stage - 1] if stage and self._ends else 0
        self.is_saved = self._is_driven = False
        self._rate = self._peak = rate

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return self._ends[-1]

    def count(self, rate: float = 0.0) -> None:
        """One more step, and the learning rate of the next."""
        if not self._ends:
            raise InputError(
                "Grower.step() needs to know how long the run is: gr.plan(..., total_steps=N), or epochs= with "
                "steps_per_epoch=. To decide yourself when to grow, call grow() and advance()."
            )
        self.step += 1
        self._rate, self._peak = rate, max(rate, self._peak)
        self._is_driven, self.is_saved = True, False

    @property
    def is_due(self) -> bool:
        """Whether the next growth is."""
        return self.stage < self._last_stage and self.step >= self._ends[self.stage]

    def warn_if_late(self) -> None:
        """Warns of a growth at which little learning rate is left."""
        if self._rate >= _LOW * self._peak:
            return
        warnings.warn(
            f"the growth after step {self.step:,} of {self.total:,} comes at {self._rate / self._peak:.0%} of the "
            "learning rate's peak: what it adds can learn little by now, while all of it is paid for. Let it "
            "grow before the rate falls (gr.plan(..., grown_at=)), or the rate later: gr.lr_schedule('wsd', ...) "
            "keeps it up until the last fifth of a run (docs/when-it-pays.md).",
            GrowthWarning,
            stacklevel=3,
        )

    @property
    def progress(self) -> float:
        """How much of the present stage is done, 0 to 1."""
        length = self._ends[self.stage] - self.began
        return 1.0 if length <= 0 else min(1.0, (self.step - self.began) / length)

    @property
    def fading(self) -> int:
        """Norms that fade in."""
        return self._fading

    @fading.setter
    def fading(self, count: int) -> None:
        self._fading, self.is_saved = count, False

    def enter(self, stage: int, fading: int) -> None:
        """The model grew, and so many norms fade in."""
        self.stage, self.began, self.fading = stage, self.step, fading

    def state_dict(self) -> dict[str, float]:
        """For `Grower.state_dict`."""
        self.is_saved = True
        return {"step": self.step, "began": self.began, "peak": self._peak}

    def load_state_dict(self, state: Mapping[str, Any], stage: int, fading: int) -> None:
        """Takes up what was saved; nothing where it was saved before there were steps."""
        self.stage, self.fading = stage, fading
        if state:
            self.step, self.began = int(state["step"]), int(state["began"])
            self._peak = float(state.get("peak", 0.0))

    def farewell(self) -> None:
        """Warns of a run that is left in a state that nobody wants, unless it was saved just so."""
        if self.is_saved:
            return
        troubles = []
        if self.fading:
            troubles.append(
                f"{counted(self.fading, 'norm')} still fading in, so that its weights in a plain model compute "
                "something else (call Grower.finish())"
            )
        if self._is_driven and self.step < self.total:
            left = self._last_stage - self.stage
            if left:
                troubles.append(f"{counted(left, 'growth')} to go until its full size")
            since = self.step - self.began
            if self.stage and since <= self.total // 100:
                troubles.append(f"new units that were trained for {counted(since, 'step')} only")
        if troubles:
            where = f" after step {self.step:,} of {self.total:,}" if self._is_driven else ""
            warnings.warn(
                f"the training ended{where}; the model was left with {', and '.join(troubles)}.",
                GrowthWarning,
                stacklevel=2,
            )
