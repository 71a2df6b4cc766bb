"""PlanOptions: all that a plan may be asked for, as one frozen value with its defaults and its checks."""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from growthring.errors import InputError, PlanError
from growthring.graph.analysis import Build
from growthring.graph.choosing import Heads
from growthring.planning.costs import OPTIMIZER_STATE
from growthring.planning.schedule import (
    ScheduleKind,
    check_batch_rate,
    check_list,
    check_rate,
    check_schedule,
    check_stages,
    check_start,
    check_whole,
    is_number,
)

Widths = Mapping[str, Sequence[int]] | Sequence[tuple[str, Sequence[int]]]


# What a field's metadata says. "bounds": the numbers that a recipe may give; others are beyond use, and would be
# allocated for. "later": the option came after runs had been stored, and is stored only where it is not the
# default, so that the settings of a run are the same before and after. Every new option is one of these.
LATER = {"later": True}


@dataclass(frozen=True)
class PlanOptions:
    """What `growthring.plan` is asked for; it takes each option as a keyword, too.

    A recipe holds one, and `--set` and contenders change its options under the same names.

    Attributes:
        stages: number of stages, the seed's included.
        start: share of the full width at stage 0.
        growth: growth rate of widths per stage (paper's p_c); None grows evenly to the full width.
        epochs: of the whole training, or a list over stages (in a recipe a number).
        first_epochs: epochs of stage 0; by default a twentieth of all, as published.
        epoch_growth: growth rate of epochs per stage (p_t); the last stage takes the rest.
        batch_size: of the last stage, or a list over stages (in a recipe a number).
        batch_growth: how much larger batches are one stage earlier (p_b).
        batch_rate: how the learning rate follows the batch size: "none" (the paper), "linear", "sqrt".
        schedule: "published", "recursive" (eqs. 6 and 7 to the letter) or "linear".
        round_to: widths are rounded to multiples of this, and of each group's own unit.
        freeze: names or globs of modules, parameters or groups that must not grow.
        budget: share of the cost of fixed-size training (0 to 1) to stay within; first_epochs (unless given), then
            growth are chosen to meet it.
        optimizer: whose state the memory counts, and that a recipe trains with: sgd, adam, adamw, avagrad, lars or
            (of a plan only) none.
        budget_of: "flops", or "seconds", measured on this machine.
        batch_memory: bytes that a training step may take; every stage gets the largest batch that fits.
        widths: explicit widths per stage for some groups, by name or glob; the last must be the full width.
        heads: which factor of heads × head size grows, see `discover_width_groups`.
        outputs: of a model output with named parts, those that must keep their shape, see `discover_width_groups`.
        build: `build(widths by group name) -> module`, for a model whose code computes its shapes in a way that no
            attribute can follow.

    Raises:
        PlanError: an option is not what it may be, whatever the model; the message names it.

    >>> PlanOptions(stages=3).changed(epochs=30).epochs
    30
    >>> PlanOptions(stages=0)
    Traceback (most recent call last):
    growthring.errors.PlanError: stages=0: a plan needs a whole number of stages, at least 1.
    """

    stages: int = field(default=9, metadata={"bounds": (1, 1_000)})
    start: float = 0.25
    growth: float | None = 0.2
    epochs: int | Sequence[int] = field(default=160, metadata={"bounds": (1, 10**9)})
    first_epochs: int | None = field(default=None, metadata={"bounds": (1, 10**9)})
    epoch_growth: float = 0.2
    batch_size: int | Sequence[int] = field(default=128, metadata={"bounds": (1, 10**7)})
    batch_growth: float = 0.0
    batch_rate: Literal["none", "linear", "sqrt"] = "none"
    schedule: ScheduleKind = "published"
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

    def __post_init__(self) -> None:
        """Checks what can be told without a model, and turns what can be read only once into tuples."""
        check_stages(self.stages)
        check_schedule(self.schedule)
        check_start(self.start)
        if self.growth is not None:
            check_rate("growth", self.growth)
        self._check_count("epochs", self.epochs)
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
        object.__setattr__(self, "freeze", _names(self.freeze))
        object.__setattr__(self, "widths", _pairs(self.widths))

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
        return dataclasses.replace(self, **changes)

    def _check_count(self, name: str, value: Any) -> None:
        """A whole number, or one for each stage."""
        if isinstance(value, numbers.Integral):
            check_whole(name, value)
        else:
            check_list(name, value, self.stages)


OPTIONS = {f.name: f for f in dataclasses.fields(PlanOptions)}


def nearest(name: str, known: Iterable[str]) -> str:
    """Which of the known names one may have meant, in words.

    >>> nearest("stage", ["stages", "start"]), nearest("x", ["stages", "start"])
    ("the nearest is 'stages'", 'there are stages, start')
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"the nearest is '{near[0]}'" if near else f"there are {', '.join(names)}"


def _names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, Iterable):
        raise PlanError(f"freeze={names!r} is not a list of names.")
    return (names,) if isinstance(names, str) else tuple(names)


def _pairs(widths: Any) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    """(name, widths) pairs of a mapping or of a sequence of pairs: a name may be a glob, and come twice."""
    if widths is None:
        return None
    if not isinstance(widths, Iterable) or isinstance(widths, str):
        raise PlanError(f"widths={widths!r}: expected a mapping from group names to widths.")
    pairs = []
    for item in widths.items() if isinstance(widths, Mapping) else widths:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise PlanError(
                f"widths={widths!r}: expected a mapping from group names to one width per stage, such as "
                "{'layer1.conv1': [16, 32, 64]}."
            )
        name, values = item
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise PlanError(
                f"widths['{name}'] = {values!r}: expected one width per stage, such as [16, 32, 64]."
            )
        pairs.append((str(name), tuple(values)))
    return tuple(pairs)
