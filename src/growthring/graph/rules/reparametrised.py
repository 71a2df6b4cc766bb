"""Weights that are computed from parameters: weight normalisation."""

from __future__ import annotations

from growthring.graph.rules.records import Info
from growthring.graph.rules.registry import register_rule
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op


@register_rule("aten._weight_norm")
def weight_norm(walk: Walk, op: Op) -> None:
    """W = g · v / |v|: v stands for the weight, and g, its magnitude, follows (see `graph/magnitudes.py`)."""
    v, g, out = walk.info(op.args[0]), walk.info(op.args[1]), op.outputs[0]
    if v.use is None or g.use is None or not (_is_whole(v) and _is_whole(g)):
        walk.freeze((*v.axes, *g.axes), "normalises a weight that is not a parameter by itself")
        walk.set(out, v.axes, walk.demand(v, g))
        return
    g.use.kind, g.use.of = "magnitude", v.use.name
    for axis, other in zip(g.axes, v.axes, strict=False):
        if walk.size(axis) > 1:
            walk.same(axis, other)
    walk.set(out, v.axes, v.scale, v, v.source, label=v.label)


def _is_whole(info: Info) -> bool:
    """Whether this is a parameter as it is, not a rearranged one."""
    return info.use is not None and info.axes == info.use.axes
