"""The account of a run: what it has spent and reached so far, as records and for the eye."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from growthring.data.batch import Batch, examples_in
from growthring.growing.report import GrowthReport
from growthring.optim import RingOptimizer
from growthring.runs import EpochRecord, GrowthRecord, RatesRecord, Result
from growthring.runs.records import StageRecord
from growthring.streams import GrowingData
from growthring.train.parts import Parts
from growthring.train.progress import Status
from growthring.train.seen import accuracy_of
from growthring.train.shapes import ShapeCosts, shape_of
from growthring.train.state import Totals
from growthring.train.tasks import Outcome

_FULL = -1  # in place of a stage


class Account:
    """Puts totals and costs into words and records.

    Args:
        parts: of the run.
        totals: of the run, which go on.
    """

    def __init__(self, parts: Parts, totals: Totals) -> None:
        self._parts, self.totals = parts, totals
        self._costs: Mapping[str, Any] | None = None
        self._shapes: dict[int, ShapeCosts] = {}

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
        totals = self.totals
        count = self._parts.num_examples
        if totals.step >= self._parts.total_steps and totals.examples:
            count = totals.examples  # of sentences, only whole epochs can be counted before
        one = self.costs.get("full_flops", self.costs["flops"][-1])
        if totals.examples:
            one = totals.full_flops / totals.examples
        return totals.flops / (3 * one * count) if one and count else 1.0

    def spend(self, batch: Batch, count: int | None = None) -> None:
        """Adds what a batch costs that is trained on: its own shapes count.

        Args:
            batch: all of it, or a slice.
            count: how many examples all of it has.
        """
        totals, here = self.totals, examples_in(batch)
        count, shape = here if count is None else count, shape_of(batch[0], here)
        totals.examples_flops += count * self._costs_at(totals.stage).flops(batch, shape)
        if totals.examples or totals.step <= 1:  # else it was begun by one that did not count them
            totals.examples += count
            totals.full_flops += count * self._costs_at(_FULL).flops(batch, shape)

    def spend_on_old(self, batch: Batch, count: int) -> None:
        """Adds what a batch costs of the pass over the data of a stage that ends, forward and backward."""
        totals, here = self.totals, examples_in(batch)
        shape = shape_of(batch[0], here)
        totals.pass_flops += 3 * count * self._costs_at(totals.stage).flops(batch, shape)

    def _costs_at(self, stage: int) -> ShapeCosts:
        """Of a stage's model; of the full-size one."""
        plan = self._parts.plan
        stage = stage if stage != _FULL or self._parts.recipe.small else plan.num_stages - 1
        if stage not in self._shapes:
            full = self.costs.get("full_flops", self.costs["flops"][-1])
            flops = full if stage == _FULL else self.costs["flops"][stage]

            def make() -> nn.Module:
                return self._parts.full_model if stage == _FULL else plan.empty_model(stage)

            self._shapes[stage] = ShapeCosts(make, plan.example_inputs, flops)
        return self._shapes[stage]

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

    def status(self, loss: Callable[[], float]) -> Status:
        """For the line that shows progress; of the present step as long as it is the present one."""
        totals, plan = self.totals, self._parts.plan
        return Status(
            totals.stage,
            plan.num_stages,
            totals.epoch,
            sum(plan.epochs),
            totals.step,
            self._parts.total_steps,
            totals.seconds,
            lambda: (self.width, loss(), self.flops_share),
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
            scores=self._scores(test[0]),
        )

    def _scores(self, test_loss: float | None) -> Mapping[str, float]:
        return {} if test_loss is None else self._parts.task.scores(test_loss)

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

    def stage(self, growing: GrowingData, counts: Tensor | None) -> StageRecord:
        """The record of a stage of growing data, of what `right_by_class` counted at its end."""
        totals = self.totals
        stage = min(totals.stage, len(growing) - 1)
        brought = () if growing.classes is None else growing.classes[: totals.stage + 1]
        seen = growing.seen(stage)
        return StageRecord(
            totals.stage,
            totals.step,
            growing.sizes[stage],
            None if seen is None else len(seen),
            None if counts is None or seen is None else accuracy_of(counts, seen),
            () if counts is None else tuple(accuracy_of(counts, part) for part in brought),
            totals.flops,
            totals.seconds,
            totals.cpu_seconds,
        )

    def rates(self, optimizer: RingOptimizer) -> RatesRecord:
        """The rate factors of the parameters whose rings have different ones."""
        factors = {n: tuple(f.tolist()) for n, f in optimizer.rate_factors().items() if len(f) > 1}
        differing = {n: f for n, f in factors.items() if any(abs(v - f[0]) > 1e-12 for v in f)}
        return RatesRecord(self.totals.step, self.totals.stage, differing)

    def result(self, test: tuple[float | None, float | None], outcome: Outcome) -> Result:
        """What the run came to, with what the task measured at its end."""
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
            scores={**self._scores(test[0]), **outcome.scores},
            notes=outcome.notes,
            compile_seconds=totals.compile_seconds,
            pass_flops=totals.pass_flops,
        )
