"""RingMap: which entries of each parameter each stage added.

Ring k of a parameter is what stage k added: for a matrix an L-shape, for a vector a tail; ring 0 is
the seed's block. With segments (heads, concatenations, flattens) a ring is scattered over the axis,
so it is never stored as a slice: an entry's ring is the largest ring of its positions along the
axes, and a position's ring follows from the widths that its group had at each stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from growthring.core.axes import Axis, rings
from growthring.errors import InputError


class RingMap:
    """The growth history of every tensor.

    Args:
        axes: tensor name -> structure of its axes.
        widths: width of each group at stage 0.

    >>> from growthring.core.axes import Ref, Fixed
    >>> ring_map = RingMap({"weight": (Ref(0), Fixed(2))}, {0: 1})
    >>> ring_map.append({0: 3})
    >>> ring_map.index("weight").tolist()
    [[0, 0], [1, 1], [1, 1]]
    >>> ring_map.sums("weight", torch.ones(3, 2)).tolist()
    [2.0, 4.0]
    """

    def __init__(self, axes: Mapping[str, tuple[Axis, ...]], widths: Mapping[int, int]) -> None:
        self._axes = dict(axes)
        self._history: dict[int, list[int]] = {group: [w] for group, w in widths.items()}
        self._cache: dict[str, list[torch.Tensor]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._axes

    @property
    def num_rings(self) -> int:
        """Stages so far, the seed included."""
        return max((len(widths) for widths in self._history.values()), default=1)

    def append(self, widths: Mapping[int, int]) -> None:
        """Adds a stage with these widths."""
        for group, history in self._history.items():
            if widths[group] < history[-1]:
                raise InputError(
                    f"group {group} would shrink from {history[-1]} to {widths[group]}."
                )
        for group, history in self._history.items():
            history.append(widths[group])
        self._cache.clear()

    def axis_rings(self, name: str) -> list[torch.Tensor]:
        """For each axis of a tensor, the ring of each of its positions."""
        if name not in self._cache:
            self._cache[name] = [rings(axis, self._history) for axis in self._axes[name]]
        return self._cache[name]

    def index(self, name: str) -> torch.Tensor:
        """The ring of every entry, as an integer tensor of the tensor's shape."""
        axes = self.axis_rings(name)
        result = torch.zeros((), dtype=torch.int64, device="cpu")
        for i, ring in enumerate(axes):
            result = torch.maximum(result, ring.reshape([-1] + [1] * (len(axes) - 1 - i)))
        return result

    def mask(self, name: str, ring: int) -> torch.Tensor:
        """Boolean tensor of the entries of one ring."""
        return self.index(name) == ring

    def num_entries(self, name: str) -> list[int]:
        """Number of entries in each ring."""
        counts = torch.bincount(self.index(name).flatten(), minlength=self.num_rings)
        return [int(n) for n in counts]

    def sums(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Sum of `values` (of the tensor's shape) over each ring, without a mask per ring.

        The axes are reduced one after the other to one row per ring, so the result is a small table
        of block sums whose entry (r_1, …, r_n) belongs to ring max(r_i).
        """
        count = self.num_rings
        table = values
        for i, ring in enumerate(self.axis_rings(name)):
            shape = list(table.shape)
            shape[i] = count
            table = table.new_zeros(shape).index_add_(i, ring.to(values.device), table)
        result = values.new_zeros(count)
        if table.dim() == 0:  # a scalar is part of the seed
            result[0] = table
            return result
        grids = torch.meshgrid(*[torch.arange(count, device="cpu")] * table.dim(), indexing="ij")
        youngest = torch.stack(grids).amax(0).flatten().to(values.device)
        return result.index_add_(0, youngest, table.flatten())

    def norms(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Frobenius norm of each ring of `values`."""
        return self.sums(name, values * values).sqrt()

    def state_dict(self) -> dict[str, Any]:
        """The widths of every group at every stage."""
        return {"history": {str(group): list(widths) for group, widths in self._history.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the history of a map over the same groups."""
        history: dict[int, Sequence[int]] = {int(g): w for g, w in state["history"].items()}
        if set(history) != set(self._history):
            raise InputError("the ring history is of another model: its width groups differ.")
        self._history = {g: list(w) for g, w in history.items()}
        self._cache.clear()
