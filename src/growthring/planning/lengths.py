"""Lengths: how many stages a run has room for, and how long each lasts, in epochs, steps or shares of training."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from growthring.core.wording import counted
from growthring.errors import PlanError
from growthring.planning.options import PlanOptions
from growthring.planning.schedule import (
    ON_A_LINE,
    doublings,
    filled_lengths,
    ramp_shares,
    rounded_lengths,
    shares_between,
    stage_epochs,
    width_fractions,
)

_TRIED = [i / 100 for i in range(2, 91)]  # values of grown_at that a budget may choose
_LATE = 0.8  # a last growth after this share of the training is worth a word


Unit = Literal["epochs", "steps"]


@dataclass(frozen=True)
class Length:
    """How long a run is.

    Attributes:
        count: so many.
        unit: "epochs", or "steps" of the optimizer.

    >>> print(Length(1, "epochs"), Length(2000, "steps"))
    1 epoch 2,000 steps
    """

    count: int
    unit: Unit

    @property
    def option(self) -> str:
        """Which option of a plan gives it."""
        return "epochs" if self.unit == "epochs" else "total_steps"

    def __str__(self) -> str:
        return counted(self.count, self.unit.removesuffix("s"))


@dataclass(frozen=True)
class Lengths:
    """How long each stage lasts.

    Attributes:
        shares: of the whole training, one for each stage.
        epochs: the same in epochs, if the length of the run was given so.
        steps: the same in optimizer steps, if it was.
    """

    shares: tuple[float, ...]
    epochs: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    @property
    def unit(self) -> Unit | None:
        """What the length of the run was given in; None where it is open."""
        return "epochs" if self.epochs else "steps" if self.steps else None

    @property
    def counts(self) -> tuple[int, ...]:
        """How many of that unit each stage has; none where the length is open."""
        return self.epochs or self.steps


def fractions_of(options: PlanOptions) -> list[float]:
    """Fraction of the full width at every stage; where their number is open, as many as the run has room for.

    Raises:
        PlanError: the run has no room for a growth.

    >>> fractions_of(PlanOptions()), fractions_of(PlanOptions(start=0.25, epochs=3))
    ([0.5, 1.0], [0.5, 1.0])
    """
    if options.asked_stages is not None:
        return _fractions(options.asked_stages, options)
    fractions = _fractions(doublings(options.seed_share, options.growth), options)
    total, unit = _total(options)
    if total is None or options.schedule not in ON_A_LINE:
        return fractions
    for first in range(len(fractions) - 1):  # the last doublings are kept: they save the most
        left = fractions[first:]
        if min(rounded_lengths(ramp_shares(left, options.grown_at), total)) >= 1:
            return left
    if len(fractions) == 1:
        return fractions
    why = " A plan in epochs grows at the end of one: pass total_steps= to grow within an epoch."
    raise PlanError(
        f"there is no room for a growth in {Length(total, unit)} with grown_at={options.grown_at}."
        + (why if unit == "epochs" else "")
    )


def lengths_of(options: PlanOptions, fractions: Sequence[float]) -> Lengths:
    """How long each stage lasts.

    Args:
        options: of the plan.
        fractions: of the full width at every stage.

    Raises:
        PlanError: the run does not reach for the stages.

    >>> lengths_of(PlanOptions(epochs=20, grown_at=0.5), [0.25, 0.5, 1.0]).epochs
    (2, 8, 10)
    >>> lengths_of(PlanOptions(total_steps=1000), [0.5, 1.0]).steps
    (700, 300)
    """
    total, unit = _total(options)
    if options.epochs is not None and not isinstance(options.epochs, int):
        return _in_units(options.epochs, "epochs")
    if total is None:
        return Lengths(tuple(_shares(options, fractions)))
    stages = len(fractions)
    if options.schedule not in ON_A_LINE and not options.growth_at:
        return _in_units(_published(options, stages, total, unit), unit)
    if stages > total:
        raise PlanError(
            f"{Length(total, unit)} do not reach for {stages} stages of at least one each. Choose fewer stages"
            + (
                ", or pass total_steps= to grow within an epoch."
                if unit == "epochs"
                else ", or more steps."
            )
        )
    return _in_units(filled_lengths(_shares(options, fractions), total), unit)


def possible_lengths(options: PlanOptions, fractions: Sequence[float]) -> Iterator[Lengths]:
    """What a budget may choose from: every grown_at, or every first_epochs that was not given."""
    total, unit = _total(options)
    is_listed = options.epochs is not None and not isinstance(options.epochs, int)
    if options.growth_at:
        yield lengths_of(options, fractions)
        return
    if options.schedule in ON_A_LINE and not is_listed:
        for grown_at in _TRIED:
            yield lengths_of(options.changed(grown_at=grown_at), fractions)
        return
    is_free = total is not None and options.first_epochs is None and not is_listed
    if not is_free or options.schedule == "linear":
        yield lengths_of(options, fractions)
        return
    assert total is not None
    for first in range(1, total + 1, 1 + total // 500):
        try:
            yield _in_units(_from(first, total, unit, options, len(fractions)), unit)
        except PlanError:
            return


def length_notes(lengths: Lengths, options: PlanOptions, fractions: Sequence[float]) -> list[str]:
    """What the run's length did to the stages, in words."""
    notes = []
    if options.asked_stages is None:
        wanted, room = doublings(options.seed_share, options.growth), fractions_of(options)
        total, unit = _total(options)
        if total is not None and len(room) < wanted:
            notes.append(
                f"{Length(total, unit)} have room for {len(room)} stages instead of {wanted}, so the seed has "
                f"{room[0]:.0%} of the width instead of {options.seed_share:.0%}."
            )
        idle = len(room) - len(fractions)
        if idle:
            one = counted(idle, "stage was left out, as it", "stages were left out, as they")
            notes.append(f"{one} would be no narrower than the next.")
    last = 1 - lengths.shares[-1]
    if len(fractions) > 1 and last > _LATE and (options.schedule in ON_A_LINE or options.growth_at):
        notes.append(
            f"the last growth comes at {last:.0%} of the training: what is added so late has little time to learn, "
            "and a learning rate that falls over the last fifth (WSD) is falling already."
        )
    is_published = options.schedule in ("published", "recursive") and options.widths is None
    if is_published and len(fractions) > 1:
        jump = fractions[-1] / fractions[-2]
        if jump > 2 and jump > 1.5 * (1 + (options.growth or 0)):
            notes.append(
                f"growth={options.growth} reaches {fractions[-2]:.0%} of the width before the last stage, which "
                f"then grows {jump:.1f} times; growth=None takes even steps."
            )
    return notes


