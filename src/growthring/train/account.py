"""The account of a run: what it has spent and reached so far, as records and for the eye."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from growthring.growing.report import GrowthReport
from growthring.optim import RingOptimizer
from growthring.runs import EpochRecord, GrowthRecord, RatesRecord, Result
from growthring.train.lengths import num_examples
from growthring.train.parts import Parts
from growthring.train.progress import Status
from growthring.train.state import Totals


class Account:
    """Puts totals and costs into words and records.

    Args:
        parts: of the run.
        totals: of the run, which go on.
    """

    def __init__(self, parts: Parts, totals: Totals) -> None:
        self._parts, self.totals = parts, totals
        self._costs: Mapping[str, Any] | None = None

    @property
    def costs(self) -> Mapping[str, Any]:
        """FLOPs of an example and parameters, as lists over stages; FLOPs of the full-size model."""
        if self._costs is None:
            self._costs = self._parts.count_costs()
        return self._costs

    @costs.setter
    def costs(self, counted: Mapping[str, Any]) -> None:
        self._costs = counted

    @property
    def flops_share(self) -> float:
        """FLOPs so far, of those of fixed-size training on as many examples as the whole run."""
        one = self.costs.get("full_flops", self.costs["flops"][-1])
        full = 3 * one * num_examples(self._parts.plan, self._parts.train)
        return self.totals.flops / full if full else 1.0

    @property
    def width(self) -> str:
        """How wide the model is, in words."""
        parts = self._parts
        if parts.grower is None:
            return "the seed's size" if parts.recipe.small else "full size"
        named = parts.plan.named_widths(min(self.totals.stage, parts.plan.num_stages - 1))
        least, most = min(named.values()), max(named.values())
        return f"width {least}" if least == most else f"width {least}–{most}"

    @property
    def epochs(self) -> float:
        """Epochs so far: a whole number, but of a run that is counted in steps."""
        in_steps = self._parts.plan.lengths.unit == "steps"
        return self.totals.epoch + self._parts.train.part if in_steps else self.totals.epoch

    def status(self, loss: float) -> Status:
        """For the line that shows progress."""
        totals, plan = self.totals, self._parts.plan
        return Status(
            totals.stage,
            plan.num_stages,
            totals.epoch,
            sum(plan.epochs),
            totals.step,
            self._parts.total_steps,
            self.width,
            loss,
            totals.seconds,
            self.flops_share,
        )

    def epoch(
        self,
        lr: float,
        train: tuple[float, float | None],
        test: tuple[float | None, float | None],
    ) -> EpochRecord:
        """The record of an evaluation; losses and accuracies in pairs."""
        totals = self.totals
        return EpochRecord(
            number=self.epochs,
            stage=totals.stage,
            step=totals.step,
            lr=lr,
            train_loss=train[0],
            train_accuracy=train[1],
            test_loss=test[0],
            test_accuracy=test[1],
            seconds=totals.seconds,
            cpu_seconds=totals.cpu_seconds,
            flops=totals.flops,
            flops_share=self.flops_share,
            batch_size=self._parts.train.batch_size,
        )

    def growth(self, report: GrowthReport, cpu_seconds: float) -> GrowthRecord:
        """The record of a growth that is done, and took so much of the processor."""
        totals = self.totals
        return GrowthRecord(
            stage=totals.stage,
            num_epochs=int(self.epochs),
            step=totals.step,
            seconds=report.seconds,
            search_flops=report.search_flops,
            change=None if report.change is None else report.change.relative_after_scale,
            parameters=report.parameters_after,
            widths=self._parts.plan.named_widths(totals.stage),
            cpu_seconds=cpu_seconds,
        )

    def rates(self, optimizer: RingOptimizer) -> RatesRecord:
        """The rate factors of the parameters whose rings have different ones."""
        factors = {n: tuple(f.tolist()) for n, f in optimizer.rate_factors().items() if len(f) > 1}
        differing = {n: f for n, f in factors.items() if any(abs(v - f[0]) > 1e-12 for v in f)}
        return RatesRecord(self.totals.step, self.totals.stage, differing)

    def result(self, test: tuple[float | None, float | None]) -> Result:
        """What the run came to."""
        totals = self.totals
        return Result(
            test_accuracy=test[1],
            test_loss=test[0],
            seconds=totals.seconds,
            cpu_seconds=totals.cpu_seconds,
            flops=totals.flops,
            flops_share=self.flops_share,
            search_flops=totals.search_flops,
            peak_memory=totals.peak_memory,
            steps=totals.step,
            epochs=self.epochs,
            parameters=self.costs["parameters"][-1],
        )
