"""Lengths of a run in optimizer steps: of its stages, of its data, and between its evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from growthring.data.batch import Stream
from growthring.planning.plan import Plan

_EVALUATIONS = (
    20  # of a run that is counted in steps: enough for a curve, few enough to cost little
)


def stage_steps(plan: Plan, stream: Stream) -> tuple[int, ...]:
    """Optimizer steps of each stage: as planned or, of epochs, as the stream counts batches."""
    if plan.lengths.unit == "steps":
        return plan.stage_steps
    before, steps = stream.batch_size, []
    for epochs, size in zip(plan.epochs, plan.batch_sizes, strict=True):
        stream.set_batch_size(size)
        steps.append(epochs * len(stream))
    stream.set_batch_size(before)
    return tuple(steps)


def num_examples(plan: Plan, stream: Stream) -> int:
    """Examples that the whole run trains on."""
    if plan.lengths.unit == "steps":
        pairs = zip(plan.stage_steps, plan.batch_sizes, strict=True)
        return stream.count_examples(pairs)
    return stream.num_examples * sum(plan.epochs)


def evaluation_steps(stages: Sequence[int]) -> list[int]:
    """Steps after which a run of stages of so many steps is evaluated: the end of each, and evenly in between.

    >>> evaluation_steps([100, 400, 500])
    [50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 550, 600, 650, 700, 750, 800, 850, 900, 950, 1000]
    >>> evaluation_steps([1, 3])  # of a short run every step
    [1, 2, 3, 4]
    """
    points, total = [], sum(stages)
    for end, steps in zip(accumulate(stages), stages, strict=True):
        parts = min(steps, max(1, round(_EVALUATIONS * steps / total)))
        points += [end - steps + round(steps * part / parts) for part in range(1, parts + 1)]
    return points
