"""Learning-rate schedules: the factor on the peak rate, as a function of how much of the run is done.

A network that has just grown needs learning rate to make use of what it gained. Of the area under the schedule,
these shares are left after the half of a run: constant 50 %, WSD with a decay over the last fifth 44 %, linear
25 %, cosine 18 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from growthring.errors import InputError

DECAY = 0.2  # share of a run over which "wsd" falls to 0


def constant(done: float, decay: float = DECAY) -> float:
    """The peak throughout.

    >>> constant(0.9)
    1.0
    """
    return 1.0


def linear(done: float, decay: float = DECAY) -> float:
    """A straight line from the peak to 0.

    >>> linear(0.25)
    0.75
    """
    return 1.0 - done


def cosine(done: float, decay: float = DECAY) -> float:
    """Half a cosine from the peak to 0.

    >>> cosine(0.5)
    0.5
    """
    return 0.5 * (1 + math.cos(math.pi * done))


def wsd(done: float, decay: float = DECAY) -> float:
    """Warm-up, stable, decay: the peak, then a straight line to 0 over the last share `decay` of the run.

    >>> wsd(0.8), round(wsd(0.9), 9), wsd(0.75, decay=0.5)
    (1.0, 0.5, 0.5)
    """
    return min(1.0, round((1.0 - done) / decay, 15))


LR_SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "wsd": wsd,
    "linear": linear,
    "cosine": cosine,
    "constant": constant,
}


def check_schedule(kind: Any, decay: Any = DECAY) -> None:
    """Refuses what is not a schedule, or not a share of the run.

    >>> check_schedule("wsd", 0.3)
    """
    if not isinstance(kind, str) or kind not in LR_SCHEDULES:
        raise InputError(f"lr_schedule={kind!r} is not one of {', '.join(LR_SCHEDULES)}.")
    is_number = isinstance(decay, (int, float)) and not isinstance(decay, bool)
    if not is_number or not 0 < decay <= 1:
        raise InputError(
            f"lr_decay={decay!r}: the rate falls to 0 over a share of the run, above 0 and at most 1."
        )


def lr_factor(
    kind: str, step: int, total_steps: int, warmup_steps: int = 0, decay: float = DECAY
) -> float:
    """Factor on the peak rate at a step: a linear rise over the warm-up, times the schedule over the whole run.

    >>> lr_factor("linear", 50, 100)
    0.5
    >>> lr_factor("wsd", 0, 100, warmup_steps=4)
    0.25
    """
    check_schedule(kind, decay)
    rise = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    done = min(step, total_steps) / total_steps  # a loader may give more batches than it said
    return round(rise * LR_SCHEDULES[kind](done, decay), 15)


def lr_schedule(
    kind: str, total_steps: int, *, warmup_steps: int = 0, decay: float = DECAY
) -> Callable[[int], float]:
    """A schedule for `torch.optim.lr_scheduler.LambdaLR`.

    Args:
        kind: "wsd", "linear", "cosine" or "constant".
        total_steps: optimizer steps of the whole run.
        warmup_steps: over which the rate rises from 0.
        decay: share of the run over which "wsd" falls to 0.

    Returns:
        A function from the step to the factor on the learning rate.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    >>> schedule = lr_schedule("wsd", total_steps=10)
    >>> scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    >>> [schedule(step) for step in (0, 8, 9, 10)]
    [1.0, 1.0, 0.5, 0.0]
    """
    if isinstance(total_steps, bool) or not isinstance(total_steps, int) or total_steps < 1:
        raise InputError(f"total_steps={total_steps!r} is not a number of optimizer steps.")
    if (
        isinstance(warmup_steps, bool)
        or not isinstance(warmup_steps, int)
        or not 0 <= warmup_steps <= total_steps
    ):
        raise InputError(
            f"warmup_steps={warmup_steps!r} is not a number of steps within the run's {total_steps}."
        )
    check_schedule(kind, decay)
    return lambda step: lr_factor(kind, step, total_steps, warmup_steps, decay)