def _fractions(stages: int, options: PlanOptions) -> list[float]:
    return width_fractions(stages, options.seed_share, options.growth, options.schedule)


def _total(options: PlanOptions) -> tuple[int | None, Unit]:
    """The length of the run, and what it is counted in."""
    if options.total_steps is not None:
        return options.total_steps, "steps"
    if options.epochs is None:
        return None, "epochs"
    return options.epochs if isinstance(options.epochs, int) else sum(options.epochs), "epochs"


def _in_units(lengths: Sequence[int], unit: Unit) -> Lengths:
    total = sum(lengths)
    shares = tuple(length / total for length in lengths)
    whole = tuple(map(int, lengths))
    return Lengths(shares, whole) if unit == "epochs" else Lengths(shares, (), whole)


def _shares(options: PlanOptions, fractions: Sequence[float]) -> list[float]:
    stages = len(fractions)
    if options.growth_at:
        return shares_between(options.growth_at)
    if options.schedule in ON_A_LINE:
        return ramp_shares(fractions, options.grown_at)
    weights = [
        1.0 if options.schedule == "linear" else (1 + options.epoch_growth) ** t
        for t in range(stages)
    ]
    return [weight / sum(weights) for weight in weights]


def _published(options: PlanOptions, stages: int, total: int, unit: Unit) -> list[int]:
    first = options.first_epochs
    if first is None:  # a twentieth, or what leaves some for the last stage
        for tried in range(total // 20, 1, -1):
            with contextlib.suppress(PlanError):
                return _from(tried, total, unit, options, stages)
        first = 1
    return _from(first, total, unit, options, stages)


def _from(first: int, total: int, unit: Unit, options: PlanOptions, stages: int) -> list[int]:
    return stage_epochs(total, stages, first, options.epoch_growth, options.schedule, unit)


def steps_within(
    epochs: Sequence[int], sizes: Sequence[int], steps_per_epoch: int
) -> tuple[int, ...]:
    """Optimizer steps of stages of so many epochs, where an epoch has so many at the last stage's batch size.

    >>> steps_within([1, 3], [256, 128], 10)
    (5, 30)
    """
    pairs = zip(epochs, sizes, strict=True)
    return tuple(n * math.ceil(steps_per_epoch * sizes[-1] / size) for n, size in pairs)
