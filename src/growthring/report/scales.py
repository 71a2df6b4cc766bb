"""Scales of charts: from values to places, with round numbers as ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


def nice_step(span: float, num_steps: int) -> float:
    """Returns the round step that divides a span into at most so many parts.

    >>> nice_step(9.3, 5), nice_step(0.4, 5)
    (2.0, 0.1)
    """
    raw = span / max(1, num_steps)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    factor = next((s for s in _STEPS if s * magnitude >= raw * (1 - 1e-9)), _STEPS[-1])
    return factor * magnitude


@dataclass(frozen=True)
class Scale:
    """Maps the values from `low` to `high` to places from `start` to `end`, evenly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Returns the place of a value.

        >>> Scale(0, 10, 100, 200)(5), Scale(1, 100, 0, 10, log=True)(10)
        (150.0, 5.0)
        """
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        position = math.log(max(value, self.low * 1e-6)) if self.log else value
        return self.start + (self.end - self.start) * (position - low) / (high - low)

    def ticks(self, num_ticks: int = 6, whole: bool = False) -> list[float]:
        """Returns round values within the scale, about so many; if `whole`, whole numbers only.

        >>> Scale(0, 10, 0, 1).ticks()
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        >>> Scale(0, 13, 0, 1).ticks(whole=True)
        [0.0, 5.0, 10.0]
        >>> Scale(0.02, 3, 0, 1, log=True).ticks()
        [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0]
        """
        if self.log:
            return self._log_ticks(num_ticks)
        step = nice_step(self.high - self.low, num_ticks)
        if whole and step < 10:
            step = next(s for s in (1.0, 2.0, 5.0, 10.0) if s >= step)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [_clean(index * step, step) for index in range(first, last + 1)]

    def _log_ticks(self, num_ticks: int) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            ticks = [_clean(d * 10.0**e, 10.0**e) for e in decades for d in digits]
            ticks = [v for v in ticks if self.low * (1 - 1e-9) <= v <= self.high * (1 + 1e-9)]
            if len(ticks) <= num_ticks + 2:
                return ticks
        return ticks[:: math.ceil(len(ticks) / num_ticks)]


def fit(
    values: Iterable[float], start: float, end: float, *, zero: bool = False, log: bool = False
) -> Scale:
    """Returns a scale that shows the values, with a little room; `log` holds if they allow it.

    Args:
        zero: whether the scale begins at 0, as that of a time does.
        log: whether to use logarithms if all values are positive and differ by more than 8 times.

    >>> fit([1, 1], 0, 100).low, fit([], 0, 100).high, fit([0.1, 5], 0, 1, log=True).log
    (0.95, 1.05, True)
    """
    numbers = list(values)
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    if log and low > 0 and high > 8 * low:
        return Scale(low / 1.1, high * 1.1, start, end, log=True)
    if zero:
        return Scale(0.0, high if high > 0 else 1.0, start, end)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = abs(high) * 0.05 or 0.5
    else:
        room = (high - low) * 0.05
    return Scale(low - room, high + room, start, end)


def tick_labels(ticks: Sequence[float], log: bool = False) -> list[str]:
    """Returns the ticks as texts with as many decimals as they need; all the same unless `log`.

    >>> tick_labels([0.0, 0.5, 1.0]), tick_labels([0.0, 20000.0]), tick_labels([0.0, 1e-7])
    (['0.0', '0.5', '1.0'], ['0', '20,000'], ['0', '1e-07'])
    """
    largest = max((abs(tick) for tick in ticks), default=0.0)
    smallest = min((abs(tick) for tick in ticks if tick), default=1.0)
    if largest >= 1e7 or smallest < 1e-4:
        return [f"{tick:.4g}" for tick in ticks]
    if log:
        return [f"{tick:g}" if tick < 1000 else f"{tick:,.0f}" for tick in ticks]
    decimals = next(
        d for d in range(9) if all(abs(round(t, d) - t) < 1e-9 for t in ticks) or d == 8
    )
    return [f"{tick:,.{decimals}f}" for tick in ticks]


def thin(points: Sequence[tuple[float, float]], most: int = 400) -> list[tuple[float, float]]:
    """Returns at most about so many points of a curve, its highs and lows among them.

    >>> len(thin([(i, i % 7) for i in range(10000)])) <= 402
    True
    """
    if len(points) <= most:
        return list(points)
    size = math.ceil(2 * len(points) / most)
    kept = [points[0]]
    for begin in range(1, len(points) - 1, size):
        bucket = points[begin : min(begin + size, len(points) - 1)]
        kept += sorted({min(bucket, key=lambda p: p[1]), max(bucket, key=lambda p: p[1])})
    return [*kept, points[-1]]


def _clean(value: float, step: float) -> float:
    """Takes off what rounding left: 0.30000000000000004."""
    return round(value, max(0, 2 - math.floor(math.log10(step))))
