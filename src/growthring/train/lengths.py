"""Lengths of a run in optimizer steps: of its stages, of its data, and between its evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from growthring.data.batch import Stream
from growthring.planning.plan import Plan
from growthring.streams import GrowingData
from growthring.train.growing_data import enter

_EVALUATIONS = (
    20  # of a run that is counted in steps: enough for a curve, few enough to cost little
)


def stage_lengths(
    plan: Plan, stream: Stream, growing: GrowingData | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Optimizer steps and examples of each stage: as planned or, of epochs, as the stream counts batches.

    Args:
        plan: of the run.
        stream: its batches; afterwards it is at the start of the first stage.
        growing: what the stream goes over at each stage; None for all at every one.
    """
    before, steps, examples = stream.batch_size, [], []
    in_steps = plan.lengths.unit == "steps"
    for stage, (length, size) in enumerate(zip(plan.lengths.counts, plan.batch_sizes, strict=True)):
        enter(growing, stream, stage)
        stream.set_batch_size(size)
        steps.append(length if in_steps else length * len(stream))
        counted = stream.count_examples([(length, size)]) if in_steps else 0
        examples.append(counted if in_steps else length * stream.num_examples)
    enter(growing, stream, 0)
    stream.set_batch_size(before)
    return tuple(steps), tuple(examples)


def num_examples(plan: Plan, stream: Stream) -> int:
    """Examples that the whole run trains on, of data that does not grow."""
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
