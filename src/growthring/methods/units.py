"""Units: all units of the growing width groups, numbered through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from growthring.core.axes import Axis, Concat, Fixed, Ref, size


class Units:
    """Numbers the units of some groups: group 0's first, then group 1's, and so on.

    Args:
        widths: of all groups.
        groups: those to number.

    >>> units = Units({0: 2, 1: 3}, [0, 1])
    >>> units.total, units.along(Concat((Fixed(1), Ref(1)))).tolist()
    (5, [-1, 2, 3, 4])
    """

    def __init__(self, widths: Mapping[int, int], groups: Iterable[int]) -> None:
        self.widths = dict(widths)
        self.starts: dict[int, int] = {}
        self.total = 0
        for group in groups:
            self.starts[group] = self.total
            self.total += widths[group]

    def along(self, axis: Axis) -> torch.Tensor:
        """The unit of every entry of an axis; -1 where it belongs to none of them."""
        if isinstance(axis, Fixed) or (isinstance(axis, Ref) and axis.group not in self.starts):
            return torch.full((size(axis, self.widths),), -1)
        if isinstance(axis, Ref):
            start = self.starts[axis.group]
            return torch.arange(start, start + self.widths[axis.group])
        parts = [self.along(part) for part in axis.parts]
        if isinstance(axis, Concat):
            return torch.cat(parts)
        result = parts[0]
        for part in parts[1:]:  # one factor of a product grows at most
            result = torch.maximum(result[:, None], part[None, :]).flatten()
        return result

    def sums(self, values: torch.Tensor, axis: Axis, position: int) -> torch.Tensor:
        """Sums of a tensor's values over the entries of each unit along one of its axes: (total,)."""
        index = self.along(axis).to(values.device)
        rows = values.movedim(position, 0).flatten(1).sum(1)
        is_unit = index >= 0
        return values.new_zeros(self.total).index_add_(0, index[is_unit], rows[is_unit])

    def spread(
        self, values: torch.Tensor, axis: Axis, like: torch.Tensor, position: int
    ) -> torch.Tensor:
        """One value per unit (total,) along an axis of `like`, 0 where there is no unit; broadcasts over it."""
        index = self.along(axis).to(values.device)
        line = torch.where(index >= 0, values[index.clamp_min(0)], values.new_zeros(()))
        return line.to(like).reshape([-1] + [1] * (like.dim() - 1 - position))

    def part(self, values: torch.Tensor, group: int) -> torch.Tensor:
        """The values of one group's units."""
        start = self.starts[group]
        return values[start : start + self.widths[group]]
