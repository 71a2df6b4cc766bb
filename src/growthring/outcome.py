"""Outcome: what one growth does to the model's outputs, measured, judged and reported."""

from __future__ import annotations

import time

import torch
from torch import nn

from growthring.core.variance import Factors
from growthring.errors import GrowthStepError
from growthring.methods.base import Growth, Step
from growthring.report import GroupGrowth, GrowthReport
from growthring.verify import Verification, compare, outputs_of


class Outcome:
    """Measures a growth by running the model on the plan's example inputs before and after.

    Args:
        model: before the growth.
        step: the growth.
        stage: the stage that it leads to.
        is_measured: False to run nothing.

    Attributes:
        change: of the outputs without noise, None if nothing was run.
        change_with_noise: the same with noise.
        seconds: time spent measuring.
    """

    def __init__(self, model: nn.Module, step: Step, stage: int, is_measured: bool) -> None:
        self._started = time.perf_counter()
        self._model, self._step, self._stage = model, step, stage
        self._num_before = sum(p.numel() for p in model.parameters())
        self.is_measured, self.seconds = is_measured, 0.0
        self.change: Verification | None = None
        self.change_with_noise: Verification | None = None
        self._before = self._run() if is_measured else []

    def _run(self) -> list[torch.Tensor]:
        started = time.perf_counter()
        plan = self._step.plan
        result = outputs_of(self._model, plan.inputs_for(self._model), plan.outputs)
        self.seconds += time.perf_counter() - started
        return result

    def measure(self, with_noise: bool = False) -> None:
        """Runs the grown model."""
        if not self.is_measured:
            return
        self.change_with_noise = compare(self._before, self._run())
        if not with_noise:
            self.change = self.change_with_noise

    def shows_eps(self, factors: Factors) -> bool:
        """Whether the ε of a norm shows, so that what it normalises had better not be rescaled."""
        is_preserving = self._step.mode == "preserving" and bool(factors.rescaled)
        return is_preserving and self.change is not None and self.change.relative > 1e-3

    def check(self, growth: Growth) -> None:
        """An unexplained change of the outputs means that something was grown wrongly: never let it pass."""
        if self.change is None or growth.change is not None:
            return
        factors = growth.factors
        found, is_literal = self.change.relative, self._step.mode in ("paper", "constraint")
        if is_literal:
            if factors.violations:
                return
            found = self.change.relative_after_scale
        # Far above what rounding does even in deep networks, far below what a wrong rule does.
        groups = self._step.plan.groups
        types = {p.dtype for p in self._model.parameters() if p.is_floating_point()}
        limit = min(4e4 * max([groups.precision, *(torch.finfo(t).eps for t in types)]), 0.05)
        has_eps = any(record.kind == "norm" for record in groups.records)
        if has_eps and (factors.rescaled or is_literal):
            limit = max(limit, 1e-2)
        if not found <= limit:
            raise GrowthStepError(
                f"growing to stage {self._stage} would change the outputs by {found:.1e} (relative; "
                f"allowed {limit:.0e}), so some layer does not follow its rule; model, optimizer and "
                "grower are as they were. Please report the model, and freeze the layers concerned "
                "meanwhile."
            )

    def report(self, growth: Growth, num_fading: int, notes: list[str]) -> GrowthReport:
        """What happened, for the user."""
        factors = growth.factors
        step, groups = self._step, self._step.plan.groups
        seconds = time.perf_counter() - self._started - self.seconds
        grown = [
            GroupGrowth(g.name, step.before[g.key], step.after[g.key])
            for g in groups.growable
            if step.before[g.key] != step.after[g.key]
        ]
        notes = [*growth.notes, *notes]
        if growth.change is not None:
            notes.insert(0, growth.change)
        if factors.violations:
            listed = "; ".join(factors.violations[:4])
            notes.append(f"the rule '{step.mode}' cannot preserve the function here: {listed}")
        if num_fading:
            notes.append(
                f"{num_fading} norms fade their statistics in; call Grower.advance during the stage"
            )
        found = self.change.relative if self.change is not None else 0.0
        if factors.rescaled and found > 5e3 * groups.precision:
            notes.append(
                "rescaled weights in front of norms: their ε makes the difference that is left"
            )
        return GrowthReport(
            stage=self._stage,
            parameters_before=self._num_before,
            parameters_after=sum(p.numel() for p in self._model.parameters()),
            groups=tuple(grown),
            factors={n: c for n, c in factors.tensors.items() if abs(c - 1) > 1e-12},
            output_factors=tuple(factors.outputs),
            change=self.change,
            change_with_noise=self.change_with_noise,
            seconds=seconds,
            measure_seconds=self.seconds,
            search_flops=growth.cost.flops,
            search_examples=growth.cost.examples,
            notes=tuple(notes),
        )
