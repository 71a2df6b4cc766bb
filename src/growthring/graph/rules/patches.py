"""Operators that cut images and sequences into windows and put them together again."""

from __future__ import annotations

from growthring.core.axes import Fixed, Product
from growthring.graph.rules.registry import register_rule
from growthring.graph.rules.structure import axis_numbers
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op


@register_rule("aten.im2col")
def im2col(walk: Walk, op: Op) -> None:
    """(…, channels, H, W) -> (…, channels · kernel, windows), the channel outermost."""
    x, out = walk.info(op.args[0]), op.outputs[0]
    at = len(x.axes) - 3
    walk.freeze(x.axes[at + 1 :], "cuts windows out of it")
    block = out.shape[at] // walk.size(x.axes[at])
    axes = [*x.axes[:at], Product((x.axes[at], Fixed(block))), Fixed(out.shape[-1])]
    walk.set(out, axes, x.scale, constant=x.constant)


@register_rule("aten.col2im")
def col2im(walk: Walk, op: Op) -> None:
    """(…, channels · kernel, windows) -> (…, channels, H, W): windows that overlap are added."""
    x, out = walk.info(op.args[0]), op.outputs[0]
    at = len(x.axes) - 2
    channels, block = walk.factor(x.axes[at], out.shape[at])
    walk.freeze([block, x.axes[-1]], "lays windows of it side by side")
    axes = [*x.axes[:at], channels, *(Fixed(n) for n in out.shape[at + 1 :])]
    walk.set(out, axes, x.scale, constant=x.constant)


@register_rule("aten.unfold")
def unfold(walk: Walk, op: Op) -> None:
    """Windows of one axis, whose entries become a last axis; the others pass."""
    x, out = walk.info(op.args[0]), op.outputs[0]
    (dim,) = axis_numbers(op.args[1], len(x.axes))
    walk.freeze([x.axes[dim]], "cuts windows out of it")
    axes = [*x.axes[:dim], Fixed(out.shape[dim]), *x.axes[dim + 1 :], Fixed(out.shape[-1])]
    walk.set(out, axes, x.scale, constant=x.constant)


@register_rule("aten.max_unpool2d", "aten.max_unpool3d")
def max_unpool(walk: Walk, op: Op) -> None:
    """Puts entries back to where pooling found them, channel by channel."""
    x, indices, out = walk.info(op.args[0]), walk.info(op.args[1]), op.outputs[0]
    n = 2 if "2d" in op.name else 3
    walk.freeze([*x.axes[-n:], *indices.axes[-n:]], "spreads it over space")
    for a, b in zip(x.axes[:-n], indices.axes[:-n], strict=True):
        walk.same(a, b)
    walk.even(x.axes)
    axes = [*x.axes[:-n], *(Fixed(k) for k in out.shape[-n:])]
    walk.set(out, axes, x.scale, constant=x.constant)


@register_rule("aten.grid_sampler", "aten.grid_sampler_2d", "aten.grid_sampler_3d")
def grid_sampler(walk: Walk, op: Op) -> None:
    """Reads every channel of an image at the given places: linear in the image."""
    x, grid, out = walk.info(op.args[0]), walk.info(op.args[1]), op.outputs[0]
    walk.freeze([*x.axes[2:], *grid.axes[1:]], "reads it at given places")
    walk.same(x.axes[0], grid.axes[0])
    walk.need_one(grid.scale)
    axes = [*x.axes[:2], *(Fixed(n) for n in out.shape[2:])]
    walk.set(out, axes, x.scale, constant=x.constant and grid.constant)


@register_rule("aten.meshgrid")
def meshgrid(walk: Walk, op: Op) -> None:
    """Each vector repeated along the axes of all others."""
    infos = [walk.info(v) for v in op.inputs()]
    axes = [i.axes[0] if i.axes else Fixed(1) for i in infos]
    walk.even(axes)
    if op.arg(1, "indexing", "ij") == "xy" and len(axes) > 1:
        axes[0], axes[1] = axes[1], axes[0]
    for info, value in zip(infos, op.outputs, strict=True):
        walk.set(value, axes, info.scale, constant=info.constant)
