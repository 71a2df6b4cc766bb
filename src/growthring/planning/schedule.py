"""Schedules: width, epochs and batch size at each stage (paper, eqs. 6-8).

Taken to the letter, eqs. 6 and 7 do not give the published schedules: 4 channels at a rate of 0.2 round
to no step at all, and 8 epochs become 8, 10, 12, … instead of 8, 9, 11, …. The published numbers follow
from the rule that multiplies the *first* stage's value by (1 + rate)^t; that is "published". The letter of
the equations is "recursive".

Both published rules together let the width rise along a straight line in time: 0.25 + 1.04 τ at the share τ of the
training. "ramp", the default, keeps such a line and takes few large steps on it (by default one): each growth
comes where the line crosses the geometric mean of the two widths, and the last at the share `grown_at`. "doubling"
has the same lengths; its widths are halves of halves of the full ones, in multiples of 16 where these are.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from growthring.errors import PlanError

ScheduleKind = Literal["ramp", "doubling", "published", "recursive", "linear"]
SCHEDULES = ("ramp", "doubling", "published", "recursive", "linear")
ON_A_LINE = ("ramp", "doubling")  # whose widths follow a straight line in time
_POWERS = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}  # of the batch size, that the rate follows


def check_whole(name: str, value: Any) -> int:
    """A whole number of at least 1 (numpy's too), or an error that names it.

    >>> check_whole("epochs", 3)
    3
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise PlanError(f"{name}={value!r} is not a whole number, at least 1.")
    return int(value)


def is_number(value: Any) -> bool:
    """Whether a value is a real number (numpy's too).

    >>> is_number(0.5), is_number("0.5"), is_number(True)
    (True, False, False)
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_stages(stages: Any) -> None:
    """Refuses what is not a number of stages."""
    is_whole = isinstance(stages, numbers.Integral) and not isinstance(stages, bool)
    if not is_whole or stages < 1:
        raise PlanError(f"stages={stages!r}: a plan needs a whole number of stages, at least 1.")


def check_start(start: Any) -> None:
    """Refuses what is not a share of the full width."""
    if not is_number(start) or not 0 < start <= 1:
        raise PlanError(
            f"start={start!r}: the seed's share of the full width must be above 0 and at most 1."
        )


def check_rate(name: str, rate: Any) -> None:
    """Refuses what is not a growth rate."""
    if not is_number(rate) or not 0 <= rate < math.inf:
        raise PlanError(f"{name}={rate!r}: the growth rate per stage must be a number from 0 on.")


def check_schedule(schedule: Any) -> None:
    """Refuses what is not a schedule of this module."""
    if schedule not in SCHEDULES:
        raise PlanError(f"schedule={schedule!r} is not one of {', '.join(SCHEDULES)}.")


def doublings(start: float, growth: float | None = None) -> int:
    """Stages from a share of the width to all of it, each at most twice (or 1 + growth times) as wide as before.

    >>> doublings(0.25), doublings(0.3), doublings(1.0), doublings(0.25, 0.2)
    (3, 3, 1, 9)
    """
    factor = 2.0 if growth is None else 1.0 + growth
    if factor == 1.0:
        raise PlanError("growth=0 never reaches the full width: pass stages=, or growth=None.")
    return 1 + math.ceil(math.log(1 / start) / math.log(factor) - 1e-9)


def ramp_shares(fractions: Sequence[float], grown_at: float) -> list[float]:
    """Share of the training that each stage takes, where widths rise along a straight line in time.

    >>> [round(share, 3) for share in ramp_shares([0.25, 0.5, 1.0], 0.5)]
    [0.113, 0.387, 0.5]
    >>> ramp_shares([0.5, 1.0], 0.4)
    [0.4, 0.6]
    """
    if len(fractions) == 1:
        return [1.0]
    crossings = [math.sqrt(a * b) for a, b in itertools.pairwise(fractions)]
    rise = crossings[-1] - fractions[0]
    if rise <= 0:  # nothing grows
        return [1 / len(fractions)] * len(fractions)
    return shares_between([grown_at * (crossing - fractions[0]) / rise for crossing in crossings])


def shares_between(ends: Sequence[float]) -> list[float]:
    """Share of the training that each stage takes, where the stages but the last end at given shares.

    >>> shares_between([0.25, 0.5])
    [0.25, 0.25, 0.5]
    """
    return [end - begin for begin, end in itertools.pairwise([0.0, *ends, 1.0])]


def check_times(times: Any) -> tuple[float, ...]:
    """Shares of the training at which a growth comes, or an error that names them.

    >>> check_times([0.2, 0.5])
    (0.2, 0.5)
    """
    is_list = isinstance(times, Iterable) and not isinstance(times, (str, bytes, Mapping))
    entries = list(times) if is_list else []
    is_rising = all(is_number(t) for t in entries) and all(
        a < b for a, b in itertools.pairwise([0.0, *entries, 1.0])
    )
    if not entries or not is_rising:
        raise PlanError(
            f"growth_at={times!r}: expected shares of the training at which a growth comes, rising and between 0 "
            "and 1, such as (0.2, 0.5)."
        )
    return tuple(float(t) for t in entries)


def rounded_lengths(shares: Sequence[float], total: int) -> list[int]:
    """Shares of a whole number as whole numbers, which may be 0.

    >>> rounded_lengths([0.114, 0.386, 0.5], 8)
    [1, 3, 4]
    """
    ends = [_nearest(total * end) for end in itertools.accumulate(shares)]
    return [end - begin for begin, end in itertools.pairwise([0, *ends[:-1], total])]


def filled_lengths(shares: Sequence[float], total: int) -> list[int]:
    """The same with at least 1 each, which `total` must reach for.

    >>> filled_lengths([0.05, 0.05, 0.9], 4)
    [1, 1, 2]
    """
    count = len(shares)
    ends, end = [], 0
    for i, share_end in enumerate(itertools.accumulate(shares)):
        end = min(max(_nearest(total * share_end), end + 1), total - (count - 1 - i))
        ends.append(end)
    return [end - begin for begin, end in itertools.pairwise([0, *ends[:-1], total])]


def _nearest(value: float) -> int:
    """The nearest whole number, the lower one of two: a growth is better early than late."""
    return math.ceil(value - 0.5 - 1e-9)


def width_fractions(
    stages: int,
    start: float = 0.25,
    growth: float | None = None,
    schedule: ScheduleKind = "ramp",
) -> list[float]:
    """Fraction of the full width at stages 0 … stages-1; the last one is 1.

    Stage t has start · (1 + growth)^t, capped at 1. With `growth=None` every stage grows by the same
    factor up to 1; with schedule "linear" by the same amount (and `growth` is not used). "doubling" ends with the
    full width, whatever `start` and `growth` are.

    >>> width_fractions(4, schedule="doubling")
    [0.125, 0.25, 0.5, 1.0]
    >>> [round(16 * f) for f in width_fractions(9, growth=0.2)]
    [4, 5, 6, 7, 8, 10, 12, 14, 16]
    >>> width_fractions(3, 0.25)
    [0.25, 0.5, 1.0]
    >>> width_fractions(4, 0.25, schedule="linear")
    [0.25, 0.5, 0.75, 1.0]
    """
    check_stages(stages)
    check_schedule(schedule)
    check_start(start)
    if stages == 1:
        return [1.0]
    if schedule == "doubling":
        return [0.5**t for t in range(stages - 1, -1, -1)]
    if schedule == "linear":
        return [start + (1 - start) * t / (stages - 1) for t in range(stages - 1)] + [1.0]
    if growth is None:
        growth = float(start) ** (-1 / (stages - 1)) - 1
    else:
        check_rate("growth", growth)
    limit = (
        math.log(1 / start) / math.log1p(growth) if growth > 0 else math.inf
    )  # full from here on
    powers = [start * (1 + growth) ** t if t <= limit else 1.0 for t in range(stages - 1)]
    return [min(1.0, float(power)) for power in powers] + [1.0]


def recursive_widths(
    first: int, last: int, stages: int, growth: float = 0.2, round_to: int = 2
) -> list[int]:
    """Eq. 6 to the letter: C_t = C_{t-1} + p_c · C_{t-1} rounded to a multiple; the last takes the full width.

    >>> recursive_widths(4, 16, 4)  # a step of 0.8 rounds to 0
    [4, 4, 4, 16]
    >>> recursive_widths(16, 64, 4)
    [16, 20, 24, 64]
    """
    check_stages(stages)
    check_rate("growth", growth)
    widths = [first]
    while len(widths) < stages - 1:
        step = round_to * round(growth * widths[-1] / round_to)
        widths.append(min(last, widths[-1] + step))
    return [*widths[: stages - 1], last]


def stage_epochs(
    epochs: int,
    stages: int,
    first: int = 8,
    growth: float = 0.2,
    schedule: ScheduleKind = "published",
    unit: str = "epochs",
) -> list[int]:
    """Epochs (or steps) of each stage; the last stage takes the rest.

    "published": floor(first · (1 + growth)^t). "recursive": eq. 7 to the letter,
    T_t = T_{t-1} + round(growth · T_{t-1}). "linear": as many for each stage.

    >>> stage_epochs(160, 9)
    [8, 9, 11, 13, 16, 19, 23, 28, 33]
    >>> stage_epochs(160, 9, schedule="recursive")
    [8, 10, 12, 14, 17, 20, 24, 29, 26]
    """
    check_stages(stages)
    check_schedule(schedule)
    epochs, first = check_whole("epochs", epochs), check_whole("first_epochs", first)
    check_rate("epoch_growth", growth)
    early: list[int] = []
    while len(early) < stages - 1 and len(early) < 50 + epochs:
        t = len(early)
        if schedule == "published":
            early.append(math.floor(first * (1 + growth) ** t + 1e-9))
        elif schedule == "linear":
            early.append(epochs // stages)
        else:
            early.append(early[-1] + round(growth * early[-1]) if early else first)
        if early[-1] > epochs:
            break  # far enough to say so
    rest = epochs - sum(early)
    if rest < 1 or 0 in early or len(early) < stages - 1:
        listed = [*map(str, early[:12]), *(["…"] if len(early) > 12 else [])]
        raise PlanError(
            f"{epochs} {unit} do not reach for {stages} stages: stages 0 to {len(early) - 1} take "
            f"{' + '.join(listed)} = {sum(early)}, which leaves {rest} for the last. Choose more "
            f"{unit}, fewer stages, a smaller first_epochs or epoch_growth, or schedule='ramp', which fits any run."
        )
    return [*early, rest]


def batch_sizes(base: int, stages: int, growth: float = 0.0) -> list[int]:
    """Batch size of each stage (eq. 8): the last is `base`, B_{t-1} = B_t + round(growth · B_t).

    >>> batch_sizes(128, 4, 0.2)
    [222, 185, 154, 128]
    """
    check_stages(stages)
    check_rate("batch_growth", growth)
    sizes = [check_whole("batch_size", base)]
    while len(sizes) < stages:
        sizes.append(sizes[-1] + round(growth * sizes[-1]))
    return sizes[::-1]


def check_list(name: str, values: Any, stages: int | None) -> list[int]:
    """An explicit list over stages, checked; their number may be open."""
    is_list = isinstance(values, Iterable) and not isinstance(values, (str, bytes, Mapping))
    entries = list(values) if is_list else []
    is_whole = all(isinstance(v, numbers.Integral) and not isinstance(v, bool) for v in entries)
    fits = bool(entries) if stages is None else len(entries) == stages
    if not is_list or not fits or not is_whole or min(entries) < 1:
        count = "" if stages is None else f"{stages} "
        raise PlanError(
            f"{name}={values!r}: expected {count}whole numbers, each at least 1 (or one of them)."
        )
    return [int(v) for v in entries]


def check_examples(values: Any, stages: int | None) -> tuple[float, ...]:
    """Examples of each stage of data that grows, or shares of them, checked.

    >>> check_examples([10, 20], 1)
    Traceback (most recent call last):
    growthring.errors.PlanError: stage_examples=[10, 20]: the data grows in 2 stages, the plan has 1. ...
    """
    is_list = isinstance(values, Iterable) and not isinstance(values, (str, bytes, Mapping))
    found = tuple(values) if is_list else ()
    if not found or not all(is_number(v) and 0 < v < math.inf for v in found):
        raise PlanError(
            f"stage_examples={values!r:.80}: expected the number of examples of each stage, such as [1000, 2000]."
        )
    for stage in range(1, len(found)):
        if found[stage] < found[stage - 1]:
            raise PlanError(
                f"stage_examples={values!r:.80}: the data shrinks from {found[stage - 1]} to {found[stage]} at "
                f"stage {stage}; data that grows keeps what it had."
            )
    if stages is not None and len(found) > stages:
        raise PlanError(
            f"stage_examples={values!r:.80}: the data grows in {len(found)} stages, the plan has {stages}. Plan as "
            "many stages, or let the data grow in fewer."
        )
    return found


def check_batch_rate(rule: Any) -> None:
    """Refuses what is not a rule by which the learning rate follows the batch size."""
    if rule not in _POWERS:
        raise PlanError(f"batch_rate={rule!r} is not one of {', '.join(_POWERS)}.")


def rate_factors(sizes: Sequence[int], rule: str) -> list[float]:
    """Factor on the learning rate at each stage that its batch size asks for.

    "none" as in the paper, "linear" or "sqrt" in the ratio to the last stage's.

    >>> rate_factors([256, 128], "linear")
    [2.0, 1.0]
    """
    check_batch_rate(rule)
    return [(size / sizes[-1]) ** _POWERS[rule] for size in sizes]
