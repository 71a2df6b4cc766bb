"""Widths that fit together: groups step in units of their own, and equal sizes stay equal.

Model code often relies on two sizes being the same number (`view(b, t, self.n_head, c //
self.n_head)` needs the residual width to be heads × head size). So everything that is equally large
in the full model, a width by itself or a product with one growing factor, is kept equally large at
every stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from growthring.core.axes import Axis, Concat, Fixed, Product, Ref, refs, size, unsigned
from growthring.graph.factors import Split, pair_of
from growthring.graph.groups import TensorSpec, WidthGroups
from growthring.graph.steps import Steps


def spans_of(specs: Iterable[TensorSpec], growing: Iterable[int]) -> list[Axis]:
    """The segments of all axes that hold one growing width, alone or times something fixed, or a product of two."""
    live = set(growing)
    spans: dict[Axis, None] = {}

    def visit(axis: Axis) -> None:
        if isinstance(axis, Concat):
            for part in axis.parts:
                visit(part)
            return
        if len({r.group for r in refs(axis)} & live) == 1 or pair_of(axis, live):
            spans[unsigned(axis)] = None
        if isinstance(axis, Product):
            for part in axis.parts:
                visit(part)

    for spec in specs:
        for axis in spec.axes:
            visit(axis)
    return list(spans)


@dataclass(frozen=True)
class Stages:
    """What a plan asks of widths.

    Attributes:
        fractions: of the full widths, one for each stage.
        round_to: of which number widths are multiples.
        classes: that outputs have at each stage, if their number grows.
    """

    fractions: tuple[float, ...] = (0.25, 0.5, 1.0)
    round_to: int = 2
    classes: tuple[int, ...] = ()


def units_of(
    multiples: Iterable[tuple[Axis, int]], full: Mapping[int, int], growing: Iterable[int]
) -> dict[int, int]:
    """Of which number each width must be a multiple, so that the axes that need it are; 1 is left out.

    >>> from growthring.core.axes import Fixed
    >>> units_of([(Product((Fixed(2), Ref(0))), 8)], {0: 12}, [0])
    {0: 4}
    """
    units: dict[int, int] = {}
    live = set(growing)
    for axis, number in multiples:
        if size(axis, full) % number:
            continue  # the full model does not keep to it
        for g in {r.group for r in refs(axis)} & live:
            slope = size(axis, {**full, g: full[g] + 1}) - size(axis, full)
            unit = number // math.gcd(number, slope)
            if unit > 1:
                units[g] = math.lcm(units.get(g, 1), unit)
    return units


def steps_of(
    spans: Sequence[Axis],
    full: Mapping[int, int],
    growing: Iterable[int],
    round_to: int,
    units: Mapping[int, int] | None = None,
    pairs: Sequence[tuple[int, int]] = (),
) -> list[Steps | Split]:
    """Which groups move together (equal sizes among `spans`), and in which steps (of `units` of their own).

    Widths are multiples of `round_to`, and of those in `units`. The factors of `pairs` share the fraction of
    their product; each goes by itself with other factors of its size.

    >>> from growthring.core.axes import Fixed
    >>> steps_of([Ref(0), Product((Fixed(8), Ref(1)))], {0: 512, 1: 64}, [0, 1], 2)
    [Steps(groups=(0, 1), count=64, step=2)]
    >>> split = steps_of(
    ...     [Ref(0), Product((Ref(1), Ref(2)))], {0: 512, 1: 8, 2: 64}, [0, 1, 2], 2, pairs=[(1, 2)]
    ... )
    >>> split[0].counts.groups, split[0].sizes.groups, split[0].rest.groups
    ((1,), (2,), (0,))
    """
    parent = {g: g for g in sorted(growing)}
    role = {g: i + 1 for pair in pairs for i, g in enumerate(pair)}

    def find(g: int) -> int:
        while parent[g] != g:
            g = parent[g]
        return g

    def unite(a: int, b: int) -> None:
        low, high = sorted((find(a), find(b)))
        parent[high] = low

    by_size: dict[tuple[int, int], int] = {}
    for axis in spans:
        moving = [r.group for r in refs(axis) if r.group in parent]
        if len(moving) == 1 or (pairs and pair_of(axis, parent)):
            kind = role.get(moving[0], 0) if len(moving) == 1 else 0
            unite(by_size.setdefault((size(axis, full), kind), moving[0]), moving[0])
    for pair in pairs:
        unite(*pair)
    together: dict[int, list[int]] = {}
    for g in parent:
        together.setdefault(find(g), []).append(g)
    result: list[Steps | Split] = []
    for members in together.values():
        parts = [[g for g in members if role.get(g, 0) == kind] for kind in range(3)]
        rest, counts, sizes = (_steps(part, full, round_to, units or {}) for part in parts)
        if counts is not None and sizes is not None:
            result.append(Split(counts, sizes, rest))
        elif rest is not None:
            result.append(rest)
    return result


def _steps(
    members: Sequence[int], full: Mapping[int, int], round_to: int, units: Mapping[int, int]
) -> Steps | None:
    """Groups that share one fraction."""
    if not members:
        return None
    count = math.gcd(*(full[g] for g in members))
    step = 1
    for g in members:
        unit, each = math.lcm(round_to, units.get(g, 1)), full[g] // count
        step = math.lcm(step, unit // math.gcd(each, unit))
    return Steps(tuple(members), count, step)


def group_steps(groups: WidthGroups, round_to: int) -> list[Steps | Split]:
    """Which groups of a model move together, and in which steps.

    Widths are multiples of `round_to` (of entries: channels, not groups of channels), of their units, and of
    what operators need. Classes are not among them: their numbers are given.
    """
    multiples = {
        g.key: math.lcm(round_to // math.gcd(round_to, g.unit), groups.units.get(g.key, 1))
        for g in groups.growable
        if not g.is_classes
    }
    pairs = [(f.count, f.size) for f in groups.factors]
    return steps_of(groups.spans, groups.full_widths, multiples, 1, multiples, pairs)


def widths_over(
    groups: WidthGroups,
    fractions: Sequence[float],
    round_to: int,
    given: Mapping[int, Sequence[int]] | None = None,
) -> list[dict[int, int]]:
    """The width of every group at each of several rising fractions of the full ones.

    Args:
        groups: of the full model.
        fractions: one for each stage.
        round_to: what widths are multiples of.
        given: widths at every stage that are settled, which the other factor of a product makes up for.
    """
    full = groups.full_widths
    rows = [dict(full) for _ in fractions]
    for steps in group_steps(groups, round_to):
        for row, widths in zip(rows, steps.over(full, fractions, given), strict=True):
            row |= widths
    return rows


def widths_at(groups: WidthGroups, fraction: float, round_to: int) -> dict[int, int]:
    """The width of every group at a fraction of the full ones."""
    return widths_over(groups, [fraction], round_to)[0]


# Widths to try: a factor of a product shrinks more than the rest, so that neither takes the other's steps.
_FACTOR_FRACTIONS = (0.5, 0.375, 0.25, 0.4375)
_FRACTIONS = (0.75, 0.875, 0.625, 0.8125)


def probe_widths(
    spans: Sequence[Axis],
    full: Mapping[int, int],
    growing: Iterable[int],
    factors: Iterable[int] = (),
    variation: int = 0,
    units: Mapping[int, int] | None = None,
    pairs: Sequence[tuple[int, int]] = (),
) -> dict[int, int]:
    """Widths to try a model's code at: those that need not move together have different fractions.

    With more than four such sets of groups some share a fraction; another `variation` parts those. Variation -1 is
    the next smaller widths of all.

    >>> probe_widths([], {0: 16, 1: 16, 2: 8}, [0, 1, 2], factors=[2])
    {2: 4, 0: 12, 1: 14}
    """
    factors = set(factors)
    result: dict[int, int] = {}
    seen = {True: 0, False: 0}
    sets = steps_of(spans, full, growing, 1, units, pairs)
    for steps in sorted(sets, key=lambda s: full[s.groups[0]]):  # equal widths one after the other
        is_factor = bool(factors & set(steps.groups))
        options = _FACTOR_FRACTIONS if is_factor else _FRACTIONS
        number, n = seen[is_factor], len(options)
        seen[is_factor] += 1
        digits = sum(
            number // n**k for k in range(variation + 1)
        )  # two sets differ in some variation
        fraction = options[(digits + variation) % n] if variation >= 0 else 1.0
        result |= steps.below(full, fraction)
    return result


def in_sets(full: Mapping[int, int], sets: Iterable[Sequence[int]]) -> list[Axis]:
    """Spans that tie the widths of each set to one another and to nothing else."""
    spans: list[Axis] = []
    taken = set(full.values())
    for members in sets:
        times = 1
        while times * full[members[0]] in taken:
            times += 1
        taken.add(times * full[members[0]])
        spans += [Product((Fixed(times), Ref(g))) for g in members]
    return spans


def in_proportion(
    full: Mapping[int, int], growing: Iterable[int], pairs: Sequence[tuple[int, int]] = ()
) -> list[Axis]:
    """Spans that tie all growing widths to one another, each (or its product) in its proportion to the others."""
    factors = {g for pair in pairs for g in pair}
    parts: list[tuple[int, ...]] = [(g,) for g in sorted(growing) if g not in factors]
    parts += pairs
    sizes = [math.prod(full[g] for g in part) for part in parts]
    common = math.lcm(*sizes) if sizes else 1
    return [
        Product((Fixed(common // own), *map(Ref, part)))
        for own, part in zip(sizes, parts, strict=True)
    ]
