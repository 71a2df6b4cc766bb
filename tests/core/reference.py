"""An obvious reference for axes: entries carry a name, units of a group a number; everything by loops."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from growthring.core.axes import Axis, Concat, Fixed, Product, Ref

GROUPS = (0, 1, 2)


def entries(axis: Axis, widths: Mapping[int, int]) -> list[Any]:
    """Names of the entries of an axis, in order. A name stays with its entry when widths grow."""
    if isinstance(axis, Fixed):
        return [("fixed", k) for k in range(axis.size)]
    if isinstance(axis, Ref):
        return [("unit", axis.group, axis.sign, k) for k in range(widths[axis.group])]
    if isinstance(axis, Concat):
        return [("part", i, e) for i, part in enumerate(axis.parts) for e in entries(part, widths)]
    return [("all", *es) for es in itertools.product(*(entries(p, widths) for p in axis.parts))]


def units(entry: Any) -> list[tuple[int, int, int]]:
    """(group, sign, number) of the units that an entry is made of."""
    if not isinstance(entry, tuple) or entry[0] == "fixed":
        return []
    if entry[0] == "unit":
        return [entry[1:]]
    return [u for child in entry[1:] if isinstance(child, tuple) for u in units(child)]


def leader(entry: Any, before: Mapping[int, int], after: Mapping[int, int]) -> tuple[Any, int]:
    """The name of the entry whose value this one shares, and the factor on it."""
    if not isinstance(entry, tuple) or entry[0] == "fixed":
        return entry, 1
    if entry[0] == "unit":
        _, group, sign, k = entry
        old, new = before[group], after[group]
        half = (new - old) // 2
        if k < old + half:
            return entry, 1
        if k < old + 2 * half:
            return ("unit", group, sign, k - half), sign
        return entry, 1 if sign > 0 else 0
    found = [leader(child, before, after) for child in entry[1:]]
    factor = 1
    for _, f in found:
        factor *= f
    return (entry[0], *(e for e, _ in found)), factor


def age(entry: Any, history: Mapping[int, list[int]]) -> int:
    """Stage that added an entry."""
    ages = [next(t for t, w in enumerate(history[g]) if w > k) for g, _, k in units(entry)]
    return max(ages, default=0)


refs = st.builds(Ref, st.sampled_from(GROUPS), st.sampled_from((1, -1)))
leaves = refs | st.builds(Fixed, st.integers(1, 3))
axes = st.recursive(
    leaves,
    lambda inner: st.lists(inner, min_size=1, max_size=3).flatmap(
        lambda parts: st.sampled_from((Product(tuple(parts)), Concat(tuple(parts))))
    ),
    max_leaves=4,
)


@st.composite
def growths(draw: Any) -> tuple[dict[int, int], dict[int, int]]:
    before = {g: draw(st.integers(1, 3)) for g in GROUPS}
    return before, {g: before[g] + draw(st.integers(0, 5)) for g in GROUPS}


@st.composite
def histories(draw: Any, stages: int = 4) -> dict[int, list[int]]:
    found = {}
    for g in GROUPS:
        widths = [draw(st.integers(1, 3))]
        for _ in range(stages - 1):
            widths.append(widths[-1] + draw(st.integers(0, 3)))
        found[g] = widths
    return found
