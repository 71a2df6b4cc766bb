"""Operators that rearrange entries: reshape, permute, cat, split, slice, index, pad, shuffle, factories."""

from __future__ import annotations

from typing import Any

from growthring.core.axes import Axis, Fixed, Product
from growthring.graph.rules.registry import register_rule
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op, Value


def axis_numbers(given: Any, ndim: int) -> list[int]:
    """Axis numbers as a list, negative ones counted from the end."""
    dims = [given] if isinstance(given, int) else list(given)
    return [d % ndim if ndim else 0 for d in dims]


@register_rule(
    "aten.contiguous", "aten.clone", "aten.alias", "aten.detach", "aten.to", "aten._to_copy",
    "aten.type_as", "aten.float", "aten.double", "aten.half", "aten.bfloat16",
    entries="same",
)  # fmt: skip
@register_rule(
    "aten.dropout", "aten.feature_dropout", "aten.alpha_dropout", "aten.native_dropout", modal=True
)  # fmt: skip
@register_rule("aten.neg", degrees=(1.0,))
@register_rule(
    "aten.feature_alpha_dropout", "aten.lift_fresh_copy", "aten.positive", "aten.requires_grad",
    "aten.conj", "aten._conj", "aten.conj_physical", "aten.resolve_conj", "aten.resolve_neg", "aten.real",
    "aten.imag",
)  # fmt: skip
def identity(walk: Walk, op: Op) -> None:
    """Entry by entry, linear and odd: axes, parity and scale pass."""
    x = walk.info(next(op.inputs()))
    for value in op.outputs:
        walk.set(value, x.axes, x.scale, x, x.source, x.constant, x.stack, repeated=x.repeated)


@register_rule(
    "aten.view", "aten.reshape", "aten._unsafe_view", "aten.flatten", "aten.unflatten", "aten.view_as",
    "aten.reshape_as", "aten._reshape_alias", entries="moved", sizes=True,
)  # fmt: skip
def view(walk: Walk, op: Op) -> None:
    """Row-major regrouping: runs of axes of equal product are factored anew."""
    x_value, out = next(op.inputs()), op.outputs[0]
    x = walk.info(x_value)
    if 0 in out.shape:
        walk.set(out, walk.fixed(out), x.scale, constant=x.constant)
        return
    stack_at = stacked_axis(walk, out) if x.stack is None else None
    axes: list[Axis] = []
    source: list[int | None] = []
    stack = None
    for ins, outs in _matching_runs(x_value.shape, out.shape):
        sources = [x.source[i] for i in ins if walk.has_width(x.axes[i])] if x.use else []
        origin = sources[0] if len(set(sources)) == 1 else None
        rest: Axis = Product(tuple(x.axes[i] for i in ins)) if len(ins) != 1 else x.axes[ins[0]]
        for position, j in enumerate(outs):
            if j == stack_at and position < len(outs) - 1:
                later = [out.shape[k] for k in outs[position:]]
                slices = _slices(walk, rest, later)
                inner = len(axes)
                axes += [Fixed(out.shape[j]), *slices[0]]
                source += [None] * len(later)
                stack = (inner, slices)
                break
            if position == len(outs) - 1:
                axes.append(rest)
            else:
                part, rest = walk.factor(rest, out.shape[j])
                axes.append(part)
            source.append(origin)
    if stack is not None:
        at, slices = stack
        tail = len(slices[0])
        stack = (at, tuple((*axes[:at], *s, *axes[at + 1 + tail :]) for s in slices))
    walk.set(out, axes, x.scale, x if x.use and stack is None else None, source, x.constant, stack)


