"""Advice: what short pilots say about a long run, as a recommendation with its expected saving.

Let L(n) be the loss of full-size training for n steps, its schedule decayed to the end. A grown run of n steps
costs the share c of it, so its rival is full-size training for c·n steps. Of the gap L(c·n) − L(n) between the
two, the grown run closes the share γ. To reach the grown run's loss, full-size training needs about n · c^(1−γ)
steps (on a line between the two in log n), so growing saves 1 − c^γ of the FLOPs: nothing at γ = 0, all of 1 − c
at γ = 1 (transfer at equal steps). Where a grown step takes longer than its FLOPs say, the share s of the seconds
takes the place of c in what is paid: 1 − s / c^(1−γ).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from growthring.planning.plan import Plan

_TELLING = 0.1  # a saving that "no" must rule out; else it only means "not known"
# How much γ falls for each doubling of the length from the longest pilots to the run, and how far that varies: the
# five main settings of docs/when-it-pays.md. Early in a run every network is too wide, and growing looks better.
FALL, FALL_ERROR = 0.047, 0.065


@dataclass(frozen=True)
class Pilot:
    """One short comparison: the full network, the same for fewer steps, and the grown one.

    Attributes:
        steps: of the full and of the grown run.
        seed: of the order of batches.
        full, rival, grown: final losses.
        seconds_share: of the grown run over the full one.
    """

    steps: int
    seed: int
    full: float
    rival: float
    grown: float
    seconds_share: float

    @property
    def closed(self) -> float | None:
        """γ: the share of the gap between the rival and full size that growing closes; None without a gap.

        >>> Pilot(100, 0, full=1.0, rival=2.0, grown=1.5, seconds_share=0.7).closed
        0.5
        """
        gap = self.rival - self.full
        return (self.rival - self.grown) / gap if gap > 0 else None


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error."""

    mean: float
    error: float

    def as_dict(self) -> dict[str, float | None]:
        """As JSON can hold it: an error that is not known is None.

        >>> Estimate(0.5, math.inf).as_dict()
        {'mean': 0.5, 'error': None}
        """
        return {"mean": self.mean, "error": self.error if math.isfinite(self.error) else None}

    @property
    def is_gain(self) -> bool:
        """Whether it is above 0 by more than its error."""
        return self.mean > self.error

    @property
    def is_open(self) -> bool:
        """Whether it is no gain, but so uncertain that it may be one.

        >>> Estimate(-0.4, 0.2).is_open, Estimate(0.1, 0.2).is_open
        (False, True)
        """
        return not self.is_gain and self.mean + self.error > _TELLING

    def percent(self) -> str:
        """As a percentage.

        >>> Estimate(0.123, 0.01).percent()
        '12 ± 1 %'
        """
        error = f"{100 * self.error:.0f}" if math.isfinite(self.error) else "unknown"
        return f"{100 * self.mean:.0f} ± {error} %"


@dataclass(frozen=True)
class Advice:
    """What to do about a run.

    Attributes:
        plan: how to grow.
        pilots: what was tried.
        cost: of the pilots, as a share of the full-size run's FLOPs.
        closed: γ, see this module; None where longer training at full size made nothing better.
        flops_saving: at equal loss, as a share of what full-size training costs.
        seconds_saving: the same by the clock.
    """

    plan: Plan
    pilots: tuple[Pilot, ...]
    cost: float
    closed: Estimate | None
    flops_saving: Estimate
    seconds_saving: Estimate

    @property
    def grow(self) -> bool:
        """Whether growing is expected to save FLOPs, by more than the error."""
        return self.flops_saving.is_gain

    @property
    def is_open(self) -> bool:
        """Whether the pilots differ too much among themselves to tell."""
        return self.flops_saving.is_open

    @property
    def transfer(self) -> str:
        """What a growth hands on: "steps" (γ from a half on), "loss", or "nothing"."""
        if self.closed is None or self.closed.mean <= self.closed.error:
            return "nothing"
        return "steps" if self.closed.mean >= 0.5 else "loss"

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "grow": self.grow,
            "open": self.is_open,
            "transfer": self.transfer,
            "closed": None if self.closed is None else self.closed.as_dict(),
            "flops_saving": self.flops_saving.as_dict(),
            "seconds_saving": self.seconds_saving.as_dict(),
            "cost": self.cost,
            "pilots": [asdict(pilot) for pilot in self.pilots],
            "plan": self.plan.as_dict(),
        }

    def __str__(self) -> str:
        lines = [
            "pilot of    seed    full size    at equal FLOPs    grown    gap closed",
            *(
                f"{p.steps:>5} steps {p.seed:>5} {p.full:>12.4f} {p.rival:>17.4f} {p.grown:>8.4f} "
                f"{'–' if p.closed is None else f'{p.closed:.0%}':>13}"
                for p in self.pilots
            ),
            "",
            self._verdict(),
            f"The pilots cost {self.cost:.1%} of the full-size run.",
        ]
        return "\n".join([*lines, *(["", str(self.plan)] if self.grow else [])])

    def _verdict(self) -> str:
        flops, seconds = self.flops_saving.percent(), self.seconds_saving.percent()
        if self.closed is None:
            return (
                "Train at full size, or for fewer steps: in the pilots, training longer made nothing better, and "
                "growing cannot win what is not there."
            )
        if self.grow:
            clock = (
                f"and {seconds} of the seconds"
                if self.seconds_saving.mean > self.seconds_saving.error
                else f"but {seconds} of the seconds: on this machine narrow stages are not that much faster"
            )
            kind = {
                "steps": "a grown network goes on about where a full-size one would be at the same step",
                "loss": "a grown network keeps its loss, and a part of the lead in steps",
            }[self.transfer]
            return (
                f"Grow: at equal loss it is expected to save {flops} of the FLOPs {clock} ({kind})."
            )
        if self.is_open:
            return (
                f"The pilots cannot tell: at equal loss growing would save {flops} of the FLOPs. Ask for a larger "
                "share= (longer pilots) or more seeds=; or train at full size."
            )
        return (
            f"Train at full size: at equal loss growing is expected to save {flops} of the FLOPs and {seconds} of "
            "the seconds, which is not more than the error of this estimate."
        )


