"""Operators that make new tensors: constants may follow a width, values that depend on a position may not."""

from __future__ import annotations

from growthring.graph.rules.walk import Walk, register_rule
from growthring.graph.trace import Op


@register_rule("aten.zeros", "aten.ones", "aten.full", "aten.empty", "aten.new_zeros", "aten.new_ones",
               "aten.new_full", "aten.new_empty")  # fmt: skip
def constant_fill(walk: Walk, op: Op) -> None:
    """A constant of a shape that the model's code computes: it may follow any width it is used with."""
    out = op.outputs[0]
    axes = [walk.unifier.fresh(n) for n in out.shape]
    walk.even(axes)  # every entry is the same
    scale = walk.demand()
    walk.set(out, axes, scale, constant=True)


@register_rule("aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.empty_like")
def constant_like(walk: Walk, op: Op) -> None:
    """A constant of the shape of its input."""
    x = walk.info(next(op.inputs()))
    walk.even(x.axes)
    walk.set(op.outputs[0], x.axes, walk.demand(), constant=True)


@register_rule("aten.arange", "aten.linspace", "aten.eye", "aten.scalar_tensor", "aten.rand", "aten.randn",
               "aten.randint", "aten.rand_like", "aten.randn_like", "aten.bernoulli", "aten.empty_strided",
               "aten.tril_indices", "aten.triu_indices")  # fmt: skip
def enumerated(walk: Walk, op: Op) -> None:
    """Values that depend on the position: their axes keep their size."""
    for value in op.inputs():
        walk.freeze(walk.info(value).axes, "makes a tensor of this shape with values of its own")
    for value in op.outputs:
        walk.set(value, walk.fixed(value), walk.demand(), constant=True)
