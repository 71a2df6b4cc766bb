"""PlanOptions: all that a plan may be asked for, as one frozen value with its defaults and its checks."""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from growthring.core.presets import PresetName, preset_named
from growthring.core.wording import counted
from growthring.errors import InputError, PlanError
from growthring.graph.analysis import Build
from growthring.graph.choosing import Heads
from growthring.planning.classes import check_classes
from growthring.planning.costs import OPTIMIZER_STATE
from growthring.planning.given import names_of, pairs_of
from growthring.planning.schedule import (
    ON_A_LINE,
    ScheduleKind,
    check_batch_rate,
    check_examples,
    check_list,
    check_rate,
    check_schedule,
    check_stages,
    check_start,
    check_times,
    check_whole,
    is_number,
)

Widths = Mapping[str, Sequence[int]] | Sequence[tuple[str, Sequence[int]]]


# What a field's metadata says. "bounds": the numbers that a recipe may give; others are beyond use, and would be
# allocated for. "later": the option came after runs had been stored, and is stored only where it is not the
# default, so that the settings of a run are the same before and after. Every new option is one of these. "absent":
# what runs without the option were trained with, where the default is another one now.
LATER = {"later": True}


class _Unset:
    """Of an option that was not given: the preset decides."""

    def __repr__(self) -> str:
        return "<preset>"


UNSET: Any = _Unset()


