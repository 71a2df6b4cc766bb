"""Widths that fit together: groups step in units of their own, and equal sizes stay equal.

Model code often relies on two sizes being the same number (`view(b, t, self.n_head, c //
self.n_head)` needs the residual width to be heads × head size). So everything that is equally large
in the full model, a width by itself or a product with one growing factor, is kept equally large at
every stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from growthring.core.axes import Axis, Concat, Product, Ref, refs, size
from growthring.graph.groups import TensorSpec


def spans_of(specs: Iterable[TensorSpec], growing: Iterable[int]) -> list[Axis]:
    """The segments of all axes that hold one growing width, alone or times something fixed."""
    live = set(growing)
    found: dict[Axis, None] = {}

    def visit(axis: Axis) -> None:
        if isinstance(axis, Concat):
            for part in axis.parts:
                visit(part)
            return
        if len({r.group for r in refs(axis)} & live) == 1:
            found[_unsigned(axis)] = None
        if isinstance(axis, Product):
            for part in axis.parts:
                visit(part)

    for spec in specs:
        for axis in spec.axes:
            visit(axis)
    return list(found)


def _unsigned(axis: Axis) -> Axis:
    if isinstance(axis, Ref):
        return Ref(axis.group)
    if isinstance(axis, (Product, Concat)):
        return type(axis)(tuple(_unsigned(p) for p in axis.parts))
    return axis


def units(
    spans: Sequence[Axis], full: Mapping[int, int], growing: Iterable[int], round_to: int
) -> dict[int, tuple[int, int]]:
    """Group -> (size of what it is measured in, step of that size).

    A head size of 64 in 8 heads is measured as 512 in steps of 8 · round_to, together with a
    residual width of 512.
    """
    live = sorted(growing)
    parent = {g: g for g in live}

    def find(g: int) -> int:
        while parent[g] != g:
            g = parent[g]
        return g

    multiple = dict.fromkeys(live, 1)
    by_size: dict[int, list[tuple[int, int]]] = {}
    for axis in spans:
        group = next(r.group for r in refs(axis) if r.group in parent)
        total = size(axis, full)
        if isinstance(axis, Product) and sum(r.group == group for r in refs(axis)) == 1:
            by_size.setdefault(total, []).append((group, total // full[group]))
        elif isinstance(axis, Ref):
            by_size.setdefault(total, []).append((group, 1))
    for total, members in by_size.items():
        if len({g for g, _ in members}) < 2:
            continue
        step = math.lcm(*(factor for _, factor in members))
        for group, factor in members:
            multiple[group] = math.lcm(multiple[group], step // factor)
            parent[find(group)] = find(members[0][0])
        del total
    result = {}
    for g in live:
        result[g] = (full[g], multiple[g] * round_to)
    return result


def stage_widths(
    spans: Sequence[Axis],
    full: Mapping[int, int],
    growing: Iterable[int],
    fraction: float,
    round_to: int,
) -> dict[int, int]:
    """Widths at a fraction of the full ones, rounded to each group's unit, at least one unit (and two wide)."""
    result = {}
    for group, (width, unit) in units(spans, full, growing, round_to).items():
        steps = max(1, _half_up(width * fraction / unit))
        if steps * unit < 2:
            steps = math.ceil(2 / unit)
        result[group] = min(width, steps * unit)
    return result


def _half_up(x: float) -> int:
    return math.floor(x + 0.5)
