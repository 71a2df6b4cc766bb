"""Stage means: what the runs of one configuration knew at the end of each stage of data that grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from growthring.runs.configurations import Configuration, reference_of
from growthring.runs.forgetting import forgetting
from growthring.runs.metrics import FORGETTING
from growthring.runs.records import StageRecord
from growthring.runs.run import Run
from growthring.runs.spread import Spread, spread, without_rounding
from growthring.runs.values import number


@dataclass(frozen=True)
class StageMean:
    """The end of one stage, over the runs that have come to it.

    Attributes:
        stage: its number, from 0.
        num_runs: how many have a record of it.
        classes: that were seen so far; None where the runs do not say the same.
        examples: of the stage, likewise.
        accuracy: on the classes seen so far.
        parts: the same on the classes that each stage so far brought.
        flops, seconds: of training so far.
    """

    stage: int
    num_runs: int
    classes: int | None
    examples: int | None
    accuracy: Spread | None
    parts: tuple[Spread | None, ...]
    flops: Spread | None
    seconds: Spread | None


@dataclass(frozen=True)
class Staged:
    """A configuration whose runs have come to the end of some stage.

    Attributes:
        configuration: of the runs.
        runs: those that count: of the finished ones those that tell of stages, else of all.
        means: over these runs, of each stage.
        full_flops: of fixed-size training, None where nothing tells.
    """

    configuration: Configuration
    runs: tuple[Run, ...]
    means: tuple[StageMean, ...]
    full_flops: float | None

    def flops_share(self, mean: StageMean) -> float | None:
        """FLOPs until the end of a stage, over those of fixed-size training."""
        return mean.flops.mean / self.full_flops if mean.flops and self.full_flops else None


def staged(configurations: Sequence[Configuration]) -> list[Staged]:
    """Those of the configurations that have stages to show.

    >>> staged([])
    []
    """
    found = []
    for c in configurations:
        runs = tuple(r for r in c.counted if r.stages) or tuple(r for r in c.runs if r.stages)
        if runs:
            full = _full_flops(runs, reference_of(c, configurations))
            found.append(Staged(c, runs, tuple(stage_means(runs)), full))
    return found


def stage_means(runs: Sequence[Run]) -> list[StageMean]:
    """One mean for each stage that some of the runs have come to the end of, in order.

    >>> stage_means([])
    []
    """
    ends: dict[int, list[StageRecord]] = {}
    for run in runs:
        for record in run.stages:
            ends.setdefault(record.stage, []).append(record)
    return [_mean(stage, ends[stage]) for stage in sorted(ends)]


def mean_over_stages(runs: Sequence[Run]) -> Spread | None:
    """The average of the accuracies at the ends of all stages, over the runs that have all of them.

    Late stages are the hard ones: the average of a run that lacks them would be better than it should be.
    """
    num_stages = 1 + max((run.stages[-1].stage for run in runs if run.stages), default=-1)
    averages = []
    for run in runs:
        known = [s.accuracy for s in run.stages if s.accuracy is not None]
        if num_stages and len(known) == num_stages:
            averages.append(sum(known) / num_stages)
    return spread(averages)


def forgotten(runs: Sequence[Run]) -> Spread | None:
    """The forgetting that the runs ended with; of unfinished ones, that so far of those that have come furthest."""
    last = max((run.stages[-1].stage for run in runs if run.stages), default=0)
    values = []
    for run in runs:
        value = run.final(FORGETTING.key)
        if value is None and run.stages and run.stages[-1].stage == last:
            value = forgetting(run.stages)
        values.append(value)
    return spread(values)


def _full_flops(runs: Sequence[Run], reference: Configuration | None) -> float | None:
    """As the epochs of the runs count their shares, which curves show too; else of the reference."""
    epochs = (epoch for run in runs for epoch in reversed(run.epochs))
    shares = ((e.flops, e.flops_share) for e in epochs)
    own = next((flops / share for flops, share in shares if flops and share), None)
    if own is None and reference is not None:
        own = reference.counted[0].final("flops")
    return number(own)


def _mean(stage: int, records: Sequence[StageRecord]) -> StageMean:
    columns = zip_longest(*(record.parts for record in records))
    return StageMean(
        stage=stage,
        num_runs=len(records),
        classes=_same([record.classes for record in records]),
        examples=_same([record.examples for record in records]),
        accuracy=spread(record.accuracy for record in records),
        parts=tuple(map(spread, columns)),
        flops=without_rounding(spread(record.flops for record in records)),
        seconds=spread(record.seconds for record in records),
    )


def _same(values: Sequence[int | None]) -> int | None:
    return values[0] if len(set(values)) == 1 else None
