"""Normalisations. Those that work channel by channel pass a width; those that mix channels need care."""

from __future__ import annotations

from typing import Any

from growthring.core.axes import Axis
from growthring.graph.rules.walk import Walk, register_rule
from growthring.graph.trace import Op, Value


def _affine(walk: Walk, weight: Any, bias: Any, axis: Axis, scale: int) -> int:
    """Joins gain and shift to the channel axis; the gain can carry the output's scale."""
    gained = scale
    if isinstance(weight, Value):
        info = walk.info(weight)
        walk.same(info.axes[-1], axis)
        gained = walk.scales.fresh()
        if info.use is not None:
            info.use.kind = "gain"
            walk.scales.add("own", (), gained, (info.use.name,), walk.where())
        else:
            walk.scales.add("demand", (info.scale,), gained, where=walk.where())
    if isinstance(bias, Value):
        walk.add_bias(walk.info(bias), axis, gained)
    return gained


@register_rule(
    "aten.batch_norm",
    "aten.instance_norm",
    "aten.native_batch_norm",
    "aten._native_batch_norm_legit",
)
def batch_norm(walk: Walk, op: Op) -> None:
    """Statistics per channel (axis 1) over everything else."""
    x = walk.info(op.args[0])
    weight, bias, mean, variance = op.args[1:5]
    channels = x.axes[1]
    reduced = x.axes[2:] if "instance" in op.name else (x.axes[0], *x.axes[2:])
    walk.freeze(reduced, "takes statistics over it")
    walk.even(x.axes)
    eps = float(op.args[7])
    names = []
    for value, kind in ((mean, "mean"), (variance, "variance")):
        if isinstance(value, Value):
            info = walk.info(value)
            walk.same(info.axes[0], channels)
            if info.use is not None:
                info.use.kind = kind
                names.append(info.use.name)
    if len(names) < 2:
        walk.scales.add("norm", (x.scale,), None, where=walk.where())
    if len(names) == 2:
        walk.scales.add("stats", (x.scale,), None, tuple(names), walk.where(), eps=eps)
    scale = _affine(walk, weight, bias, channels, walk.demand())
    walk.attribute("num_features", channels)
    for out in op.outputs:
        walk.set(out, x.axes if len(out.shape) == len(x.axes) else walk.fixed(out), scale)


@register_rule("aten.layer_norm", "aten.rms_norm")
def layer_norm(walk: Walk, op: Op) -> None:
    """Statistics over the last axes. One axis: they fade in when it grows. Several: it keeps its size."""
    x = walk.info(op.args[0])
    shape = op.args[1]
    weight = op.args[2] if len(op.args) > 2 else op.kwargs.get("weight")
    is_rms = op.name.startswith("aten.rms_norm")
    bias = None if is_rms else (op.args[3] if len(op.args) > 3 else op.kwargs.get("bias"))
    if len(shape) > 1:
        walk.freeze(x.axes[-len(shape) :], "takes statistics over it together with other axes")
        for value in (weight, bias):
            if isinstance(value, Value):
                walk.freeze(
                    walk.info(value).axes, "takes statistics over it together with other axes"
                )
        walk.scales.add("norm", (x.scale,), None, where=walk.where())
        walk.set(op.outputs[0], x.axes, walk.demand())
        return
    _faded(walk, op, weight, bias)
    walk.attribute("normalized_shape", x.axes[-1])


@register_rule("growthring.norm")
def recognised_norm(walk: Walk, op: Op) -> None:
    """A module that computes a layer or RMS norm by hand (see `graph/recognise.py`)."""
    _faded(walk, op, op.args[1], op.args[2])


def _faded(walk: Walk, op: Op, weight: Any, bias: Any) -> None:
    x = walk.info(op.args[0])
    walk.even(x.axes)
    scale = _affine(walk, weight, bias, x.axes[-1], walk.demand())
    walk.scales.add("norm", (x.scale,), None, where=walk.where())
    walk.fade_in(x.axes[-1])
    walk.set(op.outputs[0], x.axes, scale)


@register_rule("aten.group_norm")
def group_norm(walk: Walk, op: Op) -> None:
    """Statistics per group of channels: the group keeps its channels, the number of groups may grow."""
    x = walk.info(op.args[0])
    groups = int(op.args[1])
    weight = op.args[2] if len(op.args) > 2 else op.kwargs.get("weight")
    bias = op.args[3] if len(op.args) > 3 else op.kwargs.get("bias")
    outer, inner = walk.factor(x.axes[1], groups)
    walk.freeze([inner], "takes statistics over the channels of a group")
    walk.scales.add("norm", (x.scale,), None, where=walk.where())
    walk.freeze(x.axes[2:], "takes statistics over it")
    walk.even(x.axes)
    scale = _affine(walk, weight, bias, x.axes[1], walk.demand())
    if groups > 1:
        walk.attribute("num_groups", outer)
    walk.expect(1, outer)
    walk.attribute("num_channels", x.axes[1])
    walk.set(op.outputs[0], x.axes, scale)
