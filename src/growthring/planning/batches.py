"""Batch sizes of every stage: by the schedule, as they were asked for, or as large as the memory holds."""

from __future__ import annotations

import math
import numbers

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
    steps = lengths.steps
    if options.steps_per_epoch is not None:
        steps = steps_within(lengths.epochs, plan.batch_sizes, options.steps_per_epoch)
    return plan.at_same_widths(shares=lengths.shares, epochs=lengths.epochs, stage_steps=steps)


def _largest_batch(footprint: Footprint, memory: float, optimizer: str, stage: int) -> int:
    fixed = footprint.memory(0, optimizer)
    size = math.floor((memory - fixed) / max(footprint.activation_bytes, 1.0))
    if size < 1:
        raise PlanError(
            f"batch_memory={memory:.3g} bytes: weights, gradients and optimizer state of stage {stage} "
            f"take {fixed:.3g}, and one example {footprint.activation_bytes:.3g} more."
        )
    return size
