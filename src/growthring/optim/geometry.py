"""RingGeometry: where the rings of one parameter lie, in a form that sums and spreads values fast.

Every parameter is seen as a matrix (rows, rest): its first axis, and all others flattened. An entry's
ring is max(ring of its row, ring of its place in the rest), so that

- a number per ring becomes one row vector of length `rest` for each ring that rows have, and rows of
  one ring lie in runs: a handful of broadcasting operations instead of a mask per ring;
- a sum over each ring is a table of block sums (rings of rows × rings of the rest), folded once.

On the CPU runs are narrowed views, which costs one pass over the parameter, and no piece is larger than the
cache; elsewhere there are products with 0/1 matrices, which need few kernels, no host synchronisation and
always add in the same order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from growthring.distributed.shards import is_shard, local_of
from growthring.optim.shards import positions

# More runs in the rest than this, or shorter runs of rows, and the calls cost more than the passes over
# memory that they save.
MAX_RUNS = 40
MIN_RUN_ENTRIES = 1 << 14
# A step is several passes over memory: on a CPU, all of them over one portion of so many entries at a time. Smaller
# ones cost more in calls than they save.
PORTION_ENTRIES = 1 << 18


@dataclass(frozen=True)
class ParameterRings:
    """What an optimizer is told of one parameter.

    Attributes:
        name: qualified name in the model.
        axes: for each axis, the ring of each of its positions.
        num_rings: stages so far, the seed included.
        adapts: whether rate adaptation applies: two or more axes, and new entries that are drawn (a
            ring that starts at zero has no scale of its own to go by).
        output_width: input width C_0 at stage 0 if it writes a model output, else None.
    """

    name: str
    axes: tuple[Tensor, ...]
    num_rings: int
    adapts: bool
    output_width: int | None = None

    @cached_property
    def has_rings(self) -> bool:
        """Whether any entry is younger than the seed."""
        return any(bool((axis > 0).any()) for axis in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the parameter."""
        return tuple(len(axis) for axis in self.axes)


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as a real one with a last axis of 2; any other as it is."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _runs(ring: Tensor) -> tuple[list[int], list[int]]:
    """Lengths of the runs of equal numbers, and those numbers."""
    values, counts = torch.unique_consecutive(ring, return_counts=True)
    return counts.tolist(), values.tolist()