def _slices(walk: Walk, axis: Axis, sizes: list[int]) -> tuple[tuple[Axis, ...], ...]:
    """Takes `axis` = count × sizes[1:] apart into `count` segments, each factored by itself."""
    count, inner = sizes[0], sizes[1:]
    segments: list[tuple[Axis, ...]] = []
    for k in range(count):
        segment, axis = walk.cut(axis, walk.size(axis) // (count - k))
        parts: list[Axis] = []
        for n in inner[:-1]:
            part, segment = walk.factor(segment, n)
            parts.append(part)
        segments.append((*parts, segment))
    for other in segments[1:]:
        for a, b in zip(segments[0], other, strict=True):
            walk.tie(a, b)
    return tuple(segments)


def _matching_runs(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Shortest runs of old and new axes with equal products.

    >>> _matching_runs((2, 6, 4), (2, 2, 3, 4))
    [([0], [0]), ([1], [1, 2]), ([2], [3])]
    """
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        ins, outs = [], []
        left = right = 1
        if i < len(old):
            ins.append(i)
            left *= old[i]
            i += 1
        if j < len(new) and (not ins or left != 1 or new[j] == 1):
            outs.append(j)
            right *= new[j]
            j += 1
        while left != right:
            if left < right:
                ins.append(i)
                left *= old[i]
                i += 1
            else:
                outs.append(j)
                right *= new[j]
                j += 1
        if ins and outs:
            runs.append((ins, outs))
        elif outs:  # a new axis of one entry
            runs.append(([], outs))
    return runs


_FOLLOWED = {
    "aten.permute", "aten.transpose", "aten.unsqueeze", "aten.squeeze", "aten.contiguous", "aten.clone",
    "aten.alias", "aten.detach", "aten.to",
}  # fmt: skip


def stacked_axis(walk: Walk, value: Value) -> int | None:
    """The axis of `value` whose entries are taken apart by select or unbind in everything that follows, if any."""

    def taken_apart(v: Value, axis: int) -> bool:
        following = walk.users(v)
        return bool(following) and all(ends(op, v, axis) for op in following)

    def ends(op: Op, v: Value, axis: int) -> bool:
        base = op.base
        if base in ("aten.select", "aten.unbind"):
            return int(op.arg(1, "dim", 0)) % len(v.shape) == axis
        if base not in _FOLLOWED:
            return False
        return taken_apart(op.outputs[0], _permutation(op, len(v.shape)).index(axis))

    for axis, n in enumerate(value.shape):
        if 1 < n <= 8 and taken_apart(value, axis):
            return axis
    return None


def _permutation(op: Op, ndim: int) -> list[int | None]:
    """For each output axis of a rearranging operator, the input axis it is (None: a new one of size 1)."""
    base = op.base.removesuffix("_")
    order: list[int | None] = list(range(ndim))
    if base in ("aten.permute",):
        return list(axis_numbers(op.args[1], ndim))
    if base in ("aten.transpose", "aten.swapaxes", "aten.swapdims"):
        a, b = axis_numbers(op.args[1:3], ndim)
        order[a], order[b] = order[b], order[a]
    elif base in ("aten.t", "aten.numpy_T"):
        order.reverse()
    elif base in ("aten.mT", "aten.adjoint", "aten.mH"):
        order[-1], order[-2] = order[-2], order[-1]
    elif base in ("aten.movedim", "aten.moveaxis"):
        sources, targets = axis_numbers(op.args[1], ndim), axis_numbers(op.args[2], ndim)
        order = [d for d in range(ndim) if d not in sources]
        for target, s in sorted(zip(targets, sources, strict=True)):
            order.insert(target, s)
    elif base == "aten.unsqueeze":
        order.insert(int(op.args[1]) % (ndim + 1), None)
    elif base == "aten.squeeze":
        shape = next(op.inputs()).shape
        given = axis_numbers(op.arg(1, "dim", range(ndim)), ndim)
        order = [d for d in range(ndim) if d not in given or shape[d] != 1]
    return order


@register_rule(
    "aten.permute", "aten.transpose", "aten.t", "aten.numpy_T", "aten.mT", "aten.movedim", "aten.unsqueeze",
    "aten.squeeze", "aten.swapaxes", "aten.swapdims", "aten.moveaxis", "aten.adjoint", "aten.mH",
    entries="moved",
)  # fmt: skip
def permute(walk: Walk, op: Op) -> None:
    """Axes change places; axes of one entry come and go."""
    x = walk.info(next(op.inputs()))
    order = _permutation(op, len(x.axes))
    axes = [Fixed(1) if d is None else x.axes[d] for d in order]
    source = [None if d is None else x.source[d] for d in order] if x.use else None
    stack = None
    if x.stack is not None:
        at, slices = x.stack
        new_at = order.index(at)
        rest = [d for d in order if d != at]
        moved = tuple(
            tuple(Fixed(1) if d is None else s[d - (d > at)] for d in rest) for s in slices
        )
        stack = (new_at, moved)
    walk.set(op.outputs[0], axes, x.scale, x, source, x.constant, stack)


@register_rule("aten.expand", "aten.expand_as", "aten.broadcast_to", entries="moved", sizes=True)
def expand(walk: Walk, op: Op) -> None:
    """Axes of one entry are repeated, by a number that may follow a width or as another tensor has them."""
    x_value, out = next(op.inputs()), op.outputs[0]
    x = walk.info(x_value)
    new = len(out.shape) - len(x.axes)
    like = walk.info(op.args[1]).axes if op.name.startswith("aten.expand_as") else None
    axes: list[Axis] = []
    source: list[int | None] = []
    repeated = []
    for d, n in enumerate(out.shape):
        i = d - new
        if i >= 0 and x_value.shape[i] == n:
            axes.append(x.axes[i])
            source.append(x.source[i] if x.use else None)
            repeated += [d] if i in x.repeated or n == 1 else []
        else:
            axes.append(walk.new_axis(n) if like is None else like[d])
            source.append(None)
            repeated.append(d)
    users = [c for c in walk.users(out) if c.outputs]
    scales_its_like = like is not None and all(
        c.name.startswith(("aten.mul.", "aten.div.")) and set(c.inputs()) == {out, op.args[1]}
        for c in users
    )
    if (
        not scales_its_like
    ):  # what is repeated is equal in the halves of a pair; x / n.expand_as(x) is x / n
        walk.even(axes[d] for d in repeated)
    walk.set(out, axes, x.scale, x, source if x.use else None, x.constant, repeated=repeated)


@register_rule("aten.repeat", "aten.tile", sizes=True)
def repeat(walk: Walk, op: Op) -> None:
    """The whole axis, n times over: a product with a fixed outer factor; one entry repeated may follow a width."""
    x, out = walk.info(next(op.inputs())), op.outputs[0]
    new = len(out.shape) - len(x.axes)
    axes: list[Axis] = []
    repeated = []
    for d, n in enumerate(out.shape):
        axis: Axis = x.axes[d - new] if d >= new else Fixed(1)
        times = n // max(walk.size(axis), 1)
        if times != 1 and walk.size(axis) == 1:
            axis = walk.new_axis(n)
            repeated.append(d)
        elif times != 1:
            axis = Product((Fixed(times), axis))
        axes.append(axis)
    walk.even(axes[d] for d in repeated)
    walk.set(out, axes, x.scale, constant=x.constant, repeated=repeated)


@register_rule("aten.repeat_interleave", sizes=True)
def repeat_interleave(walk: Walk, op: Op) -> None:
    """Each entry n times in a row: a product with a fixed inner factor."""
    x, out = walk.info(next(op.inputs())), op.outputs[0]
    axes = list(x.axes)
    dim = op.arg(2, "dim")
    if dim is None or not isinstance(op.args[1], int):
        walk.freeze(axes, "repeats entries by a tensor or over a flattened tensor")
        axes = list(walk.fixed(out))
    else:
        (d,) = axis_numbers(dim, len(axes))
        axes[d] = Product((axes[d], Fixed(op.args[1])))
    walk.set(out, axes, x.scale, constant=x.constant)


@register_rule("higher_order._add_batch_dim", "higher_order._remove_batch_dim")
def batch_dim(walk: Walk, op: Op) -> None:
    """Vmap takes an axis away, runs its function once on what is left, and puts the axis back."""
    x, out = walk.info(op.args[0]), op.outputs[0]
    axes, source = list(x.axes), list(x.source)
    if op.name.startswith("higher_order._add"):
        (dim,) = axis_numbers(op.args[1], len(axes))
        walk.freeze([axes.pop(dim)], "maps over it")
        del source[dim : dim + 1]
    else:
        (dim,) = axis_numbers(op.args[3], len(out.shape))
        axes.insert(dim, Fixed(out.shape[dim]))
        source.insert(dim, None)
    walk.set(out, axes, x.scale, x if x.use else None, source if x.use else None, x.constant)
