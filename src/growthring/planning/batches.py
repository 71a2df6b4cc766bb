"""Batch sizes of every stage: by the schedule, as they were asked for, or as large as the memory holds."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence

from growthring.errors import PlanError
from growthring.planning.costs import Footprint
from growthring.planning.lengths import Lengths, steps_within
from growthring.planning.options import PlanOptions
from growthring.planning.plan import Plan
from growthring.planning.schedule import batch_sizes, check_list, check_whole, rate_factors


def with_batches(plan: Plan, options: PlanOptions) -> Plan:
    """The plan with a batch size for each stage, and what it multiplies the learning rate by.

    Raises:
        PlanError: `batch_memory` does not hold one example.
    """
    if options.batch_memory is not None:
        sizes = [
            _largest_batch(footprint, options.batch_memory, plan.optimizer, stage)
            for stage, footprint in enumerate(plan.footprints)
        ]
    elif isinstance(options.batch_size, numbers.Integral):
        size = check_whole("batch_size", options.batch_size)
        sizes = batch_sizes(size, plan.num_stages, options.batch_growth)
    else:
        sizes = check_list("batch_size", options.batch_size, plan.num_stages)
    factors = rate_factors(sizes, options.batch_rate)
    return plan.at_same_widths(batch_sizes=tuple(sizes), rate_factors=tuple(factors))


def lasting(plan: Plan, options: PlanOptions, lengths: Lengths) -> Plan:
    """The plan with stages of those lengths."""
    steps, data_shares = lengths.steps, tuple[float, ...]()
    if options.stage_examples is not None:
        examples = examples_over(options.stage_examples, plan.num_stages)
        data_shares = tuple(count / examples[-1] for count in examples)
        if lengths.epochs and all(isinstance(count, numbers.Integral) for count in examples):
            triples = zip(lengths.epochs, examples, plan.batch_sizes, strict=True)
            steps = tuple(n * math.ceil(count / size) for n, count, size in triples)
    if options.steps_per_epoch is not None:
        steps = steps_within(lengths.epochs, plan.batch_sizes, options.steps_per_epoch)
    return plan.at_same_widths(
        shares=lengths.shares,
        epochs=lengths.epochs,
        stage_steps=steps,
        data_shares=data_shares,
    )


def examples_over(stage_examples: Sequence[float], num_stages: int) -> tuple[float, ...]:
    """Examples of every stage of a plan; the last stages stay with what the data has come to.

    >>> examples_over([10, 20], 3)
    (10, 20, 20)
    """
    rest = num_stages - len(stage_examples)
    return (*stage_examples, *[stage_examples[-1]] * rest)


def _largest_batch(footprint: Footprint, memory: float, optimizer: str, stage: int) -> int:
    fixed = footprint.memory(0, optimizer)
    size = math.floor((memory - fixed) / max(footprint.activation_bytes, 1.0))
    if size < 1:
        raise PlanError(
            f"batch_memory={memory:.3g} bytes: weights, gradients and optimizer state of stage {stage} "
            f"take {fixed:.3g}, and one example {footprint.activation_bytes:.3g} more."
        )
    return size