def _one_hot(ring: Tensor, num_rings: int, like: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(ring, num_rings).to(like)


class RingGeometry:
    """The rings of one parameter as a matrix (rows, rest); of one that is cut, of the part that is here.

    Args:
        rings: the parameter's rings.
        parameter: the parameter, for its device, type and memory layout.
        by_runs: use narrowed views; by default on the CPU where runs are long.

    Attributes:
        pieces: the parameter in pieces, one after the other: how many rows, and their place among the rings of
            rows; a tensor, one place for each row, where they differ.

    >>> rings = ParameterRings("w", (torch.tensor([0, 0, 1]), torch.tensor([0, 1])), 2, adapts=True)
    >>> w = torch.tensor([[3.0, 1.0], [4.0, 1.0], [1.0, 1.0]])
    >>> RingGeometry(rings, w).squares(w).tolist()
    [25.0, 4.0]
    """

    def __init__(
        self, rings: ParameterRings, parameter: Tensor, by_runs: bool | None = None
    ) -> None:
        real = as_real(local_of(parameter))
        # what is found out about them takes place on the host
        axes = [axis.cpu() for axis in rings.axes]
        if is_shard(parameter):
            places = positions(parameter, rings.name)
            axes = [axis[place] for axis, place in zip(axes, places, strict=True)]
        if parameter.is_complex():
            axes.append(torch.zeros(2, dtype=torch.int64, device="cpu"))
        self._whole = [*rings.axes, *axes[len(rings.axes) :]]
        zero = torch.zeros(1, dtype=torch.int64, device="cpu")
        rows = axes[0] if axes else zero
        rest = zero
        for axis in axes[1:]:
            rest = torch.maximum(rest[:, None], axis[None, :]).flatten()
        self.num_rings, self.rows = rings.num_rings, len(rows)
        self.shape = tuple(real.shape)
        present, row_place = torch.unique(rows, return_inverse=True)
        lengths, run_rings = _runs(rows)
        self.rest_lengths, rest_rings = _runs(rest)
        place = {ring: i for i, ring in enumerate(present.tolist())}
        rows, rest, present, row_place = (
            t.to(real.device) for t in (rows, rest, present, row_place)
        )
        self._rows, self._rest = rows, rest
        self.index = torch.maximum(present[:, None], rest[None, :])  # (rings of rows, rest)
        on_cpu = real.device.type == "cpu"
        is_long = real.numel() >= MIN_RUN_ENTRIES * len(run_rings) or len(run_rings) == 1
        most = (
            max(PORTION_ENTRIES // max(len(rest), 1), 1)
            if on_cpu and by_runs is not False
            else len(rows)
        )
        self.pieces: list[tuple[int, int | Tensor]] = []
        if on_cpu and is_long if by_runs is None else by_runs:
            for length, ring in zip(lengths, run_rings, strict=True):
                self.pieces += [(n, place[ring]) for n in _cut(length, most)]
        else:
            self.pieces = [(len(part), part) for part in row_place.split(max(most, 1))]
        # In low precision a sum over millions of squares would stop growing.
        wide = real.dtype if real.dtype.itemsize >= 4 else torch.float32
        like = torch.empty(0, dtype=wide, device=real.device)
        self.dtype = wide
        self._row_hot = _one_hot(rows, self.num_rings, like)  # (rows, rings)
        is_plain = on_cpu and real.is_contiguous()
        self._sum_by_runs = is_plain and by_runs is not False and len(rest_rings) <= MAX_RUNS
        if self._sum_by_runs:
            columns = torch.tensor(rest_rings, device=real.device)
        else:
            columns = torch.arange(self.num_rings, device=real.device)
            self._rest_hot = _one_hot(rest, self.num_rings, like)  # (rest, rings)
        every = torch.arange(self.num_rings, device=real.device)
        cells = torch.maximum(columns[:, None], every[None, :]).flatten()
        self._fold = _one_hot(cells, self.num_rings, like)  # (columns × rings, rings)

    def squares(self, values: Tensor) -> Tensor:
        """Sum of squares over each ring, of the part that is here.

        Args:
            values: of the parameter's shape, or its part's.

        Returns:
            (rings,)
        """
        matrix = as_real(local_of(values)).reshape(self.rows, len(self._rest))
        if self._sum_by_runs:
            parts = matrix.split(self.rest_lengths, dim=1)
            lines = [torch.linalg.vector_norm(part, dim=1, dtype=self.dtype) for part in parts]
            table = torch.stack(lines).square_()  # (runs, rows)
        else:
            wide = matrix.to(self.dtype)
            # rows first: few rows times many columns is the faster product
            return (self._row_hot.T @ (wide * wide) @ self._rest_hot).flatten() @ self._fold
        return (table @ self._row_hot).flatten() @ self._fold

    @cached_property
    def counts(self) -> list[int]:
        """Entries of each ring of the whole parameter; 1 for a ring that has none, so that it can divide."""
        within = [
            math.prod(int((axis <= k).sum()) for axis in self._whole) for k in range(self.num_rings)
        ]
        return [max(b - a, 1) for a, b in itertools.pairwise([0, *within])]

    def parts(self, values: Tensor) -> list[Tensor]:
        """The pieces of a tensor of the parameter's shape: views, in whatever layout it is."""
        real = as_real(values)
        return [real] if len(self.pieces) == 1 else list(real.split([n for n, _ in self.pieces]))

    def spread(self, vectors: Tensor) -> list[Callable[[], Sequence[Tensor]]]:
        """For each piece, what makes factors that broadcast over it, one for each of several numbers.

        They are made when they are needed: where rows differ they are as large as the piece.

        Args:
            vectors: (numbers, rings of rows, rest), for each entry of `index`.
        """
        count = len(vectors)
        if not self.pieces:
            return []  # nothing is here
        if not self.shape:
            return [lambda: vectors.view(count).unbind()]
        lines = vectors.view(count, -1, *self.shape[1:])
        by_place: list[Sequence[Tensor]] = []
        if any(isinstance(place, int) for _, place in self.pieces):
            flat = lines.flatten(
                0, 1
            ).unbind()  # one call for all: a call costs as much as a short line
            by_place = [flat[i :: lines.shape[1]] for i in range(lines.shape[1])]

        def make(place: int | Tensor) -> Sequence[Tensor]:
            if isinstance(place, int):
                return by_place[place]
            return lines.index_select(1, place).unbind()

        return [partial(make, place) for _, place in self.pieces]


def _cut(length: int, most: int) -> list[int]:
    """A length in nearly equal parts of at most `most`.

    >>> _cut(7, 3)
    [3, 2, 2]
    """
    count = -(-length // most)
    return [length // count + (i < length % count) for i in range(count)]