def conclude(plan: Plan, pilots: Sequence[Pilot], cost: float) -> Advice:
    """The advice that pilots lead to.

    Args:
        plan: how the run would grow.
        pilots: of one length or several.
        cost: of all pilots, as a share of the full-size run's FLOPs.
    """
    assert plan.total_steps is not None  # advise asks for it
    closed = share_closed(pilots, plan.total_steps)
    if closed is None:
        nothing = Estimate(0.0, 0.0)
        return Advice(plan, tuple(pilots), cost, None, nothing, nothing)
    share = plan.flops_share
    seconds = statistics.median(pilot.seconds_share for pilot in pilots)
    return Advice(
        plan,
        tuple(pilots),
        cost,
        closed,
        saving(closed, share, share),
        saving(closed, share, seconds),
    )


def saving(closed: Estimate, share: float, cost: float) -> Estimate:
    """What a grown run saves at equal loss: 1 − cost / share^(1 − γ).

    Args:
        closed: γ.
        share: FLOPs of the grown run, as a share of full size.
        cost: the same of what is saved, FLOPs or seconds.

    >>> saving(Estimate(1.0, 0.0), 0.65, 0.65).mean, saving(Estimate(0.0, 0.0), 0.65, 0.65).mean
    (0.35, 0.0)
    """
    kept = cost / share ** (1 - closed.mean)
    return Estimate(1 - kept, kept * -math.log(share) * closed.error)


def share_closed(pilots: Sequence[Pilot], steps: int) -> Estimate | None:
    """γ of a run with its error; None where longer training at full size was no better in the longest pilots.

    Of each length, γ is the mean gain over the mean gap: the gap of one pilot alone may be noise, and so near 0.
    More than 1 is taken for 1: no complete run of ours kept such a lead. The longest pilots are nearest to the run,
    and from there γ falls with its length (`FALL`). The error has three parts: the spread between seeds, half the
    difference to the next shorter pilots that show a gap, and that of the fall.

    Args:
        pilots: of one length or several.
        steps: of the run.

    >>> share_closed([Pilot(9, i, 1.0, 2.0, 1.4 + i / 5, 0.7) for i in (0, 1)], 9)
    Estimate(mean=0.5, error=0.1)
    """
    longest, *shorter = sorted({pilot.steps for pilot in pilots}, reverse=True)
    last = _ratio([pilot for pilot in pilots if pilot.steps == longest])
    if last is None:
        return None
    before = _ratio([pilot for pilot in pilots if pilot.steps in shorter[:1]])
    between = 0.0 if before is None else abs(before.mean - last.mean) / 2
    if math.isinf(last.error) and before is not None:
        last = Estimate(last.mean, 0.0)  # of one seed, the lengths alone tell
    doublings = max(0.0, math.log2(steps / longest))
    error = math.hypot(last.error, between, doublings * FALL_ERROR)
    return Estimate(round(last.mean - doublings * FALL, 12), round(error, 12))


def _ratio(pilots: Sequence[Pilot]) -> Estimate | None:
    """Mean gain over mean gap of pilots of one length, at most 1, with the standard error of such a ratio."""
    if not pilots:
        return None
    gap = statistics.fmean(pilot.rival - pilot.full for pilot in pilots)
    if gap <= 0:
        return None
    ratio = statistics.fmean(pilot.rival - pilot.grown for pilot in pilots) / gap
    if len(pilots) < 2:
        return Estimate(min(1.0, ratio), math.inf)
    rests = [p.rival - p.grown - ratio * (p.rival - p.full) for p in pilots]
    return Estimate(min(1.0, ratio), statistics.stdev(rests) / math.sqrt(len(pilots)) / gap)
