"""Classes over the stages: what a list of their numbers must be, and what a plan says of them."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from growthring.core.wording import counted
from growthring.errors import PlanError


def check_classes(classes: Any, stages: int | None) -> tuple[int, ...]:
    """Numbers of classes, one for each stage, that never fall.

    Args:
        classes: what was given.
        stages: how many there are.

    Raises:
        PlanError: it is no such list.

    >>> check_classes([20, 25, 25, 40], 4)
    (20, 25, 25, 40)
    >>> check_classes([20, 10], 2)
    Traceback (most recent call last):
    growthring.errors.PlanError: classes=[20, 10]: from 20 to 10 at stage 1; classes only come, none goes.
    """
    is_list = isinstance(classes, Iterable) and not isinstance(classes, (str, bytes, Mapping))
    given = list(classes) if is_list else []
    is_whole = all(isinstance(n, numbers.Integral) and not isinstance(n, bool) for n in given)
    if not given or not is_whole or min(given) < 1:
        raise PlanError(
            f"classes={classes!r}: expected a number of classes for each stage, whole and at least 1, such as "
            "(20, 30, 40)."
        )
    result = tuple(int(n) for n in given)
    if stages is not None and len(result) != stages:
        raise PlanError(
            f"classes={classes!r}: {counted(len(result), 'number')} for {counted(stages, 'stage')}. Each stage "
            f"needs one: pass stages={len(result)}, or as many numbers as the other lists over stages have."
        )
    for t, (a, b) in enumerate(itertools.pairwise(result)):
        if b < a:
            raise PlanError(
                f"classes={classes!r}: from {a} to {b} at stage {t + 1}; classes only come, none goes."
            )
    return result
