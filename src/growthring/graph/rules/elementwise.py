"""Operators that work entry by entry, with broadcasting."""

from __future__ import annotations

import math
from collections.abc import Sequence

from growthring.core.axes import Axis, Fixed
from growthring.graph.rules.records import Info
from growthring.graph.rules.registry import register_rule
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op, Value

_NONLINEAR = (
    "aten.gelu", "aten.silu", "aten.sigmoid", "aten.tanh", "aten.exp", "aten.exp2", "aten.expm1", "aten.log",
    "aten.log2", "aten.log1p", "aten.log10",
    "aten.pow", "aten.float_power", "aten.hardswish", "aten.hardsigmoid", "aten.hardtanh", "aten.relu6",
    "aten.elu", "aten.selu", "aten.celu", "aten.softplus", "aten.softsign", "aten.mish", "aten.log_sigmoid",
    "aten.log_sigmoid_forward", "aten.erf", "aten.erfc", "aten.sin", "aten.cos", "aten.tan", "aten.atan",
    "aten.sinh", "aten.cosh", "aten.asinh", "aten.sign", "aten.sgn", "aten.floor", "aten.ceil", "aten.round",
    "aten.trunc", "aten.frac", "aten.clamp", "aten.clip", "aten.clamp_min", "aten.clamp_max", "aten.threshold",
    "aten.hardshrink", "aten.softshrink", "aten.tanhshrink", "aten.isnan", "aten.isinf", "aten.isfinite",
    "aten.nan_to_num", "aten.logical_not", "aten.bitwise_not", "aten.addcmul", "aten.addcdiv", "aten.lerp",
    "aten.remainder", "aten.fmod", "aten.floor_divide", "aten.bitwise_and", "aten.bitwise_or",
    "aten.bitwise_xor", "aten.logical_and", "aten.logical_or", "aten.logical_xor", "aten.eq", "aten.ne",
    "aten.lt", "aten.le", "aten.gt", "aten.ge", "aten.atan2", "aten.hypot", "aten.xlogy", "aten.__and__",
    "aten.__or__", "aten.logit", "aten.erfinv", "aten.__xor__", "aten.angle", "aten.polar", "aten.acos",
    "aten.asin", "aten.acosh", "aten.atanh", "aten.arctan2", "aten.signbit", "aten.sinc", "aten.erfcx",
    "aten.special_erfcx", "aten.special_expit", "aten.special_i0", "aten.digamma", "aten.lgamma",
    "aten.logaddexp", "aten.logaddexp2", "aten.copysign", "aten.ldexp", "aten.gcd", "aten.isposinf",
    "aten.isneginf", "aten.isclose", "aten.rad2deg", "aten.deg2rad", "aten.heaviside", "aten.nextafter",
)  # fmt: skip


def broadcast(walk: Walk, out: Value, infos: Sequence[Info]) -> tuple[list[Axis], list[list[bool]]]:
    """Joins the axes of operands as broadcasting does.

    Returns:
        The output's axes, and for each operand which output axes it spans itself (rather than being
        repeated).
    """
    ndim = len(out.shape)
    axes: list[Axis] = [Fixed(1)] * ndim
    spans = [[False] * ndim for _ in infos]
    for k, info in enumerate(infos):
        offset = ndim - len(info.axes)
        for i, axis in enumerate(info.axes):
            d = offset + i
            if walk.size(axis) == 1 and out.shape[d] != 1:
                continue
            if axes[d] == Fixed(1):
                axes[d] = axis
            else:
                walk.same(axes[d], axis)
            spans[k][d] = i not in info.repeated
    return axes, spans


@register_rule("aten.broadcast_tensors", entries="moved")
def broadcast_tensors(walk: Walk, op: Op) -> None:
    """Each operand repeated to the shape of all; what is repeated is equal in the halves of a pair."""
    infos = [walk.info(v) for v in op.inputs()]
    axes, spans = broadcast(walk, op.outputs[0], infos)
    for out, info, spanned in zip(op.outputs, infos, spans, strict=True):
        repeated = [d for d, own in enumerate(spanned) if not own]
        walk.even(axes[d] for d in repeated)
        source = None if repeated else info.source or None
        walk.set(out, axes, info.scale, info, source, info.constant, repeated=repeated)


@register_rule("aten.relu", "aten.leaky_relu")
@register_rule("aten.rrelu", modal=True)
@register_rule("aten.abs", degrees=(1.0,))
def homogeneous(walk: Walk, op: Op) -> None:
    """f(s·x) = s·f(x) for s > 0: the scale passes; parity must be even."""
    x = walk.info(next(op.inputs()))
    walk.even(walk.seen(op.outputs[0], x.axes))
    walk.set(op.outputs[0], x.axes, walk.carry(x), constant=x.constant)


@register_rule("aten.square", degrees=(2.0,))
@register_rule("aten.sqrt", degrees=(0.5,))
@register_rule("aten.rsqrt", degrees=(-0.5,))
@register_rule("aten.reciprocal", degrees=(-1.0,))
@register_rule(*_NONLINEAR)
def nonlinear(walk: Walk, op: Op) -> None:
    """Anything else entry by entry: needs scale 1 and equal halves of a pair."""
    infos = [walk.info(v) for v in op.inputs()]
    for out in op.outputs:
        axes, _ = broadcast(walk, out, infos)
        walk.even(walk.seen(out, axes))
        scale = _clamp_scale(walk, op, infos)
        walk.set(out, axes, scale, constant=all(i.constant for i in infos))


def _clamp_scale(walk: Walk, op: Op, infos: list[Info]) -> int:
    """clamp(min=0) is a ReLU; every other operator of the list needs scale 1."""
    low = op.arg(1, "min")
    high = op.arg(2, "max")
    is_relu = op.name.startswith(("aten.clamp.", "aten.clamp_min")) and low == 0 and high is None
    return walk.carry(*infos) if is_relu else walk.demand(*infos)


