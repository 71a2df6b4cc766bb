"""Pace: how many epochs each stage takes, and in batches of which size."""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Iterator

from growthring.errors import PlanError
from growthring.planning.costs import Footprint
from growthring.planning.options import PlanOptions
from growthring.planning.plan import Plan
from growthring.planning.schedule import (
    batch_sizes,
    check_list,
    rate_factors,
    stage_epochs,
    whole,
)


def epochs_of(options: PlanOptions) -> tuple[int, ...]:
    """Epochs of every stage.

    Raises:
        PlanError: they do not reach for the stages.

    >>> epochs_of(PlanOptions(stages=3, epochs=30))
    (1, 1, 28)
    """
    if not isinstance(options.epochs, numbers.Integral):
        return tuple(check_list("epochs", options.epochs, options.stages))
    epochs, first = whole("epochs", options.epochs), options.first_epochs
    if first is None:  # a twentieth, or what leaves some for the last stage
        for tried in range(epochs // 20, 1, -1):
            with contextlib.suppress(PlanError):
                return _from(tried, epochs, options)
        first = 1
    return _from(first, epochs, options)


def possible_epochs(options: PlanOptions) -> Iterator[tuple[int, ...]]:
    """The epochs that a budget may choose from: all first_epochs, unless they were given."""
    is_free = isinstance(options.epochs, numbers.Integral) and options.first_epochs is None
    if not is_free or options.schedule == "linear":
        yield epochs_of(options)
        return
    epochs = whole("epochs", options.epochs)
    for first in range(1, epochs + 1):
        try:
            yield _from(first, epochs, options)
        except PlanError:
            return


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
        size = whole("batch_size", options.batch_size)
        sizes = batch_sizes(size, options.stages, options.batch_growth)
    else:
        sizes = check_list("batch_size", options.batch_size, options.stages)
    factors = rate_factors(sizes, options.batch_rate)
    return plan.at_same_widths(batch_sizes=tuple(sizes), rate_factors=tuple(factors))


def _from(first: int, epochs: int, options: PlanOptions) -> tuple[int, ...]:
    growth, rule = options.epoch_growth, options.schedule
    return tuple(stage_epochs(epochs, options.stages, first, growth, rule))


def _largest_batch(footprint: Footprint, memory: float, optimizer: str, stage: int) -> int:
    fixed = footprint.memory(0, optimizer)
    size = math.floor((memory - fixed) / max(footprint.activation_bytes, 1.0))
    if size < 1:
        raise PlanError(
            f"batch_memory={memory:.3g} bytes: weights, gradients and optimizer state of stage {stage} "
            f"take {fixed:.3g}, and one example {footprint.activation_bytes:.3g} more."
        )
    return size
