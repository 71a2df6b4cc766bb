"""Which widths to freeze where a copy at other widths does not do what the axes predict."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace

from growthring.core.axes import Axis, Ref, refs
from growthring.errors import GrowthError
from growthring.graph.attempt import Fit, copy_at
from growthring.graph.candidates import alike, axes_inside, inside
from growthring.graph.compare import Failure
from growthring.graph.numbers import same_numbers
from growthring.graph.probe import Probe
from growthring.graph.trace import trace

_MOST_CULPRITS = 12


def culprits(probe: Probe, result: Fit, failure: Failure) -> list[Ref]:
    """The widths that change a number of the code, found by changing one at a time; none if that takes too long."""
    moving = [g for g in probe.full if probe.changes(Ref(g))]
    if failure.number is None or probe.build is not None or len(moving) > _MOST_CULPRITS:
        return []
    index = failure.number
    walk, training = next(
        (w, t)
        for w, t in zip(probe.walks, probe.modes, strict=True)
        if w.first_op <= index < w.first_op + len(w.trace.ops)
    )
    op = walk.trace.ops[index - walk.first_op]
    blamed = []
    for group in moving:
        widths = copy.copy(probe.full)
        assert isinstance(widths, dict)
        widths[group] = probe.small[group]
        copied = copy_at(replace(probe, small=widths), result.attributes)
        try:
            seen = trace(copied, probe.inputs, training, outputs=probe.outputs)
            there = seen.ops[index - walk.first_op]
        except (GrowthError, IndexError):  # it does not go by itself
            continue
        if there.name != op.name or not same_numbers(op, walk.trace, there, seen):
            blamed.append(Ref(group))
    return blamed


def blame(probe: Probe, failure: Failure) -> list[Ref]:
    """The widths to freeze: those of the failing operator, or those that only its module knows.

    Layers come in stacks: the same widths of every module at a like place are blamed together.
    """
    axes: Iterable[Axis] = failure.axes or axes_inside(probe, failure.module)
    candidates = {ref.group: ref for axis in axes for ref in refs(axis) if probe.changes(ref)}
    outside = {
        ref.group
        for walk in probe.walks
        for op in walk.trace.ops
        if not inside(op.module, failure.module)
        for value in op.outputs
        for axis in probe.axes(walk, value)
        for ref in refs(axis)
    }
    local = [ref for key, ref in candidates.items() if key not in outside]
    if not local:
        if candidates:
            return list(candidates.values())
        return [Ref(key) for key in probe.full if probe.full[key] != probe.small[key]]
    own = [r.group for axis in axes_inside(probe, failure.module) for r in refs(axis)]
    blamed = list(local)
    pattern = alike(failure.module)
    for path, _ in probe.model.named_modules():
        if path != failure.module and alike(path) == pattern:
            theirs = [r for axis in axes_inside(probe, path) for r in refs(axis)]
            if len(theirs) == len(own):
                blamed += [theirs[own.index(r.group)] for r in local if r.group in own]
    return blamed