@register_rule("aten.add", "aten.sub", "aten.rsub", "aten.__radd__", "aten.subtract")
def add(walk: Walk, op: Op) -> None:
    """A sum: one scale for all, and a constant breaks an odd pair as much as it breaks a scale."""
    infos = [walk.info(v) for v in op.inputs()]
    out = op.outputs[0]
    axes, spans = broadcast(walk, out, infos)
    numbers = [a for a in op.args[:2] if isinstance(a, (int, float)) and a != 0]
    for d, axis in enumerate(axes):
        if numbers or not (all(span[d] for span in spans) or walk.centres(op)):
            walk.even([axis])
    scale = walk.demand(*infos) if numbers else walk.carry(*infos)
    walk.set(out, axes, scale, constant=all(i.constant for i in infos))


@register_rule(
    "aten.mul", "aten.div", "aten.true_divide", "aten.divide", "aten.multiply", factor="other"
)
def multiply(walk: Walk, op: Op) -> None:
    """A product: linear in each factor, so a number, or a factor that is repeated along an axis, keeps parity."""
    infos = [walk.info(v) for v in op.inputs()]
    out = op.outputs[0]
    axes, spans = broadcast(walk, out, infos)
    constant = all(i.constant for i in infos)
    if len(infos) == 1:
        if isinstance(
            op.args[0], Value
        ):  # x · number, x / number: the number may change with a width
            scale = walk.times_number(infos[0].scale)
            walk.set(out, axes, scale, infos[0], infos[0].source or None, constant)
            return
        walk.even(axes)  # number / x
        walk.set(out, axes, walk.demand(*infos), constant=constant)
        return
    a, b = infos[0], infos[-1]
    divides, unseen = "div" in op.name, walk.unseen(out)
    if a.constant and not b.constant and not divides:
        a, b = b, a
    if b.constant and not a.constant and all(walk.size(axis) == 1 for axis in b.axes):
        # a number that the code made a tensor of: it may change with a width as well
        scale = walk.times_number(a.scale)
        walk.set(out, axes, scale, constant=constant)
        return
    for d, axis in enumerate(axes):
        if (spans[0][d] and spans[-1][d]) or (divides and spans[-1][d]):
            walk.even([axis] if d not in unseen else [])
    if divides:
        walk.need_one(b.scale)
        scale = walk.carry(a)
    else:
        scale = walk.multiply(a, b)
    walk.set(out, axes, scale, constant=constant)


@register_rule(
    "aten.maximum",
    "aten.minimum",
    "aten.max.other",
    "aten.min.other",
    "aten.where",
    "aten.fmax",
    "aten.fmin",
)
def choose(walk: Walk, op: Op) -> None:
    """Picks one of its operands entry by entry: they must share a scale."""
    infos = [walk.info(v) for v in op.inputs()]
    out = op.outputs[0]
    axes, _ = broadcast(walk, out, infos)
    walk.even(axes)
    moving = infos[1:] if op.name.startswith("aten.where") else infos
    numbers = [a for a in op.args if isinstance(a, (int, float)) and a != 0 and not math.isinf(a)]
    if moving is not infos:  # the condition
        walk.need_one(infos[0].scale)
    scale = walk.demand(*moving) if numbers or not moving else walk.carry(*moving)
    walk.set(out, axes, scale, constant=all(i.constant for i in infos))


@register_rule("aten.masked_fill")
def masked_fill(walk: Walk, op: Op) -> None:
    """Replaces entries by a number: 0 and infinities survive any scale."""
    infos = [walk.info(v) for v in op.inputs()]
    out = op.outputs[0]
    axes, _ = broadcast(walk, out, infos)
    walk.even(axes)
    fill = op.args[2]
    neutral = isinstance(fill, (int, float)) and (fill == 0 or math.isinf(fill))
    scale = walk.carry(infos[0]) if neutral else walk.demand(*infos)
    walk.set(out, axes, scale, constant=all(i.constant for i in infos))


@register_rule("aten.prelu", "aten._prelu_kernel")
def prelu(walk: Walk, op: Op) -> None:
    """ReLU with a learned slope per channel (axis 1) or one for all."""
    x, slope = (walk.info(v) for v in op.inputs())
    channel = min(1, len(x.axes) - 1)
    if op.name.startswith("aten.prelu") and walk.size(slope.axes[0]) > 1:
        walk.same(x.axes[channel], slope.axes[0])
    elif not op.name.startswith("aten.prelu"):
        broadcast(walk, op.outputs[0], [x, slope])
    walk.even(x.axes)
    walk.need_one(slope.scale)
    walk.set(op.outputs[0], x.axes, walk.carry(x))


@register_rule("aten.glu")
def glu(walk: Walk, op: Op) -> None:
    """A · sigmoid(b) for the two halves of an axis."""
    x, out = walk.info(op.args[0]), op.outputs[0]
    dim = op.arg(1, "dim", -1) % len(x.axes)
    a, b = walk.cut(x.axes[dim], out.shape[dim])
    walk.same(a, b)
    axes = [*x.axes[:dim], a, *x.axes[dim + 1 :]]
    walk.even(axes)
    walk.set(out, axes, walk.demand(x))


@register_rule("aten.tril", "aten.triu")
def triangle(walk: Walk, op: Op) -> None:
    """Zeroes a triangle of the last two axes, which therefore keep their size."""
    x = walk.info(op.args[0])
    walk.freeze(x.axes[-2:], "zeroes a triangle of it")
    walk.set(op.outputs[0], x.axes, x.scale, constant=x.constant)
