"""Strengths: how strong a regulariser is at each stage, if it is weaker while the model is narrow."""

from __future__ import annotations

import statistics

from growthring.errors import InputError
from growthring.planning.plan import Plan
from growthring.planning.schedule import is_number


def strengths(plan: Plan, narrow: float) -> tuple[float, ...]:
    """Strength of a regulariser at each stage, as a share of the full one.

    A narrow model has little to overfit with. The strength is `narrow` at the seed's width and 1 at full size; in
    between it lies on a straight line in the width, which is the mean over all that grows.

    Args:
        plan: the stages.
        narrow: share of the full strength at the seed's width, 0 to 1; at 1 all stages are alike.

    Returns:
        A number for each stage, to multiply a weight decay or a dropout rate by.

    Raises:
        InputError: `narrow` is no such share.

    >>> import torch
    >>> from growthring.planning.planner import plan
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> strengths(plan(net, torch.zeros(1, 4), stages=3), narrow=0.1)  # widths 4, 8, 16
    (0.1, 0.4, 1.0)
    """
    if not is_number(narrow) or not 0 <= narrow <= 1:
        raise InputError(
            f"narrow={narrow!r}: a share of the full strength at the seed's width, from 0 to 1."
        )
    stages, full = range(plan.num_stages), plan.named_widths(plan.num_stages - 1)
    if not full:
        return (1.0,) * len(stages)
    widths = [
        statistics.fmean(width / full[name] for name, width in plan.named_widths(t).items())
        for t in stages
    ]
    slope = (1 - narrow) / (1 - widths[0]) if widths[0] < 1 else 0.0
    return tuple(1.0 if w == 1 else round(narrow + slope * (w - widths[0]), 12) for w in widths)
