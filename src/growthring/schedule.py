"""Schedules: the fraction of the full width at each stage (paper, eq. 6)."""

from __future__ import annotations

import math

from growthring.errors import PlanError


def width_fractions(stages: int, start: float = 0.25, growth: float | None = 0.2) -> list[float]:
    """Fraction of the full width at stages 0 … stages-1; the last one is 1.

    Stage t has start · (1 + growth)^t, capped at 1; this is what gives the published widths (taken
    to the letter, eq. 6 rounds a small width's first step to nothing). With `growth=None` every
    stage grows by the same factor up to 1.

    >>> [round(16 * f) for f in width_fractions(9)]
    [4, 5, 6, 7, 8, 10, 12, 14, 16]
    >>> width_fractions(3, 0.25, None)
    [0.25, 0.5, 1.0]
    """
    if not isinstance(stages, int) or stages < 1:
        raise PlanError(f"stages={stages!r}: a plan needs a whole number of stages, at least 1.")
    if not 0 < start <= 1:
        raise PlanError(
            f"start={start!r}: the seed's share of the full width must be above 0 and at most 1."
        )
    if stages == 1:
        return [1.0]
    if growth is None:
        growth = start ** (-1 / (stages - 1)) - 1
    if not growth >= 0 or math.isinf(growth):
        raise PlanError(f"growth={growth!r}: the growth rate per stage must be a number from 0 on.")
    return [min(1.0, start * (1 + growth) ** t) for t in range(stages - 1)] + [1.0]
