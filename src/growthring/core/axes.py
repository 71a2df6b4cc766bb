"""The structure of one tensor axis: which widths it is made of, and where new units land.

An axis of a tensor is rarely just "the width". After a flatten a channel owns a block of H·W
columns, a fused projection concatenates queries, keys and values, and each of those is heads × head
size. An `Axis` writes this down:

    Ref(g)              the width of group g itself
    Fixed(n)            n entries that never grow
    Product((a, b))     row-major product, a outer and b inner (heads × head size, channel × H·W)
    Concat((a, b))      segments one after the other

A `Ref` carries a sign, its parity: along a growth, the two halves of a pair hold *equal* values
where the sign is +1 (written units, V and V) and *opposite* ones where it is -1 (read units, +Z and
-Z). With sign 0 units come alone: nothing reads them, so nothing has to cancel.

`layout(axis, before, after)` says for each entry of the grown axis where it comes from (paper, eqs.
2-4).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch


@dataclass(frozen=True)
class Fixed:
    """`size` entries that never grow."""

    size: int


@dataclass(frozen=True)
class Ref:
    """The width of one group; `sign` is the parity of a pair of new units along this axis, 0 without pairs."""

    group: int
    sign: int = 1


@dataclass(frozen=True)
class Product:
    """Row-major product of axes, the outermost first."""

    parts: tuple[Axis, ...]


@dataclass(frozen=True)
class Concat:
    """Axes one after the other."""

    parts: tuple[Axis, ...]


Axis = Fixed | Ref | Product | Concat


def refs(axis: Axis) -> Iterator[Ref]:
    """Yields the width references of an axis, left to right.

    >>> [ref.group for ref in refs(Product((Ref(3), Fixed(4))))]
    [3]
    """
    if isinstance(axis, Ref):
        yield axis
    elif isinstance(axis, (Product, Concat)):
        for part in axis.parts:
            yield from refs(part)


def products(axis: Axis) -> Iterator[Product]:
    """Yields every product that an axis has as a part, or is.

    >>> len(list(products(Concat((Fixed(2), Product((Ref(0), Fixed(4))))))))
    1
    """
    if isinstance(axis, Product):
        yield axis
    if isinstance(axis, (Product, Concat)):
        for part in axis.parts:
            yield from products(part)


def negate(axis: Axis) -> Axis:
    """Flips the parity of every reference.

    A product of pairs is negated by negating each factor: an entry that is new in one factor only
    is paired along that factor, and one that is new in both carries the product of both signs.
    """
    if isinstance(axis, Ref):
        return replace(axis, sign=-axis.sign)
    if isinstance(axis, (Product, Concat)):
        return type(axis)(tuple(negate(part) for part in axis.parts))
    return axis


def unsigned(axis: Axis) -> Axis:
    """The axis without parities: what its size depends on.

    >>> unsigned(Product((Fixed(2), Ref(0, -1))))
    Product(parts=(Fixed(size=2), Ref(group=0, sign=1)))
    """
    if isinstance(axis, Ref):
        return Ref(axis.group)
    if isinstance(axis, (Product, Concat)):
        return type(axis)(tuple(unsigned(part) for part in axis.parts))
    return axis


def size(axis: Axis, widths: Mapping[int, int]) -> int:
    """Number of entries of an axis at the given widths.

    >>> size(Concat((Product((Ref(0), Fixed(4))), Fixed(2))), {0: 3})
    14
    """
    if isinstance(axis, Fixed):
        return axis.size
    if isinstance(axis, Ref):
        return widths[axis.group]
    sizes = [size(part, widths) for part in axis.parts]
    return math.prod(sizes) if isinstance(axis, Product) else sum(sizes)


@dataclass(frozen=True)
class Places:
    """Positions along an axis; `run` is (first, number) where they follow one another."""

    index: torch.Tensor
    run: tuple[int, int] | None

    def __len__(self) -> int:
        return self.index.shape[0]


def places(index: torch.Tensor) -> Places:
    """Says once whether positions are a run, so that tensors can be narrowed instead of indexed."""
    n = index.shape[0]
    is_run = n > 0 and bool((index[1:] - index[:-1] == 1).all())
    return Places(index, (int(index[0]), n) if is_run else None)


@dataclass(frozen=True)
class Pairs:
    """The new positions of an axis: those that draw a value, and those that take their leader's."""

    leaders: Places
    followers: Places
    order: Places  # for each follower, the index of its leader among the leaders
    signs: int | torch.Tensor  # of the followers: one number if all agree
    alone: torch.Tensor | None  # factor on the leaders, where one of them has no partner


