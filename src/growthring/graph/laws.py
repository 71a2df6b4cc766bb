"""Factors in a model's code that follow a width, such as 1/√d_head."""

from __future__ import annotations

import math
from collections.abc import Mapping

from growthring.core.axes import size
from growthring.graph.groups import Law


def log_ratios(
    laws: Mapping[int, Law], before: Mapping[int, int], after: Mapping[int, int]
) -> dict[int, float]:
    """Operator -> log(factor at widths `after` / factor at widths `before`)."""
    ratios = {}
    for op, law in laws.items():
        if law.mean is not None:  # the fade of the sum that it divides makes up for it
            continue
        ratios[op] = law.power * math.log(size(law.axis, after) / size(law.axis, before))
    return ratios
