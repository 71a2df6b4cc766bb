"""The age of each ring: how many steps it has been trained, for bias correction (paper, appendix)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor


def ages(state: dict[str, Any], num_rings: int, is_own: bool = True) -> tuple[float, ...]:
    """Steps that each ring of a parameter has seen, the present one included; or not its own, but the parameter's.

    A parameter's state holds `births`, the value of `step` when each ring was added.

    >>> ages({"step": torch.tensor(7.0), "births": (0, 5)}, 2)
    (7.0, 2.0)
    """
    step = float(state["step"])
    if not is_own:
        return (step,) * num_rings
    births = state.get("births", ())
    births = (*births, *[0] * (num_rings - len(births)))
    return tuple(max(step - b, 1.0) for b in births)


def corrections(beta: float, table: Sequence[tuple[float, ...]], like: Tensor) -> Tensor:
    """1 − β^age for each parameter and ring, (parameters, rings), on the device of `like`.

    The ages are numbers of the host, so nothing waits for the device.

    >>> corrections(0.5, [(1.0, 2.0)], torch.ones(1)).tolist()
    [[0.5, 0.75]]
    """
    known = {row: [1 - beta**age for age in row] for row in dict.fromkeys(table)}
    return torch.tensor([known[row] for row in table], dtype=like.dtype, device="cpu").to(
        like.device, non_blocking=True
    )


@cache
def settled_age(beta: float, dtype: torch.dtype) -> float:
    """The age from which 1 − β^age is 1 in the arithmetic of a type: what is left is less than half its rounding.

    >>> settled_age(0.999, torch.float32) < 18_000 < settled_age(0.999, torch.float64)
    True
    """
    wide = torch.float32 if dtype.itemsize < 4 else dtype  # in which steps are computed
    left = torch.finfo(wide).eps / 4
    return math.log(left) / math.log(beta) if 0 < beta < 1 else (1.0 if beta == 0 else math.inf)


def differ(state: dict[str, Any], num_rings: int, settled: float) -> bool:
    """Whether bias corrections differ between the rings of a parameter, in the step that comes.

    They are torch's, one for the whole parameter, where no ring is younger than it, or the youngest is settled.

    >>> differ({"step": torch.tensor(7.0), "births": (0, 5)}, 2, settled=100)
    True
    >>> differ({"step": torch.tensor(7.0)}, 2, settled=100)
    False
    """
    youngest = max(state.get("births", ())[:num_rings], default=0)
    return youngest > 0 and float(state["step"]) + 1 - youngest < settled


def born(state: dict[str, Any], num_rings: int) -> tuple[int, ...]:
    """`births` of a parameter whose last ring, of `num_rings`, is born now.

    >>> born({"step": torch.tensor(5.0)}, 3)
    (0, 0, 5)
    """
    births = tuple(state.get("births", ()))
    older = (*births, *[0] * num_rings)[: num_rings - 1]  # unknown births: as old as the parameter
    return (*older, int(state["step"]))
