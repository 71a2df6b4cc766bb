"""Rate adaptation as functions of ring norms (paper, eq. 5), and the schedule that a ring replays.

A rule maps the norms of a parameter's rings to the factors on its learning rate. The factors multiply
`lr`, whatever the user's scheduler has set it to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from growthring.errors import InputError

RateRule = Literal["norm", "max"] | Callable[[Tensor], Tensor] | None


def norm_rule(norms: Tensor) -> Tensor:
    """η_k / η_0 = ‖W_k‖ / ‖W_0‖ (eq. 5).

    Args:
        norms: (…, rings), Frobenius norms of the current values.

    >>> norm_rule(torch.tensor([2.0, 3.0])).tolist()
    [1.0, 1.5]
    """
    return norms / norms[..., :1]


def max_rule(norms: Tensor) -> Tensor:
    """max(1, ‖W_k‖) for rings that were added, 1 for the seed's: the appendix's weaker alternative.

    >>> max_rule(torch.tensor([2.0, 3.0, 0.5])).tolist()
    [1.0, 3.0, 1.0]
    """
    factors = norms.clamp_min(1.0)
    factors[..., 0] = 1.0
    return factors


RULES: dict[str, Callable[[Tensor], Tensor]] = {"norm": norm_rule, "max": max_rule}


def check_rule(rule: Any) -> None:
    """Refuses what is not a rule."""
    if rule is not None and not callable(rule) and not (isinstance(rule, str) and rule in RULES):
        raise InputError(
            f"rate_adaptation={rule!r} is not 'norm', 'max', None or a function from the norms of a "
            "parameter's rings to their factors."
        )


def apply_rule(rule: RateRule, norms: Tensor, names: Sequence[str]) -> Tensor:
    """Factors of several parameters' rings; 1, as without rings, where a rule has no sensible answer.

    A ring of norm 0 would not move at a rate of 0, and could never leave it; and norms that are not
    finite, or seed weights that are all zero, give no scale to go by.

    Args:
        rule: not None.
        norms: (parameters, rings).
        names: of the parameters, for messages.

    >>> apply_rule("norm", torch.tensor([[0.0, 2.0], [1.0, 2.0]]), ["a", "b"]).tolist()
    [[1.0, 1.0], [1.0, 2.0]]
    """
    if isinstance(rule, str):
        factors = RULES[rule](norms)
    else:
        assert rule is not None
        rows = []
        for name, row in zip(names, norms, strict=True):
            result = rule(row)
            if not isinstance(result, Tensor) or result.shape != row.shape:
                returned = tuple(result.shape) if isinstance(result, Tensor) else repr(result)
                raise InputError(
                    f"the rate_adaptation function returned {returned} for '{name}', not a tensor of "
                    f"one factor per ring, {tuple(row.shape)}."
                )
            rows.append(result.to(norms))
        factors = torch.stack(rows)
    known = torch.isfinite(factors)
    if rule != "max":
        known &= (norms > 0) & (norms[..., :1] > 0)
    return torch.where(known, factors, 1.0)


def new_ring_factors(births: Sequence[int], step: int, rate: float, warmup: int) -> list[float]:
    """Factors that give every ring but the seed's a rate of its own, after a warm-up from its birth.

    Args:
        births: the step at which each ring was born.
        step: the present one.
        rate: the factor after the warm-up.
        warmup: steps over which it rises from 0.

    >>> new_ring_factors([0, 10, 18], step=19, rate=1.2, warmup=4)
    [1.0, 1.2, 0.6]
    """
    later = [rate * min(1.0, (step - birth + 1) / max(warmup, 1)) for birth in births[1:]]
    return [1.0, *later]


def own_schedule(
    history: Sequence[float], births: Sequence[int], total_steps: int, cap: float
) -> list[float]:
    """Factors by which each ring follows the schedule's shape from its own birth to the end.

    A ring born at step b of T is, at step n, as far as the whole run was at step
    τ = T · (n − b) / (T − b), and gets the rate of that step. As τ ≤ n, that rate is already known:
    whatever scheduler made it (or hand, or plateau), it is in the record.

    Args:
        history: the rate of every step so far, the present one last.
        births: the step at which each ring was born.
        total_steps: T.
        cap: largest factor.

    >>> own_schedule([1.0, 0.75, 0.5, 0.25], births=[0, 2], total_steps=4, cap=10.0)
    [1.0, 2.0]
    """
    now = len(history) - 1
    rate = history[now]
    factors = []
    for birth in births:
        if birth == 0 or now >= total_steps or birth >= total_steps or rate <= 0:
            factors.append(1.0)
            continue
        past = total_steps * (now - birth) / (total_steps - birth)
        low = int(past)
        high = min(low + 1, now)
        value = history[low] + (past - low) * (history[high] - history[low])
        factors.append(min(value / rate, cap))
    return factors
