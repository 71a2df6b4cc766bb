"""Normalisations. Those that work channel by channel pass a width; those that mix channels need care."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from growthring.core.axes import Axis
from growthring.graph.rules.registry import register_rule
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op, Value


def _affine(walk: Walk, weight: Any, bias: Any, axis: Axis, scale: int) -> int:
    """Joins gain and shift to the channel axis; the gain can carry the output's scale."""
    gained = scale
    if isinstance(weight, Value):
        info = walk.info(weight)
        walk.same(info.axes[-1], axis)
        gained = walk.gain(info)
    if isinstance(bias, Value):
        walk.add_bias(walk.info(bias), axis, gained)
    return gained


@register_rule(
    "aten.batch_norm", "aten.instance_norm", "aten.native_batch_norm", "aten._native_batch_norm_legit",
    modal=True,
)  # fmt: skip
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
        walk.norm_input(x)
    if len(names) == 2:
        walk.running_statistics(x, names, eps)
    scale = _affine(walk, weight, bias, channels, walk.demand())
    walk.attribute("num_features", channels)
    for out in op.outputs:
        walk.set(out, x.axes if len(out.shape) == len(x.axes) else walk.fixed(out), scale)


@register_rule("aten.layer_norm", "aten.rms_norm", sizes=True)
def layer_norm(walk: Walk, op: Op) -> None:
    """Statistics over the last axes, which fade in when one of them grows."""
    x = walk.info(op.args[0])
    weight = op.arg(2, "weight")
    is_rms = op.name.startswith("aten.rms_norm")
    bias = None if is_rms else op.arg(3, "bias")
    axes = x.axes[-len(op.args[1]) :]
    for value in (weight, bias):
        if isinstance(value, Value):
            for own, axis in zip(walk.info(value).axes, axes, strict=True):
                walk.same(own, axis)
    _faded(walk, op, weight, bias, axes)
    walk.attribute("normalized_shape", *axes)


def _faded(walk: Walk, op: Op, weight: Any, bias: Any, reduced: Sequence[Axis]) -> None:
    """A norm over some axes of its input, of which the affine parameters have the last (or only) one."""
    x = walk.info(op.args[0])
    walk.even(x.axes)
    channels = x.axes[1] if op.name.startswith("aten.group_norm") else x.axes[-1]
    scale = _affine(walk, weight, bias, channels, walk.demand())
    walk.norm_input(x)
    for i, axis in enumerate(reduced):
        walk.fade_in(axis, i, len(reduced))
    walk.set(op.outputs[0], x.axes, scale)


@register_rule("aten.group_norm", sizes=True)
def group_norm(walk: Walk, op: Op) -> None:
    """Statistics per group of channels: a group keeps its channels, the number of groups may grow.

    A single group is a norm over all channels: they fade in.
    """
    x = walk.info(op.args[0])
    groups = int(op.args[1])
    weight = op.arg(2, "weight")
    bias = op.arg(3, "bias")
    outer, inner = walk.factor(x.axes[1], groups)
    if groups > 1:
        walk.freeze([inner], "takes statistics over the channels of a group")
        walk.unit(inner, "GroupNorm")
        walk.freeze(x.axes[2:], "takes statistics over it")
        walk.pass_by()
        walk.norm_input(x)
        walk.even(x.axes)
        scale = _affine(walk, weight, bias, x.axes[1], walk.demand())
        walk.attribute("num_groups", outer)
        walk.set(op.outputs[0], x.axes, scale)
    else:
        _faded(walk, op, weight, bias, x.axes[1:])
    walk.expect(1, outer)
    walk.attribute("num_channels", x.axes[1])