@dataclass(frozen=True)
class Layout:
    """Where each entry of a grown axis comes from.

    All three are 1-d tensors over the entries of the *grown* axis:

    Attributes:
        source: index on the old axis, or -1 for a new entry.
        partner: index (on the grown axis) of the entry whose random value this entry shares; itself
            for an old entry, an unpaired one and the first half of a pair.
        sign: factor on that shared value: 1 for old and written entries, ±1 for the halves of a
            read pair, 0 for a read entry that has no partner.
    """

    source: torch.Tensor
    partner: torch.Tensor
    sign: torch.Tensor

    @cached_property
    def is_new(self) -> torch.Tensor:
        """Boolean over the grown axis."""
        return self.source < 0

    @cached_property
    def grows(self) -> bool:
        """Whether any entry is new."""
        return bool(self.is_new.any())

    @cached_property
    def old_places(self) -> Places:
        """Positions of the old entries."""
        return places(self.old)

    @cached_property
    def new_places(self) -> Places:
        """Positions of the new entries."""
        return places(self.new)

    @cached_property
    def is_plain(self) -> bool:
        """Whether every sign is +1."""
        return bool((self.sign == 1).all())

    @cached_property
    def pairs(self) -> Pairs:
        """How the new entries pair up."""
        partner = self.partner[self.new]
        leads = partner == self.new
        leaders, followers = self.new[leads], self.new[~leads]
        signs = self.sign[followers]
        same = len(followers) and bool((signs == signs[0]).all())
        first = self.sign[leaders]
        return Pairs(
            places(leaders),
            places(followers),
            places(torch.searchsorted(leaders, partner[~leads])),
            int(signs[0]) if same else signs,
            first if bool((first == 0).any()) else None,
        )

    @cached_property
    def old(self) -> torch.Tensor:
        """Positions of the old entries on the grown axis, in the order of the old axis."""
        return torch.nonzero(~self.is_new).flatten()

    @cached_property
    def new(self) -> torch.Tensor:
        """Positions of the new entries on the grown axis."""
        return torch.nonzero(self.is_new).flatten()


def layout(axis: Axis, before: Mapping[int, int], after: Mapping[int, int]) -> Layout:
    """Layout of an axis that grows from widths `before` to widths `after`.

    Each group grows at its own end; its Δ new units are Δ//2 pairs `(j, j + Δ//2)`, and where Δ is
    odd the last unit has no partner; neither has any unit of a reference with sign 0.

    >>> layout(Ref(0, -1), {0: 2}, {0: 6}).sign.tolist()
    [1, 1, 1, 1, -1, -1]
    >>> layout(Product((Fixed(2), Ref(0))), {0: 1}, {0: 3}).source.tolist()
    [0, -1, -1, 1, -1, -1]
    """
    if isinstance(axis, Fixed):
        index = torch.arange(axis.size, device="cpu")
        return Layout(index, index, torch.ones(axis.size, dtype=torch.int64, device="cpu"))
    if isinstance(axis, Ref):
        return _unit_layout(before[axis.group], after[axis.group], axis.sign)
    parts = [layout(part, before, after) for part in axis.parts]
    sizes = [size(part, before) for part in axis.parts]
    result, length = parts[0], sizes[0]
    for part, part_size in zip(parts[1:], sizes[1:], strict=True):
        if isinstance(axis, Concat):
            result = _concat(result, part, length)
            length += part_size
        else:
            result = _product(result, part, part_size)
            length *= part_size
    return result


@lru_cache(maxsize=4096)
def _unit_layout(before: int, after: int, sign: int) -> Layout:
    half, odd = divmod(after - before if sign else 0, 2)
    old = torch.arange(before, device="cpu")
    first = torch.arange(before, before + half, device="cpu")
    new = torch.full((after - before,), -1, device="cpu")
    alone = torch.arange(before + 2 * half, after, device="cpu")
    signs = torch.ones(after, dtype=torch.int64, device="cpu")
    if sign < 0:
        signs[before + half : before + 2 * half] = -1
        signs[after - odd :] = 0
    return Layout(torch.cat([old, new]), torch.cat([old, first, first, alone]), signs)


def _concat(left: Layout, right: Layout, old_length: int) -> Layout:
    offset = len(left.source)
    source = torch.where(right.source < 0, right.source, right.source + old_length)
    return Layout(
        torch.cat([left.source, source]),
        torch.cat([left.partner, right.partner + offset]),
        torch.cat([left.sign, right.sign]),
    )


def _product(outer: Layout, inner: Layout, old_inner: int) -> Layout:
    source = outer.source[:, None] * old_inner + inner.source[None, :]
    source = source.masked_fill(outer.is_new[:, None] | inner.is_new[None, :], -1)
    partner = outer.partner[:, None] * len(inner.source) + inner.partner[None, :]
    sign = outer.sign[:, None] * inner.sign[None, :]
    return Layout(source.flatten(), partner.flatten(), sign.flatten())


def rings(axis: Axis, history: Mapping[int, list[int]]) -> torch.Tensor:
    """Stage in which each entry of the axis was added, as a 1-d integer tensor.

    `history[g]` lists the widths of group g at stages 0, 1, …. An entry made of several widths
    (head h, unit d) is as young as its youngest part.

    >>> rings(Ref(0), {0: [2, 4, 4, 5]}).tolist()
    [0, 0, 1, 1, 3]
    """
    if isinstance(axis, Fixed):
        return torch.zeros(axis.size, dtype=torch.int64, device="cpu")
    if isinstance(axis, Ref):
        widths = history[axis.group]
        steps = [widths[0], *(b - a for a, b in itertools.pairwise(widths))]
        return torch.repeat_interleave(
            torch.arange(len(steps), device="cpu"), torch.tensor(steps, device="cpu")
        )
    parts = [rings(part, history) for part in axis.parts]
    if isinstance(axis, Concat):
        return torch.cat(parts)
    result = parts[0]
    for part in parts[1:]:
        result = torch.maximum(result[:, None], part[None, :]).flatten()
    return result
