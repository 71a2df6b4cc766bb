"""Epochs of every stage: by the schedule, as they were asked for, or those that a budget may choose from."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Iterator

from growthring.errors import PlanError
from growthring.planning.options import PlanOptions
from growthring.planning.schedule import check_list, check_whole, stage_epochs


def epochs_of(options: PlanOptions) -> tuple[int, ...]:
    """Epochs of every stage.

    Raises:
        PlanError: they do not reach for the stages.

    >>> epochs_of(PlanOptions(stages=3, epochs=30))
    (1, 1, 28)
    """
    if not isinstance(options.epochs, numbers.Integral):
        return tuple(check_list("epochs", options.epochs, options.stages))
    epochs, first = check_whole("epochs", options.epochs), options.first_epochs
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
    epochs = check_whole("epochs", options.epochs)
    for first in range(1, epochs + 1):
        try:
            yield _from(first, epochs, options)
        except PlanError:
            return


def _from(first: int, epochs: int, options: PlanOptions) -> tuple[int, ...]:
    growth, schedule = options.epoch_growth, options.schedule
    return tuple(stage_epochs(epochs, options.stages, first, growth, schedule))
