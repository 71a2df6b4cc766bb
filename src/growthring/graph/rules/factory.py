"""Operators that make new tensors: constants may follow a width, values that depend on a position may not."""

from __future__ import annotations

from collections.abc import Sequence

from growthring.core.axes import Axis
from growthring.graph.rules.registry import register_rule
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op


@register_rule("aten.zeros", "aten.ones", "aten.empty", "aten.new_zeros", "aten.new_ones", "aten.new_empty",
               sizes=True)  # fmt: skip
@register_rule("aten.full", size_at=0)
@register_rule("aten.new_full", size_at=1)
def constant_fill(walk: Walk, op: Op) -> None:
    """A constant of a shape that the model's code computes: it may follow any width it is used with."""
    out = op.outputs[0]
    axes = [walk.new_axis(n) for n in out.shape]
    every = range(len(axes))
    walk.set(out, axes, _fill_scale(walk, op, axes), constant=True, repeated=every)


@register_rule("aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.empty_like")
def constant_like(walk: Walk, op: Op) -> None:
    """A constant of the shape of its input."""
    x, out = walk.info(next(op.inputs())), op.outputs[0]
    every = range(len(x.axes))
    walk.set(out, x.axes, _fill_scale(walk, op, x.axes), constant=True, repeated=every)


def _fill_scale(walk: Walk, op: Op, axes: Sequence[Axis]) -> int:
    """Zeros have any scale, and both halves of a pair may hold them; other numbers settle both."""
    base = op.base
    fill = {"aten.full": 1, "aten.full_like": 1, "aten.new_full": 2}.get(base)
    if "zeros" in base or (fill is not None and op.args[fill] == 0):
        return walk.new_scale()
    walk.even(axes)
    return walk.demand()


@register_rule("aten.empty_strided", sizes=True)
@register_rule("aten.arange", "aten.linspace", "aten.eye", "aten.scalar_tensor", "aten.rand", "aten.randn",
               "aten.randint", "aten.rand_like", "aten.randn_like", "aten.bernoulli",
               "aten.tril_indices", "aten.triu_indices")  # fmt: skip
def enumerated(walk: Walk, op: Op) -> None:
    """Values that depend on the position: their axes keep their size."""
    for value in op.inputs():
        walk.freeze(walk.info(value).axes, "makes a tensor of this shape with values of its own")
    for value in op.outputs:
        walk.set(value, walk.fixed(value), walk.demand(), constant=True)
