"""Spread: a number over several runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The mean over runs, and their sample standard deviation where there are several."""

    mean: float
    deviation: float | None = None

    def percent(self, digits: int = 1) -> str:
        """Returns it as a percentage.

        >>> Spread(0.978, 0.002).percent(), Spread(0.5).percent()
        ('97.8 ± 0.2 %', '50.0 %')
        """
        deviation = "" if self.deviation is None else f" ± {100 * self.deviation:.{digits}f}"
        return f"{100 * self.mean:.{digits}f}{deviation} %"

    def plain(self, digits: int = 4) -> str:
        """Returns it with so many significant digits.

        >>> Spread(0.123456, 0.01).plain()
        '0.1235 ± 0.01'
        """
        deviation = "" if self.deviation is None else f" ± {self.deviation:.2g}"
        return f"{self.mean:.{digits}g}{deviation}"


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean and sample standard deviation (over n − 1) of the values that are there.

    >>> spread([1.0, None, 3.0])
    Spread(mean=2.0, deviation=1.4142135623730951)
    >>> spread([None]), spread([0.5])
    (None, Spread(mean=0.5, deviation=None))
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


def without_rounding(share: Spread | None) -> Spread | None:
    """Drops a deviation that is only rounding: FLOPs are counted, and seeds cost the same.

    >>> without_rounding(Spread(0.5, 1e-12))
    Spread(mean=0.5, deviation=None)
    """
    alike = share is not None and (share.deviation or 0.0) <= 1e-6 * abs(share.mean)
    return Spread(share.mean) if share is not None and alike else share
