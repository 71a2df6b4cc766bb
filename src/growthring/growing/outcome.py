"""Outcome: what one growth does to the model's outputs, measured, judged and reported."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from growthring.core.variance import Factors
from growthring.core.wording import counted
from growthring.errors import GrowthStepError
from growthring.graph.factors import FactorPair
from growthring.growing.report import FactorGrowth, GroupGrowth, GrowthReport
from growthring.growing.trials import Trial, explanation, rounding_limit, run, worst
from growthring.growing.verify import Outputs, Verification
from growthring.methods.base import Growth, Step

# Relative changes of the outputs by the ε of norms behind rescaled weights: from where it is not
# accepted, from where it is mentioned, and what a rule applied to the letter may leave.
_EPS_SHOWS = 1e-3
_EPS_NOTED = 1e-6
_EPS_LITERAL = 1e-2


@dataclass(frozen=True)
class Changes:
    """How much the outputs changed in each mode, the worst of all trials; None where nothing was run."""

    eval: Verification | None = None
    train: Verification | None = None


class Outcome:
    """Measures a growth by running the model before and after, in both modes.

    Args:
        model: before the growth.
        step: the growth.
        stage: the stage that it leads to.
        trials: what to run it on; none to measure nothing.

    Attributes:
        model: that `measure` runs.
        change: of the outputs without noise.
        change_with_noise: the same with noise.
        seconds: time spent measuring.
    """

    def __init__(self, model: nn.Module, step: Step, stage: int, trials: Sequence[Trial]) -> None:
        self._started = time.perf_counter()
        self.model, self._step, self._stage, self._trials = model, step, stage, trials
        self._num_before = sum(p.numel() for p in model.parameters())
        self.seconds = 0.0
        self.change = self.change_with_noise = Changes()
        self._held = False
        self._before = self._run()

    def _run(self) -> list[Outputs]:
        started = time.perf_counter()
        result = run(self.model, self._trials, self._step.plan.outputs)
        self.seconds += time.perf_counter() - started
        return result

    def measure(self, with_noise: bool = False) -> None:
        """Runs the grown model."""
        after = self._run()
        leading = bool(self._step.classes)
        changes = [
            worst(self._trials, self._before, after, mode, leading) for mode in (False, True)
        ]
        self.change_with_noise = Changes(*changes)
        if not with_noise:
            self.change = self.change_with_noise

    def shows_eps(self, factors: Factors) -> bool:
        """Whether the ε of a norm shows, so that what it normalises had better not be rescaled."""
        if self._step.mode != "preserving" or not factors.rescaled:
            return False
        changes = [c.relative for c in (self.change.eval, self.change.train) if c is not None]
        self._held = max(changes, default=0.0) > _EPS_SHOWS
        return self._held

    def check(self, growth: Growth) -> None:
        """An unexplained change of the outputs means that something was grown wrongly: never let it pass."""
        if growth.change is not None:
            return
        self._check_mode(growth.factors, "eval", self.change.eval)
        self._check_mode(growth.factors, "train", self.change.train)

    def _check_mode(self, factors: Factors, mode: str, change: Verification | None) -> None:
        if change is None:
            return
        relative, is_literal = change.relative, self._step.mode in ("paper", "constraint")
        if is_literal:
            # such a rule does not ask what ε does to a batch's statistics; the report says it
            if factors.violations or (mode == "train" and self._has_eps(mode)):
                return
            relative = change.relative_after_scale
        plan = self._step.plan
        trials = [t for t in self._trials if t.training is (mode == "train")]
        started = time.perf_counter()
        limit = rounding_limit(self.model, trials, plan.outputs, relative)
        self.seconds += time.perf_counter() - started
        if relative > limit and (factors.rescaled or is_literal) and self._has_eps(mode):
            limit = max(limit, _EPS_LITERAL if is_literal else _EPS_SHOWS)
        if not relative <= limit:
            raise GrowthStepError(
                f"growing to stage {self._stage} would change the outputs in {mode} mode by {relative:.1e} "
                f"(relative; rounding explains {limit:.0e}){explanation(plan.groups, mode == 'train')} Model, "
                "optimizer and grower are as they were."
            )

    def _has_eps(self, mode: str) -> bool:
        """Whether the ε of a norm may show; BatchNorm's is made up for in eval mode."""
        kinds = ("norm", "stats") if mode == "train" else ("norm",)
        return any(record.kind in kinds for record in self._step.plan.groups.records)

    def report(self, growth: Growth, num_fading: int, notes: list[str]) -> GrowthReport:
        """What happened, for the user."""
        factors = growth.factors
        step, groups = self._step, self._step.plan.groups
        seconds = time.perf_counter() - self._started - self.seconds
        before, after = groups.named(step.before), groups.named(step.after)
        grown = [GroupGrowth(n, before[n], after[n]) for n in before if before[n] != after[n]]
        products = [FactorGrowth(f.words, *self._factors(f)) for f in groups.factors]
        notes = [*growth.notes, *notes]
        if growth.change is not None:
            notes.insert(0, growth.change)
        if factors.violations:
            listed = "; ".join(factors.violations[:4])
            notes.append(f"the rule '{step.mode}' cannot preserve the function here: {listed}")
        if num_fading:
            fade = counted(num_fading, "norm fades its", "norms fade their")
            notes.append(f"{fade} statistics in; Grower.step sees to it (or Grower.advance)")
        if self._held:
            notes.append(
                "the ε of norms would show if what they normalise were rescaled, so it was not"
            )
        changes = [c.relative for c in (self.change.eval, self.change.train) if c is not None]
        if factors.rescaled and max(changes, default=0.0) > _EPS_NOTED:
            notes.append(
                "rescaled weights in front of norms: their ε makes the difference that is left"
            )
        return GrowthReport(
            stage=self._stage,
            parameters_before=self._num_before,
            parameters_after=sum(p.numel() for p in self.model.parameters()),
            groups=tuple(grown),
            factors={n: c for n, c in factors.tensors.items() if abs(c - 1) > 1e-12},
            output_factors=tuple(factors.outputs),
            change=self.change.eval,
            train_change=self.change.train,
            change_with_noise=self.change_with_noise.eval,
            train_change_with_noise=self.change_with_noise.train,
            seconds=seconds,
            measure_seconds=self.seconds,
            search_flops=growth.cost.flops,
            search_examples=growth.cost.examples,
            notes=tuple(notes),
            products=tuple(p for p in products if p.count in grown or p.size in grown),
        )

    def _factors(self, pair: FactorPair) -> list[GroupGrowth]:
        step, names = self._step, {g.key: g.name for g in self._step.plan.groups}
        return [
            GroupGrowth(names[key], step.before[key], step.after[key])
            for key in (pair.count, pair.size)
        ]
