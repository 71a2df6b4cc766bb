"""Steps: groups that share one fraction of their full widths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Steps:
    """Groups that share one fraction of their full widths: `step`/`count`, `2·step`/`count`, …, 1.

    A head size of 64 in 8 heads and a residual width of 512 move together: 64 · k/64 and 512 · k/64.
    """

    groups: tuple[int, ...]
    count: int
    step: int

    def widths(self, full: Mapping[int, int], fraction: float) -> dict[int, int]:
        """Widths nearest to a fraction: whole steps, every group at least two wide."""
        k = max(self.step, self.step * math.floor(fraction * self.count / self.step + 0.5))
        k = max(k, self.step * math.ceil(self.least(full) / self.step))
        return self.at(full, min(k, self.count))

    def over(
        self,
        full: Mapping[int, int],
        fractions: Sequence[float],
        given: Mapping[int, Sequence[int]] | None = None,
    ) -> list[dict[int, int]]:
        """Widths at each of several fractions, whatever the widths that are `given` for some groups."""
        return [self.at(full, self.count) if f >= 1 else self.widths(full, f) for f in fractions]

    def below(self, full: Mapping[int, int], fraction: float) -> dict[int, int]:
        """Widths near a fraction that are not the full ones, where there are any."""
        widths = self.widths(full, fraction)
        if widths != {g: full[g] for g in self.groups}:
            return widths
        return self.widths(full, (self.count - self.step) / self.count)

    def at(self, full: Mapping[int, int], k: int) -> dict[int, int]:
        """Widths at the fraction `k`/`count`."""
        return {g: full[g] * k // self.count for g in self.groups}

    def least(self, full: Mapping[int, int]) -> int:
        """The least `k` at which every group is two wide."""
        return max(math.ceil(min(2, full[g]) * self.count / full[g]) for g in self.groups)

    def choices(self, full: Mapping[int, int]) -> list[int]:
        """Every `k` that is a whole step, and the full widths.

        >>> Steps((0,), 5, 2).choices({0: 5})
        [2, 4, 5]
        """
        first = self.step * math.ceil(self.least(full) / self.step)
        return [*range(first, self.count, self.step), self.count]

    @property
    def parts(self) -> list[Steps]:
        """The sets of groups that have one fraction each: this one."""
        return [self]
