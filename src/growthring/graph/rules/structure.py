"""Operators that rearrange entries: reshape, permute, cat, split, slice, index, pad, shuffle, factories."""

from __future__ import annotations

from typing import Any

from growthring.core.axes import Axis, Concat, Fixed, Product
from growthring.graph.rules.walk import Walk, register_rule
from growthring.graph.trace import Op, Trace, Value


def _argument(op: Op, index: int, name: str, default: Any = None) -> Any:
    return op.args[index] if len(op.args) > index else op.kwargs.get(name, default)


def _dims(given: Any, ndim: int) -> list[int]:
    dims = [given] if isinstance(given, int) else list(given)
    return [d % ndim if ndim else 0 for d in dims]


@register_rule(
    "aten.contiguous", "aten.clone", "aten.alias", "aten.detach", "aten.to", "aten._to_copy",
    "aten.type_as", "aten.dropout", "aten.feature_dropout", "aten.alpha_dropout", "aten.lift_fresh_copy",
    "aten.float", "aten.double", "aten.half", "aten.bfloat16", "aten.native_dropout", "aten.neg",
    "aten.positive", "aten.view_as_real_copy", "aten.requires_grad",
)  # fmt: skip
def identity(walk: Walk, op: Op) -> None:
    """Entry by entry, linear and odd: axes, parity and scale pass."""
    x = walk.info(next(op.inputs()))
    for value in op.outputs:
        walk.set(value, x.axes, x.scale, x, x.source, x.constant, x.stack)


@register_rule(
    "aten.view", "aten.reshape", "aten._unsafe_view", "aten.flatten", "aten.unflatten", "aten.view_as",
    "aten.reshape_as", "aten._reshape_alias",
)  # fmt: skip
def view(walk: Walk, op: Op) -> None:
    """Row-major regrouping: runs of axes of equal product are factored anew."""
    x_value, out = next(op.inputs()), op.outputs[0]
    x = walk.info(x_value)
    if 0 in out.shape:
        walk.set(out, walk.fixed(out), x.scale, constant=x.constant)
        return
    stack_at = stacked_axis(walk.trace, out) if x.stack is None else None
    axes: list[Axis] = []
    source: list[int | None] = []
    stack = None
    for ins, outs in _matching_runs(x_value.shape, out.shape):
        sources = [x.source[i] for i in ins if walk.has_width(x.axes[i])] if x.use else []
        origin = sources[0] if len(set(sources)) == 1 else None
        rest: Axis = Product(tuple(x.axes[i] for i in ins)) if len(ins) != 1 else x.axes[ins[0]]
        for position, j in enumerate(outs):
            if j == stack_at and len(outs) > 1:
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
            walk.ties.append((a, b, walk.where()))
    return tuple(segments)


def _matching_runs(
    old: tuple[int, ...], new: tuple[int, ...]
) -> list[tuple[list[int], list[int]]]:
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


def stacked_axis(trace: Trace, value: Value) -> int | None:
    """The axis of `value` whose entries are taken apart by select or unbind in everything that follows, if any."""
    def taken_apart(v: Value, axis: int) -> bool:
        following = trace.consumers.get(v, [])
        return bool(following) and all(ends(op, v, axis) for op in following)

    def ends(op: Op, v: Value, axis: int) -> bool:
        base = ".".join(op.name.split(".")[:2])
        if base in ("aten.select", "aten.unbind"):
            return int(_argument(op, 1, "dim", 0)) % len(v.shape) == axis
        if base not in _FOLLOWED:
            return False
        return taken_apart(op.outputs[0], _permutation(op, len(v.shape)).index(axis))

    for axis, n in enumerate(value.shape):
        if 1 < n <= 8 and taken_apart(value, axis):
            return axis
    return None


def _permutation(op: Op, ndim: int) -> list[int | None]:
    """For each output axis of a rearranging operator, the input axis it is (None: a new one of size 1)."""
    base = ".".join(op.name.split(".")[:2]).removesuffix("_")
    order: list[int | None] = list(range(ndim))
    if base in ("aten.permute",):
        return list(_dims(op.args[1], ndim))
    if base in ("aten.transpose", "aten.swapaxes", "aten.swapdims"):
        a, b = _dims(op.args[1:3], ndim)
        order[a], order[b] = order[b], order[a]
    elif base in ("aten.t", "aten.numpy_T"):
        order.reverse()
    elif base in ("aten.mT", "aten.adjoint", "aten.mH"):
        order[-1], order[-2] = order[-2], order[-1]
    elif base in ("aten.movedim", "aten.moveaxis"):
        sources, targets = _dims(op.args[1], ndim), _dims(op.args[2], ndim)
        order = [d for d in range(ndim) if d not in sources]
        for target, s in sorted(zip(targets, sources, strict=True)):
            order.insert(target, s)
    elif base == "aten.unsqueeze":
        order.insert(int(op.args[1]) % (ndim + 1), None)
    elif base == "aten.squeeze":
        shape = next(op.inputs()).shape
        given = _dims(op.args[1], ndim) if len(op.args) > 1 else list(range(ndim))
        order = [d for d in range(ndim) if d not in given or shape[d] != 1]
    return order


