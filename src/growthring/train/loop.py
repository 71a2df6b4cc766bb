"""Loop: Algorithm 1 of the paper: the epochs or steps of each stage, and a growth between two stages.

Batches come from one pass over the data after the other, whatever the stages: a growth in the middle of an epoch
leaves the data where it is. A run that is so many epochs long is evaluated after each, one that is so many steps
long after some of them (`evaluation_steps`). The loop trains and counts; where a run is kept, when it is saved and
how it is taken up again is the trainer's.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from growthring.data.batch import Batch
from growthring.growing.osgd import DynamicOSGD
from growthring.optim import RingOptimizer
from growthring.runs.records import LogRecord
from growthring.streams import GrowingData
from growthring.train.account import Account
from growthring.train.compilation import Compilation
from growthring.train.compiling import CompiledStage
from growthring.train.failing import check_number, no_such_label, not_finite
from growthring.train.growing_data import known_only
from growthring.train.idle import nothing
from growthring.train.lengths import evaluation_steps
from growthring.train.measure import (
    OnDevice,
    apply,
    arithmetic_of,
    batch_sums,
    counts_nothing,
    means,
    sums_of,
)
from growthring.train.parts import Parts
from growthring.train.progress import Progress
from growthring.train.seen import right_by_class
from growthring.train.setup import learning_rate
from growthring.train.state import Clock, Totals, TrainingError


class Loop:
    """Trains parts through all stages of their plan.

    Args:
        parts: what to train.
        progress: what shows how far it is.

    Attributes:
        totals: where it is, and what it has spent.
        account: the same as records.
        sums: loss, right answers and examples since the last evaluation.
        compilation: which stages are compiled.
    """

    def __init__(self, parts: Parts, progress: Progress) -> None:
        self.parts, self.progress = parts, progress
        self.recipe, self.device, self.plan = parts.recipe, parts.device, parts.plan
        self.model, self.optimizer, self.grower = parts.model, parts.optimizer, parts.grower
        self.train, self.test, self.loss = parts.train, parts.test, parts.loss
        self.processes = parts.processes
        self.total_steps = parts.total_steps
        self._unit = self.plan.lengths.unit or "epochs"
        in_steps = self._unit == "steps"
        self._evaluated = frozenset(evaluation_steps(parts.stage_steps) if in_steps else ())
        self.account = Account(parts, Totals())
        self.sums = torch.zeros(3, dtype=torch.float64)
        self.compilation = Compilation(parts, self.account, progress, self._precision)
        self._forward: Any = parts.wrapped
        self._said: set[str] = set()

    @property
    def totals(self) -> Totals:
        """Where it is, and what it has spent."""
        return self.account.totals

    @property
    def is_done(self) -> bool:
        """Whether all stages are trained."""
        return self.totals.stage >= self.plan.num_stages

    # What a trainer adds.

    def note(self, record: LogRecord) -> None:
        """Called with every record."""

    def after_step(self) -> None:
        """Called after every step."""

    def after_choices(self) -> None:
        """Called when it is decided what is compiled."""

    def before_pass(self) -> None:
        """Called before one more pass over the data of a stage that ends."""

    def in_pass(self) -> None:
        """Called after every batch of it."""

    def after_stage(self) -> None:
        """Called after every stage, and the growth behind it."""

    # The loop.

    def run_stages(self) -> None:
        """All stages that are left."""
        self._say_notes()
        self.compilation.prepare(self.after_choices)
        with contextlib.closing(self._batches()) as batches:
            while not self.is_done:
                self._stage(batches)

    def _batches(self) -> Generator[Batch | None]:
        """Batches, one epoch after the other; None wherever the model is to be evaluated.

        One iterator lasts for the whole run: a user's loader cannot be left in mid-epoch without reading it again.
        """
        totals = self.totals
        if self._is_due:
            yield None  # the run was saved between the step and its evaluation
        while True:
            before, stage = totals.step, totals.stage
            is_new = self.train.part == 0 if self._unit == "steps" else not self.sums[2]
            for batch in OnDevice(self.processes.in_step(self.train), self.device):
                yield batch
                if self._is_due:
                    yield None
            if self.parts.growing is not None and totals.stage != stage:
                continue  # other data has come in mid-epoch
            if is_new and totals.step == before:
                raise TrainingError(
                    f"epoch {totals.epoch} had no examples: the stream of batches gave none; {self._kept()}."
                )
            totals.epoch += 1
            totals.epochs_in_stage += 1
            if self._unit == "epochs":
                yield None

    @property
    def _is_due(self) -> bool:
        """Whether the last step is one that the run, so many steps long, is to be evaluated after."""
        return self.totals.step in self._evaluated and bool(self.sums[2])

    def _stage(self, batches: Iterator[Batch | None]) -> None:
        """All steps of one stage, then the growth to the next."""
        totals, stage = self.totals, self.totals.stage
        self.train.set_batch_size(self.plan.batch_sizes[stage])
        self.parts.regularisation.enter(stage)
        self._forward = self.compilation.forward(stage)
        while totals.done(self._unit)[1] < self.plan.lengths.counts[stage] or self._is_due:
            self._stretch(batches)
        self._end_stage(is_last=stage == self.plan.num_stages - 1)
        self.after_stage()

    def _end_stage(self, is_last: bool) -> None:
        """The pass over its data, what is known by now, and the growth to the next stage."""
        totals, grower, osgd = self.totals, self.grower, self.parts.osgd
        report, before = None, totals.cpu_seconds
        if grower is not None:
            grower.finish()
        if osgd is not None and not is_last:
            self.before_pass()
            self.progress.say(f"passing once more over the data of stage {totals.stage} ...")
            self._remember(osgd)
        if self.parts.growing is not None:
            self.note(self.account.stage(self.parts.growing, self._seen(self.parts.growing)))
        clock = Clock()
        if grower is not None and not is_last:
            if grower.method.searches:
                self.progress.say(
                    f"{self.recipe.method} searches for the units of stage {totals.stage + 1} ..."
                )
            before = totals.cpu_seconds
            report = grower.grow()
        elif osgd is not None and not is_last:
            osgd.begin_stage()
        clock.add_to(totals)
        self.processes.pool(totals)
        totals.stage, totals.epochs_in_stage, totals.steps_in_stage = totals.stage + 1, 0, 0
        if report is not None:
            totals.search_flops += report.search_flops
            self.note(self.account.growth(report, totals.cpu_seconds - before))
        if self.parts.growing is not None and not is_last:
            totals.epoch += self.train.part > 0  # what is left of it is passed over
            self.parts.enter_data(totals.stage)

    def _remember(self, osgd: DynamicOSGD) -> None:
        """One more pass over the stage's data, for its gradient; training's batches stay where they are."""
        clock, stage, processes = Clock(), self.totals.stage, self.processes
        with osgd.accumulating() as total:
            for batch in OnDevice(processes.slices(self.train.fork(stage)), self.device):
                with processes.together():
                    loss, sums = self._losses(batch)
                whole, count = processes.added(sums, batch)
                with processes.averaging():
                    total.add(processes.scaled(loss, sums, whole), count)
                self.account.spend_on_old(batch, count)
                self.in_pass()
        clock.add_to(self.totals)

    def _seen(self, growing: GrowingData) -> Tensor | None:
        """Right answers and examples of each class in the test data; None where classes are not known."""
        seen = growing.seen(len(growing) - 1)
        if self.test is None or not seen:
            return None
        processes = self.processes
        processes.level(self.model)
        with processes.together(), processes.draws.own():
            slices, number = processes.slices(self.test.fork(0)), max(seen) + 1
            counts = right_by_class(self.model, slices, number, self._precision, self.device)
        return None if counts is None else processes.total(counts)

    def _stretch(self, batches: Iterator[Batch | None]) -> None:
        """All steps up to the next evaluation, that evaluation and its record."""
        totals, recipe = self.totals, self.recipe
        steps_in_stage = self.parts.stage_steps[totals.stage]
        factor = self.plan.rate_factors[totals.stage]
        self.model.train()
        clock = Clock()
        rate = learning_rate(recipe, max(totals.step - 1, 0), self.total_steps) * factor
        for batch in batches:
            if batch is None:
                break
            rate = learning_rate(recipe, totals.step, self.total_steps) * factor
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            if self.grower is not None:
                done = totals.steps_in_stage / max(steps_in_stage, 1)
                self.grower.advance(min(1.0, done / self.grower.fade))
            if self.parts.osgd is not None:
                self.parts.osgd.advance(totals.steps_in_stage / max(steps_in_stage, 1))
            with self.processes.draws.own():
                count = self._step(batch)
            totals.step += 1
            totals.steps_in_stage += 1
            if self.processes.is_first:
                self.account.spend(batch, count)
            clock.add_to(totals)
            self.progress.step(self.account.status(self._mean_loss))
            self.after_step()
            clock = Clock()
        self.processes.pool(totals)
        record = self.account.epoch(rate, means(self.sums), self.evaluate())
        self.sums.zero_()
        self.note(record)
        is_last = totals.done(self._unit)[1] >= self.plan.lengths.counts[totals.stage]
        self.progress.epoch(record, self.account.width, is_last, self.parts.task.metrics)
        self._say_notes()

    def _step(self, batch: Batch) -> int:
        """Forward, backward, update; nothing is updated if the loss is not finite.

        Returns:
            Examples that were trained on, over all processes.
        """
        was_compiled, started = self._is_compiled, time.perf_counter()
        with self.processes.together():
            loss, sums = self._losses(batch)
        total, count = self.processes.added(sums, batch)
        if not self.processes.is_alone and not total[2]:
            raise self._not_finite(math.nan, batch[0])
        self.optimizer.zero_grad()
        with self.processes.averaging():
            self.processes.scaled(loss, sums, total).backward()
        if self._is_compiled and not was_compiled:  # in this step, forward and backward
            self.totals.compile_seconds += time.perf_counter() - started
        if self.recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm)
        self.optimizer.step()
        self.sums += total.cpu()
        return count

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, and the sums of `batch_sums`."""
        if not self.processes.is_alone and counts_nothing(batch):
            with self._precision():
                return nothing(self._forward, batch[0])
        inputs, targets = batch
        with self._precision():
            outputs = apply(self._forward, inputs)
            try:
                loss = self.loss(outputs, targets)
            except IndexError as error:  # "Target 10 is out of bounds."
                raise no_such_label(error, self._place, self._kept()) from error
        check_number(loss, self._kept())
        if self.device.type == "cpu" or self.totals.step % 20 == 0:
            value = float(loss.detach())
            if not math.isfinite(value):
                raise self._not_finite(value, inputs)
        return loss, batch_sums(loss, outputs, batch)  # now, as the outputs are still in the cache

    @property
    def _is_compiled(self) -> bool:
        """Whether the present stage is compiled by now."""
        return isinstance(self._forward, CompiledStage) and self._forward.has_run

    def evaluate(self) -> tuple[float | None, float | None]:
        """Loss and accuracy (0 to 1) on the test data; None where there is none."""
        if self.test is None:
            return None, None
        processes = self.processes
        processes.level(self.model)
        with processes.together(), processes.draws.own():
            slices = self._known(processes.slices(self.test.fork(0)))
            sums = sums_of(self.model, slices, self.parts.test_loss, self._precision, self.device)
        return means(processes.total(sums))

    def _known(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Test batches, without the classes that the model has no outputs for yet."""
        classes = self.plan.classes[: self.totals.stage + 1]
        return known_only(batches, classes[-1]) if classes else batches

    def _say_notes(self) -> None:
        """What the data and the processes have to say, each of it once."""
        of_data = (*self.train.notes, *(() if self.test is None else self.test.notes))
        for note in (*self.processes.notes_on(self.model), *of_data):
            if note not in self._said:
                self._said.add(note)
                self.progress.say(f"note: {note}")

    def _mean_loss(self) -> float:
        # on an accelerator it would have to be waited for
        loss_sum, _, examples = self.sums.tolist() if self.device.type == "cpu" else (0, 0, 1)
        return loss_sum / max(examples, 1)

    @property
    def _place(self) -> str:
        return f"step {self.totals.step}, stage {self.totals.stage}"

    def _not_finite(self, value: float, inputs: Any) -> TrainingError:
        """A loss that is not finite ends the run; what was saved is from before."""
        return not_finite(value, inputs, self._place, self.optimizer, self.rings, self._kept())

    def _kept(self) -> str:
        """What there is to go back to, for messages."""
        return "nothing was saved"

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        return arithmetic_of(self.recipe.precision, self.device)

    @property
    def rings(self) -> RingOptimizer | None:
        """The optimizer, if it gives rings rates of their own."""
        is_ringed = self.grower is not None and isinstance(self.optimizer, RingOptimizer)
        return self.optimizer if is_ringed else None  # type: ignore[return-value]
