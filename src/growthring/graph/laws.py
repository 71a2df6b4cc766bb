"""Factors in a model's code that follow a width, such as 1/√d_head.

A factor that changes with the widths must obey a law, ∝ size ** power, of some axis nearby; all laws that fit are
kept, and further widths tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch

from growthring.core.axes import Axis, Ref, refs, size, unsigned
from growthring.graph.groups import Law
from growthring.graph.numbers import Numbers
from growthring.graph.probe import Probe
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op, Value

POWERS = (-0.5, 0.5, -1.0, 1.0, -0.25, 0.25, -2.0, 2.0)
_NEAR = 8
# A number of the code may have come through float32 on its way (`torch.tensor(d).sqrt().item()`).
_LEAST_TOLERANCE = 4 * torch.finfo(torch.float32).eps


def fitting_laws(probe: Probe, walk: Walk, op: Op, old: Numbers, new: Numbers) -> tuple[Law, ...]:
    """All laws that explain how the factor changed, the nearest axis first."""
    if old.factor is None or new.factor is None or old.factor * new.factor <= 0:
        return ()
    if math.isinf(old.factor * new.factor) or _scales_a_weight(walk, op):
        return ()
    change = math.log(old.factor / new.factor)
    tolerance = max(_LEAST_TOLERANCE, 4 * old.eps, 4 * new.eps)
    laws: dict[Law, None] = {}
    for axis in _nearby(probe, walk, op):
        ratio = math.log(size(axis, probe.full) / size(axis, probe.small))
        for power in POWERS:
            if abs(change - power * ratio) <= tolerance:
                law = Law(unsigned(axis), power, _mean_at(walk, op, axis, power))
                laws[law] = None
    return tuple(laws)


def _mean_at(walk: Walk, op: Op, axis: Axis, power: float) -> tuple[str, str] | None:
    """The module and site of a sum that a product with a number ∝ axis^power makes a mean of, if it does."""
    if id(op) not in walk.means:
        return None
    total, entered = walk.means[id(op)]
    if total.site is None or not math.isclose(entered + power, 0, abs_tol=1e-9):
        return None
    site, unifier = total.site, walk.unifier
    summed = [unifier.resolve(s.axis) for s in walk.statistics if (s.module, s.site) == site]
    moving = [a for a in summed if any(unifier.frozen(r.group) is None for r in refs(a))]
    if {unsigned(a) for a in moving} != {unsigned(axis)}:
        return None
    sums = [o for o in walk.trace.ops if o.site == site and o.name == total.name]
    means = {id(o) for o, _ in walk.means.values()}
    return site if all(id(o) in means for o in sums) else None


def _scales_a_weight(walk: Walk, op: Op) -> bool:
    """Whether the factor is on a weight or bias itself, whose own rescaling is not the place to make up for it."""
    for value in op.inputs():
        name = walk.trace.parameters.get(value)
        use = walk.infos[value].use if value in walk.infos else None
        uses = [use] if use is not None else walk.uses.get(name or "", [])
        if any(u.kind in ("weight", "bias", "gain") for u in uses):
            return True
    return False


def _nearby(probe: Probe, walk: Walk, op: Op) -> Iterator[Axis]:
    """Axes that change: of the operator's inputs and of what produced them, then all others."""
    producers = {v: o for o in walk.trace.ops for v in o.outputs}
    frontier = list(op.inputs())
    seen: set[Value] = set()
    for _ in range(_NEAR):
        following: list[Value] = []
        for value in frontier:
            if value in seen:
                continue
            seen.add(value)
            name = walk.trace.parameters.get(value)
            axes: tuple[Axis, ...] = ()
            if value in walk.infos:
                axes = probe.axes(walk, value)
            elif name is not None and name in probe.specs:
                axes = probe.specs[name].axes
            for axis in reversed(axes):
                for part in (axis, *refs(axis)):
                    if probe.changes(part):
                        yield part
            if value in producers:
                following += producers[value].inputs()
        frontier = following
    for group in probe.full:
        if probe.changes(Ref(group)):
            yield Ref(group)


def settle(
    laws: Mapping[int, tuple[Law, ...]], together: Callable[[Axis], frozenset[int]]
) -> dict[int, Law] | list[Ref]:
    """One law for each factor, or the widths to freeze because nothing tells which of them a factor follows.

    Args:
        laws: operator -> the laws that held at all widths tried.
        together: axis -> the numbers of its sets of widths; those of a set always move in one proportion.
    """
    chosen: dict[int, Law] = {}
    for op, fitting in laws.items():
        sets = {(together(law.axis), law.power) for law in fitting}
        if len(sets) > 1:
            return [r for law in fitting for r in refs(law.axis)]
        chosen[op] = fitting[0]
    return chosen


def log_ratios(
    laws: Mapping[int, Law], before: Mapping[int, int], after: Mapping[int, int]
) -> dict[int, float]:
    """Operator -> log(factor at widths `after` / factor at widths `before`)."""
    ratios = {}
    for op, law in laws.items():
        if law.mean is not None:  # the fade of the sum that it divides makes up for it
            continue
        ratios[op] = law.power * math.log(size(law.axis, after) / size(law.axis, before))
    return ratios
