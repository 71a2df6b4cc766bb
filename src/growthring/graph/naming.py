"""The width groups of a model, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from growthring.core.axes import Axis, Ref, refs
from growthring.graph.groups import Member, TensorSpec, WidthGroup, describe
from growthring.graph.unify import Reason, Unifier

# Names that stand for a module's weight: of normalised weights (by parametrization, by hook), of recurrent layers.
_COMPUTED = re.compile(r"parametrizations\.(\w+)\.original\d*$|(weight\w*?)_v$")
_LEAF = re.compile(r"weight|bias|(weight|bias)_(ih|hh|hr)(_l\d+)?(_reverse)?")

# Widths that nothing can make grow are named last, so that the others get the plain names.
_LAST = ("input", "output", "operator", "fixed", "buffer")
_SHARING = ("bias", "gain", "mean", "variance", "buffer", "magnitude")


def named_groups(
    unifier: Unifier, specs: Mapping[str, TensorSpec], frozen: Callable[[int], Reason | None]
) -> list[WidthGroup]:
    """The groups that tensors refer to, growable ones first.

    Args:
        unifier: what is known of axes.
        specs: the tensors.
        frozen: why a group does not grow, or None.
    """
    members: dict[int, list[tuple[str, int, str, Axis]]] = {}
    for spec in specs.values():
        for i, axis in enumerate(spec.axes):
            for key in dict.fromkeys(r.group for r in refs(axis)):
                role = "reads" if i in spec.read else "writes"
                role = "shares" if spec.kind in _SHARING else role
                members.setdefault(key, []).append((spec.name, i, role, axis))
    reasons = {key: unifier.frozen(key) for key in members}
    order = sorted(members, key=lambda k: getattr(reasons[k], "kind", "") in _LAST)
    members = {key: members[key] for key in order}
    names = _group_names(members)
    groups = []
    for key, its in members.items():
        listed = tuple(Member(n, i, r, describe(a, key, unifier.size)) for n, i, r, a in its)
        groups.append(WidthGroup(key, names[key], unifier.size(Ref(key)), listed, frozen(key)))
    return sorted(groups, key=lambda g: not g.grows)


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
