"""Factors: products of which both factors grow, and how they share the growth of the product.

A plan's stage asks for a share of the full width. Of heads × head size the product gets it: at a quarter, 8
heads of 16 are 4 heads of 8. Among the widths that give the product its share, those are taken whose
shares are nearest to one another and where no factor gets narrower from one stage to the next; else the
fewer heads, since thin ones are slow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from growthring.core.axes import Axis, Product, Ref, products, refs
from growthring.graph.steps import Steps

_Pair = tuple[int, int]
Held = tuple[tuple[int, ...], dict[int, int]]
# How much more it counts that the product has its share than that those of the factors are alike.
_WORTH = 20.0
_MOST_CHOICES = 24  # for a stage


@dataclass(frozen=True)
class FactorPair:
    """A product of which both factors grow.

    Attributes:
        count: key of the outer factor, such as the number of heads.
        size: key of the inner one.
        is_heads: whether activations are multiplied side by side along the outer one.
    """

    count: int
    size: int
    is_heads: bool = True

    @property
    def words(self) -> tuple[str, str]:
        """What the factors are called."""
        return ("heads", "head size") if self.is_heads else ("groups", "group size")


def pair_of(axis: Axis, growing: Collection[int]) -> _Pair | None:
    """The two factors of a product that both grow; None where there is another number of them.

    >>> from growthring.core.axes import Fixed
    >>> pair_of(Product((Ref(0), Fixed(4), Ref(1))), [0, 1])
    (0, 1)
    """
    if not isinstance(axis, Product):
        return None
    parts = [p for p in axis.parts if any(r.group in growing for r in refs(p))]
    pair = [p.group for p in parts if isinstance(p, Ref)]
    if len(parts) != 2 or len(pair) != 2 or pair[0] == pair[1]:
        return None
    return pair[0], pair[1]


def pairs_of(axes: Iterable[Axis], growing: Collection[int]) -> list[_Pair]:
    """The pairs of factors that both grow, on any of these axes."""
    found = (pair_of(product, growing) for axis in axes for product in products(axis))
    return list(dict.fromkeys(pair for pair in found if pair is not None))


@dataclass(frozen=True)
class Split:
    """Products of which both factors grow and that share one fraction, and what is as large as they are.

    Attributes:
        counts: the outer factors, which share one fraction.
        sizes: the inner ones, likewise; both fractions together make that of the product.
        rest: groups that have the fraction of the product, if any.
    """

    counts: Steps
    sizes: Steps
    rest: Steps | None = None

    @property
    def parts(self) -> list[Steps]:
        """The sets of groups that have one fraction each."""
        return [self.counts, self.sizes, *([] if self.rest is None else [self.rest])]

    @property
    def groups(self) -> tuple[int, ...]:
        """All groups."""
        return tuple(g for part in self.parts for g in part.groups)

    def over(
        self,
        full: Mapping[int, int],
        fractions: Sequence[float],
        given: Mapping[int, Sequence[int]] | None = None,
    ) -> list[dict[int, int]]:
        """Widths where the product is nearest to each of several rising fractions; no factor shrinks.

        Args:
            full: widths of the full model.
            fractions: of the product, one for each stage.
            given: widths at every stage that are settled; the other factor makes up for them.

        >>> split = Split(Steps((0,), 8, 2), Steps((1,), 16, 2))
        >>> split.over({0: 8, 1: 16}, [0.25, 0.5, 1.0])
        [{0: 4, 1: 8}, {0: 4, 1: 16}, {0: 8, 1: 16}]
        >>> split.over({0: 8, 1: 16}, [0.25, 0.5, 1.0], {0: [4, 8, 8]})
        [{0: 4, 1: 8}, {0: 8, 1: 8}, {0: 8, 1: 16}]
        """
        given = given or {}
        counts, sizes = (_given(part, full, given) for part in (self.counts, self.sizes))
        if self.rest is not None:
            asked = _given(self.rest, full, given)
            fractions = fractions if asked is None else [k / self.rest.count for k in asked]
        is_open = counts is None and sizes is None
        paths: dict[_Pair, tuple[float, tuple[_Pair, ...]]] = {(0, 0): (0.0, ())}
        choices: dict[_Pair, None] = {}
        for t, fraction in enumerate(fractions):
            some = self._choices(
                full,
                fraction,
                None if counts is None else counts[t],
                None if sizes is None else sizes[t],
            )
            if is_open and fraction < 1:
                choices = dict.fromkeys([*some[:_MOST_CHOICES], *choices])
            else:
                choices = dict.fromkeys(some)
            following: dict[_Pair, tuple[float, tuple[_Pair, ...]]] = {}
            for pair in choices:
                before = [path for (c, s), path in paths.items() if c <= pair[0] and s <= pair[1]]
                if before:
                    cost, path = min(before)
                    following[pair] = (cost + self._cost(pair, fraction), (*path, pair))
            if not following:  # the widths that are given leave no such pair: what there is stays
                following = {path[-1]: (cost, (*path, path[-1])) for cost, path in paths.values()}
            paths = following
        _, path = min(paths.values())
        return [self._at(full, pair) for pair in path]

    def widths(self, full: Mapping[int, int], fraction: float) -> dict[int, int]:
        """Widths where the product is nearest to a fraction."""
        return self.over(full, [fraction])[0]

    def below(self, full: Mapping[int, int], fraction: float) -> dict[int, int]:
        """Widths near a fraction of which as many as possible are not the full ones."""
        last = (self.counts.count, self.sizes.count)
        some = self._choices(full, fraction) if fraction < 1 else self._pairs(full)

        def key(pair: _Pair) -> tuple[int, float]:
            return sum(a == b for a, b in zip(pair, last, strict=True)), self._cost(pair, fraction)

        return self._at(full, min(some, key=key))

    def holding(self, full: Mapping[int, int], small: Mapping[int, int]) -> list[Held]:
        """Widths that leave one factor as large as it is: for either one, its groups and the others' widths.

        Args:
            full: widths of the full model.
            small: those of which the product is to be as large as it can.
        """
        pair = [small[part.groups[0]] / full[part.groups[0]] for part in (self.counts, self.sizes)]
        kept = ((part.groups, {part.groups[0]: [full[part.groups[0]]]}) for part in self.parts[:2])
        return [(groups, self.over(full, [math.prod(pair)], given)[0]) for groups, given in kept]

    def _choices(
        self,
        full: Mapping[int, int],
        fraction: float,
        count: int | None = None,
        size: int | None = None,
    ) -> list[_Pair]:
        """The pairs of shares that the product may have at a fraction, the best first."""
        if count is None and size is None and fraction >= 1:
            return [(self.counts.count, self.sizes.count)]
        pairs = self._pairs(full, count, size)
        return sorted(pairs, key=lambda pair: self._cost(pair, fraction))

    def _pairs(
        self, full: Mapping[int, int], count: int | None = None, size: int | None = None
    ) -> list[_Pair]:
        every = [
            (c, s)
            for c in (self.counts.choices(full) if count is None else [count])
            for s in (self.sizes.choices(full) if size is None else [size])
        ]
        fitting = [pair for pair in every if self._fits(full, pair)]
        return fitting or every

    def _fits(self, full: Mapping[int, int], pair: _Pair) -> bool:
        """Whether what is as large as the product can have its size."""
        if self.rest is None:
            return True
        k, left = divmod(pair[0] * pair[1] * self.rest.count, self.counts.count * self.sizes.count)
        return not left and k in self.rest.choices(full)

    def _cost(self, pair: _Pair, fraction: float) -> float:
        count, size = pair[0] / self.counts.count, pair[1] / self.sizes.count
        return (
            _WORTH * abs(math.log(count * size / fraction))
            + abs(math.log(count / size))
            + 1e-6 * count
        )

    def _at(self, full: Mapping[int, int], pair: _Pair) -> dict[int, int]:
        widths = {**self.counts.at(full, pair[0]), **self.sizes.at(full, pair[1])}
        if self.rest is not None:
            whole = self.counts.count * self.sizes.count
            widths |= self.rest.at(full, pair[0] * pair[1] * self.rest.count // whole)
        return widths


def _given(
    part: Steps, full: Mapping[int, int], given: Mapping[int, Sequence[int]]
) -> list[int] | None:
    """The share k of every stage where the widths of one group of a part are given; None where none are."""
    for g in part.groups:
        shares = [divmod(width * part.count, full[g]) for width in given.get(g, ())]
        if shares and not any(left for _, left in shares):
            return [k for k, _ in shares]
    return None
