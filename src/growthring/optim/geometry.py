"""RingGeometry: where the rings of one parameter lie, in a form that sums and spreads values fast.

Every parameter is seen as a matrix (rows, rest): its first axis, and all others flattened. An entry's
ring is max(ring of its row, ring of its place in the rest), so that

- a number per ring becomes one row vector of length `rest` for each ring that rows have, and rows of
  one ring lie in runs: a handful of broadcasting operations instead of a mask per ring;
- a sum over each ring is a table of block sums (rings of rows × rings of the rest), folded once.

On the CPU runs are narrowed views, which costs one pass over the parameter; elsewhere products with
0/1 matrices, which need few kernels, no host synchronisation and always add in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

# More runs in the rest than this, or shorter runs of rows, and the calls cost more than the passes over
# memory that they save.
MAX_RUNS = 40
MIN_RUN_ENTRIES = 4096


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
    """The rings of one parameter as a matrix (rows, rest).

    Args:
        rings: the parameter's rings.
        parameter: the parameter, for its device, type and memory layout.
        by_runs: use narrowed views; by default on the CPU where the layout allows it.

    >>> rings = ParameterRings("w", (torch.tensor([0, 0, 1]), torch.tensor([0, 1])), 2, adapts=True)
    >>> w = torch.tensor([[3.0, 1.0], [4.0, 1.0], [1.0, 1.0]])
    >>> RingGeometry(rings, w).squares(w).tolist()
    [25.0, 4.0]
    """

    def __init__(
        self, rings: ParameterRings, parameter: Tensor, by_runs: bool | None = None
    ) -> None:
        real = as_real(parameter)
        axes = [
            axis.cpu() for axis in rings.axes
        ]  # what is found out about them takes place on the host
        if parameter.is_complex():
            axes.append(torch.zeros(2, dtype=torch.int64, device="cpu"))
        zero = torch.zeros(1, dtype=torch.int64, device="cpu")
        rows = axes[0] if axes else zero
        rest = zero
        for axis in axes[1:]:
            rest = torch.maximum(rest[:, None], axis[None, :]).flatten()
        self.num_rings, self.rows = rings.num_rings, len(rows)
        self.shape = tuple(real.shape)
        present, row_place = torch.unique(rows, return_inverse=True)
        self.lengths, run_rings = _runs(rows)
        self.rest_lengths, rest_rings = _runs(rest)
        place = {ring: i for i, ring in enumerate(present.tolist())}
        self.run_places = [place[ring] for ring in run_rings]
        rows, rest, present, self.row_place = (
            t.to(real.device) for t in (rows, rest, present, row_place)
        )
        self._rows, self._rest = rows, rest
        self.index = torch.maximum(present[:, None], rest[None, :])  # (rings of rows, rest)
        is_long = real.numel() >= MIN_RUN_ENTRIES * len(run_rings)
        can = real.device.type == "cpu" and real.is_contiguous() and is_long
        self.by_runs = can if by_runs is None else by_runs and real.is_contiguous()
        # In low precision a sum over millions of squares would stop growing.
        wide = real.dtype if real.dtype.itemsize >= 4 else torch.float32
        like = torch.empty(0, dtype=wide, device=real.device)
        self.dtype = wide
        self._row_hot = _one_hot(rows, self.num_rings, like)  # (rows, rings)
        is_plain = real.device.type == "cpu" and real.is_contiguous()
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
        """Sum of squares over each ring.

        Args:
            values: of the parameter's shape.

        Returns:
            (rings,)
        """
        matrix = as_real(values).reshape(self.rows, len(self._rest))
        if self._sum_by_runs:
            parts = matrix.split(self.rest_lengths, dim=1)
            norms = [torch.linalg.vector_norm(part, dim=1, dtype=self.dtype) for part in parts]
            table = torch.stack(norms).square_()  # (runs, rows)
        else:
            wide = matrix.to(self.dtype)
            table = (wide * wide @ self._rest_hot).T  # (rings, rows)
        return (table @ self._row_hot).flatten() @ self._fold

    @cached_property
    def counts(self) -> list[int]:
        """Number of entries of each ring; 1 for a ring that has none, so that it can divide."""
        within = [
            int((self._rows <= k).sum()) * int((self._rest <= k).sum())
            for k in range(self.num_rings)
        ]
        return [max(b - a, 1) for a, b in itertools.pairwise([0, *within])]

    def parts(self, values: Tensor, is_target: bool = False) -> list[Tensor]:
        """The runs of rows of a tensor; where there are no runs, the tensor itself.

        Those of a target are views, or it is an error: what is written to a copy is lost.
        """
        real = as_real(values)
        if not self.by_runs:
            return [real]
        shape = (self.rows, len(self._rest))
        matrix = real.view(shape) if is_target else real.reshape(shape)
        return list(matrix.split(self.lengths))

    def spread(self, vectors: Tensor) -> list[Tensor]:
        """Factors that broadcast over `parts`.

        Args:
            vectors: (rings of rows, rest), a number for each entry of `index`.
        """
        if self.by_runs:
            lines = vectors.unbind()
            return [lines[i] for i in self.run_places]
        return [vectors.index_select(0, self.row_place).view(self.shape)]


class RingBatch:
    """Parameters of one device and type, whose ring-wise operations run together.

    >>> rings = ParameterRings("w", (torch.tensor([0, 0, 1]),), 2, adapts=False)
    >>> w = torch.zeros(3)
    >>> batch = RingBatch([RingGeometry(rings, w)], w)
    >>> batch.addcmul_([w], [torch.ones(3)], torch.tensor([[1.0, 5.0]]))
    >>> w.tolist()
    [-1.0, -1.0, -5.0]
    """

    def __init__(self, geometries: Sequence[RingGeometry], like: Tensor) -> None:
        self.geometries = list(geometries)
        self.dtype, self.real_dtype = self.geometries[0].dtype, as_real(like).dtype
        self.device = like.device
        num_rings = self.geometries[0].num_rings
        shifted = [g.index.flatten() + i * num_rings for i, g in enumerate(self.geometries)]
        self._index = torch.cat(shifted)
        self._sizes = [len(index) for index in shifted]

    @cached_property
    def counts(self) -> Tensor:
        """Number of entries of every ring, at least 1, (parameters, rings)."""
        counts = [g.counts for g in self.geometries]
        return torch.tensor(counts, dtype=self.dtype, device=self.device)

    def squares(self, tensors: Sequence[Tensor]) -> Tensor:
        """Sums of squares of every ring, (parameters, rings)."""
        return torch.stack([g.squares(t) for g, t in zip(self.geometries, tensors, strict=True)])

    def spread(self, table: Tensor) -> list[Tensor]:
        """Numbers per parameter and ring, (parameters, rings), as factors for `parts`."""
        flat = table.to(self.dtype).flatten().index_select(0, self._index)
        factors: list[Tensor] = []
        for g, vectors in zip(self.geometries, flat.split(self._sizes), strict=True):
            factors += g.spread(vectors.view(g.index.shape))
        return factors

    def parts(self, tensors: Sequence[Tensor], is_target: bool = False) -> list[Tensor]:
        """The pieces of all tensors that `spread` has factors for."""
        pairs = zip(self.geometries, tensors, strict=True)
        return [part for g, t in pairs for part in g.parts(t, is_target)]

    def addcmul_(self, targets: Sequence[Tensor], updates: Sequence[Tensor], rates: Tensor) -> None:
        """Target −= rate · update, with the rates of each parameter's rings, (parameters, rings)."""
        goals, parts, factors = self.parts(targets, True), self.parts(updates), self.spread(rates)
        if self.real_dtype == self.dtype:
            torch._foreach_addcmul_(goals, parts, factors, value=-1)
        else:  # a small rate is nothing in half precision, so the product is made in single
            torch._foreach_sub_(goals, torch._foreach_mul(factors, parts))

    def divide_by_(
        self,
        targets: Sequence[Tensor],
        updates: Sequence[Tensor],
        roots: Sequence[Tensor],
        scales: Tensor,
        offsets: Tensor,
    ) -> None:
        """Per ring, target −= update / (scale · root + offset)."""
        goals, parts = self.parts(targets, True), self.parts(updates)
        lower = torch._foreach_addcmul(self.spread(offsets), self.parts(roots), self.spread(scales))
        if self.real_dtype == self.dtype:
            torch._foreach_addcdiv_(goals, parts, lower, value=-1)
        else:
            torch._foreach_sub_(goals, torch._foreach_div(parts, lower))

    def add_(self, targets: Sequence[Tensor], numbers: Tensor) -> None:
        """Target += number, a number for each ring."""
        torch._foreach_add_(self.parts(targets, True), self.spread(numbers))

    def mul_(self, targets: Sequence[Tensor], numbers: Tensor) -> None:
        """Target *= number, a number for each ring."""
        torch._foreach_mul_(self.parts(targets, True), self.spread(numbers))
