"""RingBatch: ring-wise operations on many parameters at once, in portions that a cache can hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from growthring.distributed.shards import local_of
from growthring.optim.geometry import PORTION_ENTRIES, RingGeometry, as_real

Parts = list[Tensor]
# A step is several passes over memory: on a CPU, all of them over one portion at a time.
CACHE_ENTRIES = 1 << 19


class RingBatch:
    """Parameters of one device and type, whose ring-wise operations run together.

    >>> from growthring.optim.geometry import ParameterRings
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
        self._slices = self._cut()

    def _cut(self) -> list[slice]:
        """Pieces that are worked on together: on a CPU as many as a cache holds, elsewhere all."""
        sizes = [n * g.index.shape[1] for g in self.geometries for n, _ in g.pieces]
        if self.device.type != "cpu":
            return [slice(0, len(sizes))]
        ends, size = [], 0
        for i, entries in enumerate(sizes):
            if size and size + entries > PORTION_ENTRIES:
                ends.append(i)
                size = 0
            size += entries
        return [slice(a, b) for a, b in zip([0, *ends], [*ends, len(sizes)], strict=True)]

    @cached_property
    def counts(self) -> Tensor:
        """Number of entries of every ring, at least 1, (parameters, rings)."""
        counts = [g.counts for g in self.geometries]
        return torch.tensor(counts, dtype=self.dtype, device=self.device)

    def squares(self, tensors: Sequence[Tensor]) -> Tensor:
        """Sums of squares of every ring, (parameters, rings)."""
        return torch.stack([g.squares(t) for g, t in zip(self.geometries, tensors, strict=True)])

    def portions(
        self, lists: Sequence[Sequence[Tensor]], tables: Sequence[Tensor]
    ) -> Iterator[tuple[slice, list[Parts], list[Parts]]]:
        """Goes through all parameters, a portion at a time.

        Args:
            lists: tensors of the parameters' shapes, any number of them for each parameter.
            tables: numbers for each parameter and ring, (parameters, rings).

        Yields:
            Which pieces these are; for each list, the parts of its tensors that belong to the portion, as views;
            for each table, factors that broadcast over those parts.
        """
        parts = [
            [part for g, t in zip(self.geometries, tensors, strict=True) for part in g.parts(t)]
            for tensors in lists
        ]
        numbers = torch.stack([table.to(self.dtype) for table in tables]).flatten(1)
        flat = numbers.index_select(1, self._index).split(self._sizes, dim=1)
        pairs = zip(self.geometries, flat, strict=True)
        makers = [make for g, vectors in pairs for make in g.spread(vectors)]
        for chosen in self._slices:
            factors = zip(*[make() for make in makers[chosen]], strict=True)
            yield chosen, [p[chosen] for p in parts], [list(f) for f in factors]

    def addcmul_(self, targets: Sequence[Tensor], updates: Sequence[Tensor], rates: Tensor) -> None:
        """Target −= rate · update, with the rates of each parameter's rings, (parameters, rings)."""
        for _, (goals, parts), (factors,) in self.portions([targets, updates], [rates]):
            if self.real_dtype == self.dtype:
                torch._foreach_addcmul_(goals, parts, factors, value=-1)
            else:  # a small rate is nothing in half precision, so the product is made in single
                torch._foreach_sub_(goals, torch._foreach_mul(factors, parts))

    def lerp_(self, targets: Sequence[Tensor], ends: Sequence[Tensor], shares: Tensor) -> None:
        """Target += share · (end − target), with the shares of each parameter's rings, (parameters, rings)."""
        for _, (goals, parts), (factors,) in self.portions([targets, ends], [shares]):
            if self.real_dtype == self.dtype:
                torch._foreach_lerp_(goals, parts, factors)
            else:  # in single precision
                for goal, part, factor in zip(goals, parts, factors, strict=True):
                    goal.copy_(torch.lerp(goal.to(self.dtype), part.to(self.dtype), factor))

    def divide_by_(
        self,
        chosen: slice,
        goals: Parts,
        updates: Parts,
        squares: Parts,
        scales: Parts,
        offsets: Parts,
    ) -> None:
        """Target −= update / (scale · √square + offset), for the parts of one portion."""
        is_exact = self.real_dtype == self.dtype
        if self.device.type == "cpu":
            # What is made anew for each part comes from the system page by page: one room serves all.
            parts = zip(goals, updates, squares, scales, offsets, self._rooms[chosen], strict=True)
            for goal, update, square, scale, offset, room in parts:
                # scale / (1/√square), which is 0 at 0: on a CPU torch's root is slower than its inverse
                torch.addcdiv(offset, scale, torch.rsqrt(square, out=room), out=room)
                if is_exact:
                    goal.addcdiv_(update, room, value=-1)
                else:  # a small rate is nothing in half precision, so the quotient is made in single
                    goal.sub_(torch.div(update, room, out=room))
            return
        roots = [root.to(self.dtype) for root in torch._foreach_sqrt(squares)]
        lower = torch._foreach_addcmul(offsets, roots, scales)
        if is_exact:
            torch._foreach_addcdiv_(goals, updates, lower, value=-1)
        else:
            torch._foreach_sub_(goals, torch._foreach_div(updates, lower))

    @cached_property
    def _rooms(self) -> Parts:
        """For each piece memory for a result of its shape, the same for all of them."""
        shapes = [
            (n, *g.shape[1:]) if g.shape else () for g in self.geometries for n, _ in g.pieces
        ]
        sizes = [math.prod(shape) for shape in shapes]
        room = torch.empty(max(sizes, default=0), dtype=self.dtype, device=self.device)
        pairs = zip(shapes, sizes, strict=True)
        return [room[:size].view(shape) for shape, size in pairs]

    def add_(self, targets: Sequence[Tensor], numbers: Tensor) -> None:
        """Target += number, a number for each ring."""
        for _, (goals,), (factors,) in self.portions([targets], [numbers]):
            torch._foreach_add_(goals, factors)

    def mul_(self, targets: Sequence[Tensor], numbers: Tensor) -> None:
        """Target *= number, a number for each ring."""
        for _, (goals,), (factors,) in self.portions([targets], [numbers]):
            torch._foreach_mul_(goals, factors)


def buckets(
    parameters: Sequence[Tensor], most_entries: float = CACHE_ENTRIES
) -> list[list[Tensor]]:
    """Parameters by device and type, on the CPU at most so many entries together, or one parameter."""
    result: dict[tuple[Any, ...], list[Tensor]] = {}
    portion, size = 0, 0
    for p in parameters:
        if p.device.type == "cpu":
            entries = local_of(p.detach()).numel()
            size += entries
            if size > most_entries:
                portion, size = portion + 1, entries
        result.setdefault((p.device, p.dtype, portion), []).append(p)
    return list(result.values())