@dataclass(frozen=True)
class PlanOptions:
    """What `growthring.plan` is asked for; it takes each option as a keyword, too.

    A recipe holds one, and `--set` and contenders change its options under the same names.

    Attributes:
        preset: "default", or "paper" for the paper's schedule, rates and variance transfer, see
            `growthring.core.presets`.
        stages: number of stages, the seed's included; None takes doublings, as many as the run has room for.
        start: share of the full width at stage 0; None takes half of it, or a quarter where more than two stages
            are asked for.
        growth: growth rate of widths per stage (paper's p_c); None grows evenly to the full width.
        epochs: of the whole training, or a list over stages (in a recipe a number).
        total_steps: optimizer steps of the whole training, instead of epochs: growth then need not wait for the end
            of an epoch.
        steps_per_epoch: optimizer steps of an epoch, so that `Grower.step` knows how long `epochs` are.
        grown_at: of schedules "ramp" and "doubling": share of the training after which the model has its full size.
        growth_at: shares of the training at which each growth comes, instead.
        first_epochs: of "published" and "recursive": epochs of stage 0; by default a twentieth of all.
        epoch_growth: of the same: growth rate of epochs per stage (p_t); the last stage takes the rest.
        batch_size: of the last stage, or a list over stages (in a recipe a number).
        batch_growth: how much larger batches are one stage earlier (p_b).
        batch_rate: how the learning rate follows the batch size: "none" (the paper), "linear", "sqrt".
        schedule: "ramp" (few stages, the width follows a straight line in time), "doubling" (the same in halves of
            halves of the full width, in multiples of 16 where these are; `stages` or `start` say how many),
            "published" (the paper's numbers), "recursive" (eqs. 6 and 7 to the letter) or "linear" (equal
            steps, equal lengths).
        round_to: widths are rounded to multiples of this, and of each group's own unit.
        freeze: names or globs of modules, parameters or groups that must not grow.
        budget: share of the cost of fixed-size training (0 to 1) to stay within; grown_at is chosen to meet it, or
            in the paper's schedules first_epochs (unless given), then growth.
        optimizer: whose state the memory counts, and that a recipe trains with: sgd, adam, adamw, avagrad, lars or
            (of a plan only) none.
        budget_of: "flops", or "seconds", measured on this machine.
        batch_memory: bytes that a training step may take; every stage gets the largest batch that fits.
        widths: explicit widths per stage for some groups, by name or glob; the last must be the full width.
        heads: which factor of heads × head size grows: "count", "size", "both" (their product follows the widths of
            the stages; `widths` for one of them says which stage grows which), or "auto": the preset decides, by
            default whole heads where their number can follow the widths of the stages, see `discover_width_groups`.
        outputs: of a model output with named parts, those that must keep their shape, see `discover_width_groups`.
        stage_examples: of data that grows with the stages, how many examples each has (`gr.streams`), or its shares
            of them where the number is not known: costs follow, and of numbers the steps of `epochs`, too.
        classes: numbers of classes that the model tells apart at each stage, the last one its number of outputs:
            the last axis of what it returns gains entries, and those of old classes stay (docs/how-it-works.md).
        build: `build(widths by group name) -> module`, for a model whose code computes its shapes in a way that no
            attribute can follow.

    Raises:
        PlanError: an option is not what it may be, whatever the model; the message names it.

    >>> PlanOptions(stages=3).changed(epochs=30).epochs
    30
    >>> PlanOptions(preset="paper").stages
    9
    >>> PlanOptions(stages=0)
    Traceback (most recent call last):
    growthring.errors.PlanError: stages=0: a plan needs a whole number of stages, at least 1.
    """

    stages: int | None = field(default=UNSET, metadata={"bounds": (1, 1_000)})
    start: float | None = UNSET
    growth: float | None = UNSET
    epochs: int | Sequence[int] | None = field(default=UNSET, metadata={"bounds": (1, 10**9)})
    first_epochs: int | None = field(default=None, metadata={"bounds": (1, 10**9)})
    epoch_growth: float = 0.2
    batch_size: int | Sequence[int] = field(default=128, metadata={"bounds": (1, 10**7)})
    batch_growth: float = 0.0
    batch_rate: Literal["none", "linear", "sqrt"] = "none"
    schedule: ScheduleKind = UNSET
    round_to: int = field(default=2, metadata={"bounds": (1, 10**6)})
    freeze: tuple[str, ...] = ()
    budget: float | None = None
    optimizer: str = "sgd"
    budget_of: Literal["flops", "seconds"] = field(default="flops", metadata=LATER)
    batch_memory: float | None = field(default=None, metadata=LATER)
    widths: Widths | None = field(default=None, metadata=LATER)
    heads: Heads = field(default="auto", metadata=LATER)
    outputs: Sequence[str] | None = field(default=None, metadata=LATER)
    build: Build | None = field(default=None, metadata=LATER)
    preset: PresetName = "default"
    total_steps: int | None = field(default=None, metadata={**LATER, "bounds": (1, 10**15)})
    steps_per_epoch: int | None = field(default=None, metadata={**LATER, "bounds": (1, 10**12)})
    grown_at: float = field(default=UNSET, metadata={**LATER, "absent": 0.5})
    growth_at: tuple[float, ...] | None = field(default=None, metadata=LATER)
    stage_examples: tuple[float, ...] | None = field(default=None, metadata=LATER)
    classes: Sequence[int] | None = field(default=None, metadata={**LATER, "bounds": (1, 10**7)})

    def __post_init__(self) -> None:
        """Takes from the preset what was not given, checks what can be told without a model, makes lists tuples."""
        for name, value in preset_named(self.preset).plan.items():
            if getattr(self, name) is UNSET:
                is_length = name == "epochs" and self.total_steps is not None
                object.__setattr__(self, name, None if is_length else value)
        if self.stages is not None:
            check_stages(self.stages)
        check_schedule(self.schedule)
        if self.start is not None:
            check_start(self.start)
        if self.growth is not None:
            check_rate("growth", self.growth)
        if self.stage_examples is not None:
            examples = check_examples(self.stage_examples, self.stages)
            object.__setattr__(self, "stage_examples", examples)
        self._check_lengths()
        if self.first_epochs is not None:
            check_whole("first_epochs", self.first_epochs)
        check_rate("epoch_growth", self.epoch_growth)
        self._check_count("batch_size", self.batch_size)
        check_rate("batch_growth", self.batch_growth)
        check_batch_rate(self.batch_rate)
        memory: Any = self.batch_memory
        if memory is not None and not (is_number(memory) and 0 < memory < math.inf):
            raise PlanError(f"batch_memory={memory!r} is not a number of bytes.")
        if (
            isinstance(self.round_to, bool)
            or not isinstance(self.round_to, int)
            or self.round_to < 1
        ):
            raise PlanError(
                f"round_to={self.round_to!r}: widths are rounded to a multiple of a whole number, at least 1."
            )
        if self.optimizer not in OPTIMIZER_STATE:
            raise PlanError(
                f"optimizer={self.optimizer!r} is not one of {', '.join(OPTIMIZER_STATE)}."
            )
        budget: Any = self.budget
        if budget is not None and not (is_number(budget) and 0 < budget <= 1):
            raise PlanError(
                f"budget={budget!r}: a share of fixed-size training, above 0 and at most 1."
            )
        if self.budget_of not in ("flops", "seconds"):
            raise PlanError(f"budget_of={self.budget_of!r} is not 'flops' or 'seconds'.")
        if self.build is not None and not callable(self.build):
            raise PlanError(f"build={self.build!r} is not a function from widths to a module.")
        object.__setattr__(self, "freeze", names_of(self.freeze))
        object.__setattr__(self, "widths", pairs_of(self.widths))
        if self.classes is not None:
            classes = check_classes(self.classes, self.asked_stages)
            object.__setattr__(self, "classes", classes)

    def changed(self, **changes: Any) -> PlanOptions:
        """These options with others in place of some.

        Raises:
            InputError: there is no such option; the message names the nearest.
            PlanError: an option is not what it may be.

        >>> PlanOptions().changed(stage=3)
        Traceback (most recent call last):
        growthring.errors.InputError: there is no plan option 'stage'; the nearest is 'stages'.
        """
        for name in changes:
            if name not in OPTIONS:
                raise InputError(f"there is no plan option '{name}'; {nearest(name, OPTIONS)}.")
        if (
            changes.get("preset", self.preset) != self.preset
        ):  # whatever was not given is the new one's
            changes = {**dict.fromkeys(preset_named(changes["preset"]).plan, UNSET), **changes}
        if changes.get("total_steps") is not None:
            changes = {"epochs": None, **changes}
        if changes.get("epochs") is not None:
            changes = {"total_steps": None, **changes}
        return dataclasses.replace(self, **changes)

    @property
    def asked_stages(self) -> int | None:
        """Number of stages that was asked for, by itself or by a list over stages; None where it is open."""
        if self.stages is None and self.growth_at:
            return len(self.growth_at) + 1
        given = (widths for _, widths in self.width_pairs)
        # examples last, as there may be fewer of them
        lists: list[Any] = [self.epochs, self.batch_size, *given, self.classes, self.stage_examples]
        listed = next((len(one) for one in lists if isinstance(one, Sequence)), None)
        return listed if self.stages is None else self.stages

    @property
    def seed_share(self) -> float:
        """Of the full width at stage 0: `start`, or what follows from the number of stages.

        >>> (
        ...     PlanOptions().seed_share,
        ...     PlanOptions(stages=4).seed_share,
        ...     PlanOptions(start=0.1).seed_share,
        ... )
        (0.5, 0.25, 0.1)
        """
        if self.start is not None:
            return self.start
        return 0.5 if (self.asked_stages or 2) == 2 else 0.25

    @property
    def width_pairs(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(name or glob, widths over stages) as they were asked for."""
        pairs: Any = self.widths or ()  # whatever was given, pairs are kept
        return tuple(pairs)

    def _check_lengths(self) -> None:
        """The length of the run: in epochs, in steps, or open."""
        if self.epochs is not None:
            self._check_count("epochs", self.epochs)
        for name in ("total_steps", "steps_per_epoch"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        if self.total_steps is not None and self.epochs is not None:
            raise PlanError(
                f"total_steps={self.total_steps} and epochs={self.epochs} both give the length of the run: leave "
                "one out (steps_per_epoch= turns epochs into steps)."
            )
        if self.first_epochs is not None and self.total_steps is not None:
            raise PlanError(
                f"first_epochs={self.first_epochs} counts epochs, total_steps={self.total_steps} steps: leave "
                "first_epochs out, which makes the first stage a twentieth of the run."
            )
        if self.steps_per_epoch is not None and self.epochs is None:
            raise PlanError(
                f"steps_per_epoch={self.steps_per_epoch} tells how long an epoch is: it needs epochs=."
            )
        if not is_number(self.grown_at) or not 0 < self.grown_at < 1:
            raise PlanError(
                f"grown_at={self.grown_at!r}: the share of the training after which the model has its full size, "
                "between 0 and 1."
            )
        if self.growth_at is not None:
            self._check_times()
        if self.schedule == "doubling" and self.growth is not None:
            raise PlanError(
                f"growth={self.growth!r}: schedule 'doubling' grows to twice the width at every stage. Leave "
                "growth out, or pass schedule='ramp'."
            )
        if self.first_epochs is not None and self.schedule in (*ON_A_LINE, "linear"):
            raise PlanError(
                f"first_epochs={self.first_epochs!r} is of the schedules 'published' and 'recursive'; this one is "
                f"'{self.schedule}'. Pass schedule='published', a list of epochs over stages"
                + (", or grown_at=." if self.schedule in ON_A_LINE else ".")
            )

    def _check_times(self) -> None:
        """Times of growths, which leave no room for lengths that are given in another way."""
        times = check_times(self.growth_at)
        object.__setattr__(self, "growth_at", times)
        if self.stages is not None and self.stages != len(times) + 1:
            raise PlanError(
                f"growth_at={times}: {counted(len(times), 'growth')} for {counted(len(times) + 1, 'stage')}, but "
                f"stages={self.stages}. Leave one of them out."
            )
        if isinstance(self.epochs, Sequence) or self.schedule in ("published", "recursive"):
            other = (
                "a list of epochs"
                if isinstance(self.epochs, Sequence)
                else f"schedule='{self.schedule}'"
            )
            raise PlanError(f"growth_at={times}: {other} says already when the model grows.")

    def _check_count(self, name: str, value: Any) -> None:
        """A whole number, or one for each stage."""
        if isinstance(value, numbers.Integral):
            object.__setattr__(self, name, check_whole(name, value))
        else:
            object.__setattr__(self, name, tuple(check_list(name, value, self.stages)))


OPTIONS = {f.name: f for f in dataclasses.fields(PlanOptions)}


def nearest(name: str, known: Iterable[str]) -> str:
    """Which of the known names one may have meant, in words.

    >>> nearest("stage", ["stages", "start"]), nearest("x", ["stages", "start"])
    ("the nearest is 'stages'", 'there are stages, start')
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"the nearest is '{near[0]}'" if near else f"there are {', '.join(names)}"