@register_rule(
    "aten.permute", "aten.transpose", "aten.t", "aten.numpy_T", "aten.mT", "aten.movedim", "aten.unsqueeze",
    "aten.squeeze", "aten.swapaxes", "aten.swapdims", "aten.moveaxis", "aten.adjoint", "aten.mH",
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


@register_rule("aten.expand", "aten.expand_as", "aten.broadcast_to")
def expand(walk: Walk, op: Op) -> None:
    """Axes of one entry are repeated by a number in the model's code; the others stay."""
    x_value, out = next(op.inputs()), op.outputs[0]
    x = walk.info(x_value)
    new = len(out.shape) - len(x.axes)
    axes: list[Axis] = [Fixed(n) for n in out.shape]
    source: list[int | None] = [None] * len(axes)
    for i, axis in enumerate(x.axes):
        if x_value.shape[i] != 1 or out.shape[new + i] == 1:
            axes[new + i] = axis
            source[new + i] = x.source[i] if x.use else None
    walk.set(out, axes, x.scale, x, source if x.use else None, x.constant)


@register_rule("aten.repeat", "aten.tile")
def repeat(walk: Walk, op: Op) -> None:
    """The whole axis, n times over: a product with a fixed outer factor."""
    x, out = walk.info(next(op.inputs())), op.outputs[0]
    new = len(out.shape) - len(x.axes)
    axes: list[Axis] = [Fixed(n) for n in out.shape[:new]]
    for axis, n in zip(x.axes, out.shape[new:], strict=True):
        times = n // max(walk.size(axis), 1)
        axes.append(axis if times == 1 else Product((Fixed(times), axis)))
    walk.set(out, axes, x.scale, constant=x.constant)


@register_rule("aten.repeat_interleave")
def repeat_interleave(walk: Walk, op: Op) -> None:
    """Each entry n times in a row: a product with a fixed inner factor."""
    x, out = walk.info(next(op.inputs())), op.outputs[0]
    axes = list(x.axes)
    dim = _argument(op, 2, "dim")
    if dim is None or not isinstance(op.args[1], int):
        walk.freeze(axes, "repeats entries by a tensor or over a flattened tensor")
        axes = list(walk.fixed(out))
    else:
        (d,) = _dims(dim, len(axes))
        axes[d] = Product((axes[d], Fixed(op.args[1])))
    walk.set(out, axes, x.scale, constant=x.constant)


@register_rule("aten.cat", "aten.concat", "aten.concatenate")
def cat(walk: Walk, op: Op) -> None:
    """Segments one after the other; every other axis is shared."""
    out = op.outputs[0]
    (dim,) = _dims(_argument(op, 1, "dim", 0), len(out.shape))
    infos = [walk.info(v) for v in op.inputs() if v.shape != (0,)]
    axes = list(infos[0].axes)
    for other in infos[1:]:
        for d, (a, b) in enumerate(zip(axes, other.axes, strict=True)):
            if d != dim:
                walk.same(a, b)
    axes[dim] = Concat(tuple(i.axes[dim] for i in infos))
    walk.set(out, axes, walk.carry(*infos), constant=all(i.constant for i in infos))


@register_rule("aten.stack")
def stack(walk: Walk, op: Op) -> None:
    """A new axis of fixed size; the others are shared."""
    out = op.outputs[0]
    (dim,) = _dims(_argument(op, 1, "dim", 0), len(out.shape))
    infos = [walk.info(v) for v in op.inputs()]
    axes = list(infos[0].axes)
    for other in infos[1:]:
        for a, b in zip(axes, other.axes, strict=True):
            walk.same(a, b)
    walk.even(axes)
    axes.insert(dim, Fixed(len(infos)))
    walk.set(out, axes, walk.carry(*infos), constant=all(i.constant for i in infos))


def _segment(walk: Walk, axis: Axis, start: int, length: int) -> Axis:
    """Entries [start, start + length) of an axis."""
    if not walk.has_width(axis):
        return Fixed(length)
    _, rest = walk.cut(axis, start)
    return walk.cut(rest, length)[0]


def _replace(items: tuple[Any, ...], index: int, item: Any) -> list[Any]:
    return [*items[:index], item, *items[index + 1 :]]


@register_rule("aten.split", "aten.split_with_sizes", "aten.chunk", "aten.tensor_split", "aten.unsafe_chunk")
def split(walk: Walk, op: Op) -> None:
    """An axis falls into segments."""
    x = walk.info(next(op.inputs()))
    (dim,) = _dims(_argument(op, 2, "dim", 0), len(x.axes))
    start = 0
    first: Axis | None = None
    for value in op.outputs:
        length = value.shape[dim]
        part = _segment(walk, x.axes[dim], start, length)
        start += length
        first = first or part
        if "sizes" not in op.name and length == op.outputs[0].shape[dim]:
            walk.ties.append((first, part, walk.where()))  # one number in the code for all of them
        walk.set(value, _replace(x.axes, dim, part), x.scale, x, x.source or None, x.constant)


@register_rule("aten.slice", "aten.narrow")
def slice_(walk: Walk, op: Op) -> None:
    """One segment of an axis."""
    x_value, out = next(op.inputs()), op.outputs[0]
    x = walk.info(x_value)
    (dim,) = _dims(_argument(op, 1, "dim", 0), len(x.axes))
    length, total = out.shape[dim], x_value.shape[dim]
    start = _argument(op, 2, "start", 0) or 0
    step = _argument(op, 4, "step", 1) if op.name.startswith("aten.slice") else 1
    start = start + total if start < 0 else start
    if length == total:
        part = x.axes[dim]
    elif step != 1:
        walk.freeze([x.axes[dim]], f"takes every {step}th entry of it")
        part = Fixed(length)
    else:
        part = _segment(walk, x.axes[dim], min(start, total), length)
    walk.set(out, _replace(x.axes, dim, part), x.scale, x, x.source or None, x.constant)


@register_rule("aten.select")
def select(walk: Walk, op: Op) -> None:
    """One entry of an axis."""
    x, out = walk.info(next(op.inputs())), op.outputs[0]
    (dim,) = _dims(op.args[1], len(x.axes))
    if x.stack is not None and x.stack[0] == dim:
        walk.set(out, x.stack[1][op.args[2]], x.scale, constant=x.constant)
        return
    walk.freeze([x.axes[dim]], "picks one entry of it")
    axes = [a for d, a in enumerate(x.axes) if d != dim]
    source = [s for d, s in enumerate(x.source) if d != dim] if x.use else None
    walk.set(out, axes, x.scale, x, source, x.constant)


@register_rule("aten.unbind")
def unbind(walk: Walk, op: Op) -> None:
    """Every entry of an axis by itself."""
    x = walk.info(next(op.inputs()))
    (dim,) = _dims(_argument(op, 1, "dim", 0), len(x.axes))
    stacked = x.stack is not None and x.stack[0] == dim
    if not stacked:
        walk.freeze([x.axes[dim]], "takes its entries apart")
    axes = tuple(a for d, a in enumerate(x.axes) if d != dim)
    for k, value in enumerate(op.outputs):
        slices = x.stack[1][k] if stacked and x.stack is not None else axes
        walk.set(value, slices, x.scale, constant=x.constant)


@register_rule("aten.index", "aten._unsafe_index", "aten.index_select", "aten.gather", "aten.take_along_dim")
def index(walk: Walk, op: Op) -> None:
    """Entries picked by number: the indexed axes keep their size, the others pass."""
    x_value, out = op.args[0], op.outputs[0]
    x = walk.info(x_value)
    base = ".".join(op.name.split(".")[:2])
    does = "picks entries of it by number"
    axes: list[Axis]
    if base == "aten.index_select":
        (dim,) = _dims(op.args[1], len(x.axes))
        walk.freeze([x.axes[dim]], does)
        axes = _replace(x.axes, dim, Fixed(out.shape[dim]))
    elif base in ("aten.gather", "aten.take_along_dim"):
        for value in op.inputs():
            walk.freeze(walk.info(value).axes, does)
        axes = list(walk.fixed(out))
    else:
        given: list[Value | None] = list(op.args[1])
        indexed = [d for d, v in enumerate(given) if v is not None]
        walk.freeze([x.axes[d] for d in indexed], does)
        kept = [a for d, a in enumerate(x.axes) if d not in indexed]
        adjacent = indexed == list(range(indexed[0], indexed[-1] + 1)) if indexed else True
        at = indexed[0] if indexed and adjacent else 0
        picked = len(out.shape) - len(kept)
        axes = [*kept[:at], *(Fixed(n) for n in out.shape[at : at + picked]), *kept[at:]]
    walk.even(axes)
    walk.set(out, axes, x.scale, constant=x.constant)


@register_rule("aten.pad", "aten.constant_pad_nd", "aten.reflection_pad1d", "aten.reflection_pad2d",
               "aten.replication_pad1d", "aten.replication_pad2d", "aten.zero_pad2d")  # fmt: skip
def pad(walk: Walk, op: Op) -> None:
    """Fixed entries before and after; reflected ones only where the axis does not grow."""
    x, out = walk.info(next(op.inputs())), op.outputs[0]
    amounts = list(op.args[1])
    mode = op.args[2] if op.name.startswith("aten.pad") and len(op.args) > 2 else "constant"
    fill = _argument(op, 3 if op.name.startswith("aten.pad") else 2, "value", 0) or 0
    constant = mode == "constant" and "constant" in f"{op.name} {mode}"
    axes = list(x.axes)
    for k in range(len(amounts) // 2):
        d = len(axes) - 1 - k
        before, after = amounts[2 * k : 2 * k + 2]
        if before == after == 0:
            continue
        if not constant or before < 0 or after < 0:
            walk.freeze([axes[d]], "pads or crops it")
            axes[d] = Fixed(out.shape[d])
        elif walk.has_width(axes[d]):
            axes[d] = Concat((Fixed(before), axes[d], Fixed(after)))
        else:
            axes[d] = Fixed(out.shape[d])
    scale = x.scale if fill == 0 else walk.demand(x)
    walk.even(axes)
    walk.set(out, axes, scale, constant=x.constant)


@register_rule("aten.roll", "aten.flip")
def roll(walk: Walk, op: Op) -> None:
    """Entries change places along some axes, which therefore keep their size."""
    x, out = walk.info(next(op.inputs())), op.outputs[0]
    given = _argument(op, 2 if op.name.startswith("aten.roll") else 1, "dims", []) or []
    dims = _dims(given, len(x.axes)) if given != [] else list(range(len(x.axes)))
    walk.freeze([x.axes[d] for d in dims], "shifts its entries")
    walk.set(out, x.axes, x.scale, constant=x.constant)


@register_rule("aten.pixel_shuffle", "aten.pixel_unshuffle", "aten.channel_shuffle")
def shuffle(walk: Walk, op: Op) -> None:
    """Channels to space and back; channel shuffle swaps the two factors of the channel axis."""
    x, out = walk.info(next(op.inputs())), op.outputs[0]
    at = len(x.axes) - 3 if "pixel" in op.name else 1
    r = int(op.args[1])
    axes = list(x.axes)
    if op.name.startswith("aten.pixel_shuffle"):
        channels, block = walk.factor(axes[at], out.shape[at])
        walk.freeze([block, *axes[at + 1 :]], "spreads it over space")
        axes = [*axes[:at], channels, *(Fixed(n) for n in out.shape[at + 1 :])]
    elif op.name.startswith("aten.pixel_unshuffle"):
        walk.freeze(axes[at + 1 :], "folds it into channels")
        channels = Product((axes[at], Fixed(r * r)))
        axes = [*axes[:at], channels, *(Fixed(n) for n in out.shape[at + 1 :])]
    else:
        groups, inner = walk.factor(axes[at], r)
        walk.freeze([groups], "shuffles this fixed number of groups")
        axes[at] = Product((inner, groups))
    walk.even(axes)
    walk.set(out, axes, x.scale, constant=x.constant)


@register_rule("aten.zeros", "aten.ones", "aten.full", "aten.empty", "aten.new_zeros", "aten.new_ones",
               "aten.new_full", "aten.new_empty")  # fmt: skip
def constant_fill(walk: Walk, op: Op) -> None:
    """A constant of a shape that the model's code computes: it may follow any width it is used with."""
    out = op.outputs[0]
    axes = [walk.unifier.fresh(n) for n in out.shape]
    scale = walk.demand()
    walk.set(out, axes, scale, constant=True)


@register_rule("aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.empty_like")
def constant_like(walk: Walk, op: Op) -> None:
    """A constant of the shape of its input."""
    x = walk.info(next(op.inputs()))
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
