"""Records: what a run writes down, and a report reads.

A line of the log is one of four records; the result is a file of its own. A log may be of an older growthring,
or damaged: what a line does not tell is None, and every record can be made of any JSON object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from growthring.runs.metrics import ACCURACY, LOSS, Metric
from growthring.runs.values import items, mapping, number, numbers, whole


@dataclass(frozen=True)
class EpochRecord:
    """The metrics of one evaluation: after an epoch or, in a run that is counted in steps, after some of them.

    Attributes:
        number: epochs done, so the first has number 1; a line counts from 0. In a run that is counted in steps a
            float, as its evaluations come anywhere in an epoch; a line calls it `epochs`.
        stage, step: where the run was.
        lr: learning rate of the last step.
        train_loss, train_accuracy: means since the evaluation before, while it was trained.
        test_loss, test_accuracy: on the test data.
        seconds, flops: of training so far.
        cpu_seconds: the same in processor time.
        flops_share: of fixed-size training on as many examples as were planned.
        batch_size: of the last step.
        scores: other metrics on the test data, by their keys.
    """

    KIND: ClassVar[str] = "epoch"

    number: float
    stage: int
    step: float | None = None
    lr: float | None = None
    train_loss: float | None = None
    train_accuracy: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    flops: float | None = None
    flops_share: float | None = None
    batch_size: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)

    def value(self, key: str) -> float | None:
        """A number by its key, a score among them.

        >>> EpochRecord(1, 0, test_loss=0.5, scores={"test_bleu": 3.0}).value("test_bleu")
        3.0
        """
        return self.scores.get(key, getattr(self, key, None))

    def as_line(self) -> dict[str, Any]:
        """The record as the log has it.

        >>> EpochRecord(1, 0, step=10).as_line()["epoch"]
        0
        >>> EpochRecord(0.25, 0, step=10).as_line()["epochs"]
        0.25
        """
        values = asdict(self)
        number = values.pop("number")
        place = {"epoch": number - 1} if isinstance(number, int) else {"epochs": number}
        if not self.scores:
            values.pop("scores")
        return {"kind": self.KIND, **place, **values}

    @classmethod
    def of_line(cls, line: Mapping[str, Any], before: EpochRecord | None) -> EpochRecord:
        """The record of a line; what it does not say of its place follows from the one before."""
        epoch, stage = number(line.get("epochs", line.get("epoch"))), whole(line.get("stage"))
        if epoch is None:
            epoch = 1.0 if before is None else before.number + 1
        if stage is None:
            stage = 0 if before is None else before.stage
        names = [f.name for f in fields(cls) if f.name not in ("number", "stage", "scores")]
        values = {name: number(line.get(name)) for name in names}
        return cls(epoch, stage, **values, scores=numbers(line.get("scores")))


@dataclass(frozen=True)
class GrowthRecord:
    """One growth.

    Attributes:
        stage: that it led to.
        num_epochs: that were done before; a line calls them `epoch`. Of a log that was read, records of epochs.
        step: steps that were done before.
        seconds: that it took, without those of measuring what it changed.
        cpu_seconds: of the processor, with them.
        search_flops: of the growth method's own optimisation.
        change: relative change of the outputs, without noise and up to a factor.
        parameters: after it.
        widths: of the groups, after it.
    """

    KIND: ClassVar[str] = "growth"

    stage: int
    num_epochs: int
    step: int | None = None
    seconds: float | None = None
    search_flops: float | None = None
    change: float | None = None
    parameters: int | None = None
    widths: Mapping[str, Any] | None = None
    cpu_seconds: float | None = None

    def as_line(self) -> dict[str, Any]:
        """The record as the log has it."""
        values = asdict(self)
        return {"kind": self.KIND, "epoch": values.pop("num_epochs"), **values}

    @classmethod
    def of_line(
        cls, line: Mapping[str, Any], num_epochs: int, before: GrowthRecord | None
    ) -> GrowthRecord:
        """The record of a line; a run that was resumed may count otherwise, so epochs are counted here."""
        stage = whole(line.get("stage"))
        if stage is None:
            stage = 1 if before is None else before.stage + 1
        return cls(
            stage,
            num_epochs,
            whole(line.get("step")),
            number(line.get("seconds")),
            number(line.get("search_flops")),
            number(line.get("change")),
            whole(line.get("parameters")),
            mapping(line.get("widths")),
            number(line.get("cpu_seconds")),
        )


@dataclass(frozen=True)
class RatesRecord:
    """The rate factors of every ring of some parameters at one step."""

    KIND: ClassVar[str] = "rates"

    step: float
    stage: int | None
    factors: Mapping[str, tuple[float | None, ...]]

    def as_line(self) -> dict[str, Any]:
        """The record as the log has it."""
        factors = {name: list(values) for name, values in self.factors.items()}
        return {"kind": self.KIND, "step": self.step, "stage": self.stage, "factors": factors}

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> RatesRecord | None:
        """The record of a line; None if it does not say of which step it is."""
        step = number(line.get("step"))
        factors = mapping(line.get("factors"))
        values = {name: tuple(map(number, items(v))) for name, v in factors.items()}
        return None if step is None else cls(step, whole(line.get("stage")), values)


@dataclass(frozen=True)
class StageRecord:
    """What a run on growing data knew at the end of one of its stages, before the next data came.

    Attributes:
        stage, step: where the run was.
        examples: training examples of the stage.
        classes: that were seen so far.
        accuracy: on the test examples of these classes, 0 to 1.
        parts: the same on the classes that each stage so far brought, stage 0 first; None for a stage that brought
            none.
        flops: of training so far.
        seconds, cpu_seconds: of training so far.
    """

    KIND: ClassVar[str] = "stage"

    stage: int
    step: float | None = None
    examples: int | None = None
    classes: int | None = None
    accuracy: float | None = None
    parts: tuple[float | None, ...] = ()
    flops: float | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None

    def as_line(self) -> dict[str, Any]:
        """The record as the log has it."""
        return {"kind": self.KIND, **asdict(self), "parts": list(self.parts)}

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> StageRecord | None:
        """The record of a line; None if it does not say of which stage it is."""
        stage = whole(line.get("stage"))
        if stage is None or stage < 0:
            return None
        return cls(
            stage,
            number(line.get("step")),
            whole(line.get("examples")),
            whole(line.get("classes")),
            number(line.get("accuracy")),
            tuple(map(number, items(line.get("parts")))),
            *(number(line.get(key)) for key in ("flops", "seconds", "cpu_seconds")),
        )


LogRecord = EpochRecord | GrowthRecord | RatesRecord | StageRecord


@dataclass(frozen=True)
class Result:
    """What a finished run came to.

    Attributes:
        test_accuracy: 0 to 1; None where outputs are no classes.
        test_loss: mean over the test data.
        seconds: of training and growing, by the clock on the wall.
        cpu_seconds: the same in processor time, which other work on the machine does not add to.
        flops: of training, of the method's own search, and of passes over old data.
        flops_share: of those of fixed-size training on as many examples.
        search_flops: the method's part of them.
        peak_memory: bytes above what the process had before, None where that cannot be measured.
        steps, epochs: how many; epochs are whole but in a run that is counted in steps.
        parameters: of the final model.
        scores: other metrics on the test data, by their keys.
        notes: how they were measured.
        compile_seconds: the part of `seconds` that torch.compile took.
        pass_flops: the part of `flops` that passes over old data took, for dynamic OSGD.
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
    epochs: float
    parameters: int
    scores: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    compile_seconds: float = 0.0
    pass_flops: float = 0.0

    def value(self, metric: Metric) -> float | None:
        """The number of a metric; None where it was not measured."""
        value = self.scores.get(metric.key, getattr(self, metric.key, None))
        return value if isinstance(value, int | float) else None

    def sentence(self, metrics: Sequence[Metric]) -> str:
        """What it came to, by the first of some metrics that was measured."""
        known = ((metric, self.value(metric)) for metric in metrics)
        said = next((f"{m.title} {m.text(v)}, " for m, v in known if v is not None), "")
        part = f", {self.compile_seconds:.0f} s of them compiling" if self.compile_seconds else ""
        cost = f"{self.flops_share:.1%} of the FLOPs of fixed-size training"
        return f"{said}{cost}, {self.seconds:.0f} s of training{part}"

    def __str__(self) -> str:
        return self.sentence((ACCURACY, LOSS))
