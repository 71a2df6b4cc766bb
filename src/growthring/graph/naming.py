"""The width groups of a model, by name."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from growthring.core.axes import Axis, Concat, Product, Ref, refs
from growthring.graph.groups import TensorSpec
from growthring.graph.unify import Reason, Unifier
from growthring.graph.widthgroup import Member, WidthGroup, describe

# Names that stand for a module's weight: of normalised weights (by parametrization, by hook), of recurrent layers.
_COMPUTED = re.compile(r"parametrizations\.(\w+)\.original\d*$|(weight\w*?)_v$")
_LEAF = re.compile(r"weight|bias|(weight|bias)_(ih|hh|hr)(_l\d+)?(_reverse)?")

# Widths that nothing can make grow are named last, so that the others get the plain names.
_LAST = ("input", "output", "operator", "fixed", "buffer")
_VERY_LAST = ("kernel", "rows")  # which nobody would call a width
_SHARING = ("bias", "gain", "mean", "variance", "buffer", "magnitude")


def named_groups(
    unifier: Unifier,
    specs: Mapping[str, TensorSpec],
    frozen: Callable[[int], Reason | None],
    units: Mapping[int, str] | None = None,
) -> list[WidthGroup]:
    """The groups that tensors refer to, growable ones first.

    Args:
        unifier: what is known of axes.
        specs: the tensors.
        frozen: why a group does not grow, or None.
        units: groups that are the size of another's unit, and the module that needs each.
    """
    members: dict[int, list[tuple[str, int, str, Axis]]] = {}
    for spec in specs.values():
        for i, axis in enumerate(spec.axes):
            for key in dict.fromkeys(r.group for r in refs(axis)):
                role = "reads" if i in spec.read else "writes"
                role = "shares" if spec.kind in _SHARING else role
                members.setdefault(key, []).append((spec.name, i, role, axis))
    kinds = {key: getattr(unifier.frozen(key), "kind", "") for key in members}
    order = sorted(members, key=lambda k: (kinds[k] in _VERY_LAST, kinds[k] in _LAST))
    members = {key: members[key] for key in order}
    names = _group_names(members)
    units = units or {}
    factors = {k: _unit(k, [axis for *_, axis in its], units, frozen) for k, its in members.items()}
    sizes = {g for unit in factors.values() for g in unit}
    groups = []
    for key, its in members.items():
        unit = factors[key]
        size = math.prod(unifier.size(Ref(g)) for g in unit)
        listed = tuple(Member(n, i, r, describe(a, key, unifier.size, unit)) for n, i, r, a in its)
        groups.append(
            WidthGroup(
                key,
                names[key],
                unifier.size(Ref(key)) * size,
                listed,
                frozen(key),
                size,
                next((units[g] for g in unit if g in units), ""),
                key in sizes,
                any(r.group == key and r.sign == 0 for *_, a in its for r in refs(a)),
            )
        )
    return sorted(groups, key=lambda g: not g.grows)


def _unit(
    group: int, axes: Sequence[Axis], units: Mapping[int, str], still: Callable[[int], Any]
) -> tuple[int, ...]:
    """The groups whose sizes make up one unit of a group: the inner factors that follow it on all of its axes."""
    found = {unit for axis in axes for unit in _units_on(group, axis, units, still)}
    return found.pop() if len(found) == 1 and group not in units else ()


def _units_on(
    group: int, axis: Axis, units: Mapping[int, str], still: Callable[[int], Any]
) -> Iterator[tuple[int, ...]]:
    """For each place of a group on an axis, the factors that follow it up to the last that is a unit."""
    if isinstance(axis, Ref) and axis.group == group:
        yield ()
    elif isinstance(axis, Concat):
        for part in axis.parts:
            yield from _units_on(group, part, units, still)
    elif isinstance(axis, Product):
        for i, part in enumerate(axis.parts):
            if isinstance(part, Ref) and part.group == group:
                rest = itertools.takewhile(
                    lambda p: isinstance(p, Ref) and still(p.group), axis.parts[i + 1 :]
                )
                keys = [ref.group for ref in rest if isinstance(ref, Ref)]
                last = max((n for n, key in enumerate(keys, 1) if key in units), default=0)
                yield tuple(keys[:last])
            else:
                yield from _units_on(group, part, units, still)


def _group_names(members: Mapping[int, Sequence[tuple[str, int, str, Any]]]) -> dict[int, str]:
    """Each group is named after the module of the first tensor that writes it (reads it: with `.in`)."""
    names: dict[int, str] = {}
    taken: dict[str, int] = {}
    for key, its in members.items():
        written = [m for m in its if m[2] == "writes"]
        tensor, _, role, _ = (written or its)[0]
        tensor = _COMPUTED.sub(lambda m: m[1] or m[2], tensor)
        module, _, leaf = tensor.rpartition(".")
        base = module if _LEAF.fullmatch(leaf) and module else tensor
        base = base if role != "reads" else f"{base}.in"
        taken[base] = taken.get(base, 0) + 1
        names[key] = base if taken[base] == 1 else f"{base}/{taken[base]}"
    return names
