"""Compilation: which stages of a run are compiled, what that has cost, and what a stage then runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from growthring.train.account import Account
from growthring.train.choices import Choice, TwinTrial, choose, compiled_steps, mode_of
from growthring.train.compiling import CompiledStage, Precision, compile_ahead, keeps_compiled
from growthring.train.parts import Parts
from growthring.train.progress import Progress
from growthring.train.state import Clock


class Compilation:
    """What is compiled in a run.

    Args:
        parts: of the run.
        account: of what it has spent.
        progress: what shows how far it is.
        precision: that passes are taken in.

    Attributes:
        choices: which stages are compiled; of stages that are not named there none is.
        backend: of `torch.compile`.
    """

    backend: str = "inductor"

    def __init__(
        self, parts: Parts, account: Account, progress: Progress, precision: Precision
    ) -> None:
        self._parts, self._account, self._progress = parts, account, progress
        self._precision = precision
        self._mode = mode_of(parts.recipe.compile)
        self.choices: list[Choice] = []

    def prepare(self, chosen: Callable[[], None]) -> None:
        """Compiles all stages that are to be, so that what it takes is known before the first step.

        Args:
            chosen: called when it is decided what is compiled.
        """
        if self._mode == "never":
            return
        totals, clock, before = self._account.totals, Clock(), self._account.totals.seconds
        is_new = not self.choices
        if is_new:
            self.choices = self._choose()
        left = [c.stage for c in self.choices if c.is_compiled and c.stage >= totals.stage]
        is_tried = is_new and self._mode == "auto"
        if len(left) > 1 and keeps_compiled() and not is_tried:  # one needs no ahead
            self._progress.say(f"compiling {len(left)} stages ...")
            plan, device = self._parts.plan, self._parts.device
            for note in compile_ahead(plan, left, device, self._precision, self.backend):
                self._progress.say(f"note: {note}")
        clock.add_to(totals)
        spent = totals.seconds - before
        totals.compile_seconds += spent
        if is_new:
            for choice in self.choices if is_tried else ():
                self._progress.say(str(choice))
            chosen()
        if left:
            self._progress.say(f"compiled in {spent:.0f} s.")

    def forward(self, stage: int) -> Any:
        """What a stage's steps call: the model, compiled if that was chosen."""
        parts = self._parts
        if not any(choice.stage == stage and choice.is_compiled for choice in self.choices):
            return parts.wrapped
        size = parts.plan.batch_sizes[stage]
        return CompiledStage(parts.model, size, parts.grower, self.backend)

    @property
    def notes(self) -> list[str]:
        """What was compiled, why, and how long that took; nothing if nothing was to be."""
        if not self.choices:
            return []
        totals = self._account.totals
        seconds = f"{totals.compile_seconds:.0f} of {totals.seconds:.0f} seconds of training"
        why = map(str, self.choices) if self._mode == "auto" else ()
        return [f"{seconds} were spent on torch.compile", *why]

    def _choose(self) -> list[Choice]:
        """Which of the stages that are left are compiled."""
        plan, grower, first = self._parts.plan, self._parts.grower, self._account.totals.stage
        stages = range(first, plan.num_stages)
        if self._mode == "always":
            return [Choice(stage, True, "asked for") for stage in stages]
        if not keeps_compiled():
            reason = "inductor keeps nothing on the disk, so that a trial would be lost"
            return [Choice(stage, False, reason) for stage in stages]
        self._progress.say(f"measuring whether it pays to compile {len(stages)} stages ...")
        fade = 0.0 if grower is None else grower.fade
        is_fading = grower is not None and bool(plan.groups.statistics)
        steps = compiled_steps(self._parts.stage_steps, first, fade, is_fading)
        return choose(steps, TwinTrial(plan, self._parts.device, self._precision, self.backend))
