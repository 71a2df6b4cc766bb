"""Operators that combine the entries of an axis: pooling, interpolation, mean, sum, softmax, sorting."""

from __future__ import annotations

import torch

from growthring.core.axes import Axis, Fixed
from growthring.graph.reductions import can_fade, reduced_dims
from growthring.graph.rules.elementwise import broadcast
from growthring.graph.rules.registry import register_rule
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op, Value

_LINEAR = ("aten.mean", "aten.sum", "aten.nansum")
_HOMOGENEOUS = (
    "aten.std",
    "aten.std_mean",
    "aten.norm",
    "aten.linalg_vector_norm",
    "aten.linalg_norm",
)
_ORDER = ("aten.amax", "aten.amin", "aten.max", "aten.min", "aten.median")
_OTHER = (
    "aten.logsumexp", "aten.prod", "aten.argmax", "aten.argmin", "aten.any", "aten.all", "aten.frobenius_norm",
    "aten.count_nonzero",
)  # fmt: skip
_SAME_SHAPE = (
    "aten.softmax", "aten._softmax", "aten.log_softmax", "aten._log_softmax", "aten.cumsum", "aten.cumprod",
    "aten.logcumsumexp", "aten.sort", "aten.argsort",
)  # fmt: skip


@register_rule(
    "aten.mean", "aten.sum", "aten.std", "aten.norm", "aten.linalg_vector_norm", "aten.linalg_norm",
    reduces=True, degrees=(1.0,),
)  # fmt: skip
@register_rule("aten.var", reduces=True, degrees=(2.0,))
@register_rule("aten.var_mean", reduces=True, degrees=(2.0, 1.0))
@register_rule("aten.std_mean", reduces=True, degrees=(1.0, 1.0))
@register_rule("aten.nansum", *_ORDER, *_OTHER)
def reduce(walk: Walk, op: Op) -> None:
    """New entries of the reduced axes fade in, or those axes keep their size; the others pass."""
    x = walk.info(op.args[0])
    base = op.base
    dims = reduced_dims(op)
    if can_fade(op):
        for i, d in enumerate(dims):
            walk.fade_in(x.axes[d], i, len(dims))
    else:
        walk.freeze([x.axes[d] for d in dims], "combines its entries")
        walk.pass_by()
    keep = len(op.outputs[0].shape) == len(x.axes)
    axes: list[Axis] = []
    for d, axis in enumerate(x.axes):
        if d not in dims:
            axes.append(axis)
        elif keep:
            axes.append(Fixed(1))
    if base not in _LINEAR:
        walk.even(axes)
    carries = base in (*_LINEAR, *_ORDER, *_HOMOGENEOUS)
    scale = walk.carry(x) if carries else walk.demand(x)
    for out in op.outputs:
        walk.set(out, axes, scale, constant=x.constant)


@register_rule("aten.cosine_similarity")
def cosine_similarity(walk: Walk, op: Op) -> None:
    """The angle between two tensors along an axis, whose new entries fade in; it has no scale."""
    infos = [walk.info(v) for v in op.args[:2]]
    whole = Value(tuple(torch.broadcast_shapes(*(v.shape for v in op.args[:2]))), op.args[0].dtype)
    axes, _ = broadcast(walk, whole, infos)
    dim = op.arg(2, "dim", 1) % len(axes)
    walk.fade_in(axes.pop(dim))
    walk.even(axes)
    for info in infos:
        walk.norm_input(info)
    walk.set(op.outputs[0], axes, walk.demand(), constant=all(i.constant for i in infos))


@register_rule("aten.mse_loss", "aten.l1_loss", "aten.smooth_l1_loss", "aten.huber_loss")
def loss(walk: Walk, op: Op) -> None:
    """Differences of two tensors, entry by entry or reduced to one number, into which new entries fade."""
    infos = [walk.info(v) for v in op.args[:2]]
    whole = Value(tuple(torch.broadcast_shapes(*(v.shape for v in op.args[:2]))), op.args[0].dtype)
    axes, _ = broadcast(walk, whole, infos)
    walk.even(axes)
    is_reduced = op.arg(2, "reduction", 1) != 0
    if is_reduced:
        for i, axis in enumerate(axes):
            walk.fade_in(axis, i, len(axes))
    else:
        walk.pass_by()
    constant = all(i.constant for i in infos)
    walk.set(op.outputs[0], () if is_reduced else axes, walk.demand(*infos), constant=constant)


@register_rule(*_SAME_SHAPE)
def along(walk: Walk, op: Op) -> None:
    """Works along one axis, which keeps its size; the others pass."""
    x = walk.info(op.args[0])
    given = op.arg(1, "dim", -1)
    dim = (given if isinstance(given, int) and not isinstance(given, bool) else -1) % max(
        len(x.axes), 1
    )
    if x.axes:
        walk.freeze([x.axes[dim]], "combines its entries")
    walk.even(x.axes)
    scale = walk.demand(x)
    for out in op.outputs:
        walk.set(out, x.axes, scale, constant=x.constant)


@register_rule("aten.topk")
def topk(walk: Walk, op: Op) -> None:
    """The k largest entries of an axis, which keeps its size."""
    x = walk.info(op.args[0])
    dim = op.arg(2, "dim", -1) % len(x.axes)
    walk.freeze([x.axes[dim]], "picks its largest entries")
    walk.even(x.axes)
    for out in op.outputs:
        walk.set(out, [*x.axes[:dim], Fixed(out.shape[dim]), *x.axes[dim + 1 :]], walk.demand(x))


_POOLS = {
    f"aten.{adaptive}{kind}_pool{n}d{suffix}": n
    for n in (1, 2, 3)
    for kind in ("max", "avg")
    for adaptive in ("", "adaptive_", "_adaptive_")
    for suffix in ("", "_with_indices")
}
_UPSAMPLES = {
    f"aten.{exact}upsample_{mode}": n
    for exact in ("", "_")
    for mode, n in {
        "nearest1d": 1, "nearest2d": 2, "nearest3d": 3, "linear1d": 1, "bilinear2d": 2, "trilinear3d": 3,
        "bicubic2d": 2, "nearest_exact1d": 1, "nearest_exact2d": 2, "nearest_exact3d": 3,
        "bilinear2d_aa": 2, "bicubic2d_aa": 2,
    }.items()
}  # fmt: skip
_SPATIAL = _POOLS | _UPSAMPLES
_TO_SIZE = (
    *(name for name in _POOLS if "adaptive" in name),
    *_UPSAMPLES,
)  # what they take is their result's size


@register_rule(*(name for name in _SPATIAL if name not in _TO_SIZE))
@register_rule(*_TO_SIZE, sizes=True)
def pool(walk: Walk, op: Op) -> None:
    """Works over the last n axes, channel by channel, and is positively homogeneous."""
    x = walk.info(op.args[0])
    base = op.base
    n = _SPATIAL[base]
    walk.freeze(x.axes[-n:], "pools over it")
    walk.even(x.axes)
    for out in op.outputs:
        axes = [*x.axes[:-n], *(Fixed(k) for k in out.shape[-n:])]
        walk.set(out, axes, walk.carry(x), constant=x.constant)
