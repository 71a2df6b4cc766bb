"""Operators that join, cut and pick entries: cat, stack, split, slice, select, index, pad, shuffle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from growthring.core.axes import Axis, Concat, Fixed, Product
from growthring.graph.rules.records import Info
from growthring.graph.rules.registry import register_rule
from growthring.graph.rules.structure import axis_numbers
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op, Value


@register_rule("aten.cat", "aten.concat", "aten.concatenate")
def cat(walk: Walk, op: Op) -> None:
    """Segments one after the other; every other axis is shared."""
    out = op.outputs[0]
    (dim,) = axis_numbers(op.arg(1, "dim", 0), len(out.shape))
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
    (dim,) = axis_numbers(op.arg(1, "dim", 0), len(out.shape))
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


@register_rule(
    "aten.split", "aten.split_with_sizes", "aten.chunk", "aten.tensor_split", "aten.unsafe_chunk",
    entries="some", sizes=True,
)  # fmt: skip
def split(walk: Walk, op: Op) -> None:
    """An axis falls into segments."""
    x = walk.info(next(op.inputs()))
    (dim,) = axis_numbers(op.arg(2, "dim", 0), len(x.axes))
    parts: list[Axis] = []
    start = 0
    for value in op.outputs:
        parts.append(_segment(walk, x.axes[dim], start, value.shape[dim]))
        start += value.shape[dim]
        if "sizes" not in op.name and value.shape[dim] == op.outputs[0].shape[dim]:
            walk.tie(parts[0], parts[-1])  # one number in the code for all
    # Segments of a parameter (queries, keys, values) may be rescaled by themselves.
    of_parameter = walk.take_apart(x, dim, parts)
    for k, (value, part) in enumerate(zip(op.outputs, parts, strict=True)):
        label = f"{x.label}#{k}" if of_parameter else ""
        source = x.source or None
        walk.set(value, _replace(x.axes, dim, part), x.scale, x, source, x.constant, label=label)


@register_rule("aten.slice", "aten.narrow", entries="some", sizes=True)
def slice_(walk: Walk, op: Op) -> None:
    """One segment of an axis."""
    x_value, out = next(op.inputs()), op.outputs[0]
    x = walk.info(x_value)
    (dim,) = axis_numbers(op.arg(1, "dim", 0), len(x.axes))
    length, total = out.shape[dim], x_value.shape[dim]
    start = op.arg(2, "start", 0) or 0
    step = op.arg(4, "step", 1) if op.name.startswith("aten.slice") else 1
    start = start + total if start < 0 else start
    if length == total:
        part = x.axes[dim]
    elif step != 1:
        walk.freeze([x.axes[dim]], f"takes every {step}th entry of it")
        part = Fixed(length)
    else:
        part = _segment(walk, x.axes[dim], min(start, total), length)
    walk.set(out, _replace(x.axes, dim, part), x.scale, x, x.source or None, x.constant)


@register_rule("aten.select", sizes=True)
def select(walk: Walk, op: Op) -> None:
    """One entry of an axis."""
    x, out = walk.info(next(op.inputs())), op.outputs[0]
    (dim,) = axis_numbers(op.args[1], len(x.axes))
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
    (dim,) = axis_numbers(op.arg(1, "dim", 0), len(x.axes))
    stacked = x.stack is not None and x.stack[0] == dim
    if not stacked:
        walk.freeze([x.axes[dim]], "takes its entries apart")
    axes = tuple(a for d, a in enumerate(x.axes) if d != dim)
    for k, value in enumerate(op.outputs):
        slices = x.stack[1][k] if stacked and x.stack is not None else axes
        walk.set(value, slices, x.scale, constant=x.constant)


@register_rule("aten.index", "aten._unsafe_index", "aten.index_select")
def index(walk: Walk, op: Op) -> None:
    """Entries picked by number: the indexed axes keep their size, the others pass."""
    x_value, out = op.args[0], op.outputs[0]
    x = walk.info(x_value)
    base = op.base
    does = "picks entries of it by number"
    axes: list[Axis]
    if base == "aten.index_select":
        (dim,) = axis_numbers(op.args[1], len(x.axes))
        walk.freeze([x.axes[dim]], does)
        axes = _replace(x.axes, dim, Fixed(out.shape[dim]))
    else:
        axes = picked_axes(walk, x, op.args[1], does)
    for value in list(op.inputs())[1:]:
        walk.freeze(walk.info(value).axes, "picks entries with it")
    walk.even(axes)
    walk.set(out, axes, x.scale, constant=x.constant)


def picked_axes(walk: Walk, x: Info, given: Sequence[Value | None], does: str) -> list[Axis]:
    """The axes of x[given]: those indexed by number keep their size and are replaced by those of the indices."""
    if any(v is not None and v.dtype in (torch.bool, torch.uint8) for v in given):
        raise NotImplementedError("indexing by a mask")
    indexed = [d for d, v in enumerate(given) if v is not None]
    walk.freeze([x.axes[d] for d in indexed], does)
    kept = [a for d, a in enumerate(x.axes) if d not in indexed]
    adjacent = indexed == list(range(indexed[0], indexed[-1] + 1)) if indexed else True
    at = indexed[0] if indexed and adjacent else 0
    shape = torch.broadcast_shapes(*(v.shape for v in given if v is not None))
    return [*kept[:at], *(Fixed(n) for n in shape), *kept[at:]]


def follows_index(walk: Walk, index: Info, d: int, n: int) -> bool:
    """Whether axis d of an index tensor only repeats one column, so that the axis beside it may grow."""
    return d in index.repeated and walk.size(index.axes[d]) == n


@register_rule("aten.gather", "aten.take_along_dim")
def gather(walk: Walk, op: Op) -> None:
    """Entries picked along one axis; the others pass where the index is the same all along them."""
    out = op.outputs[0]
    is_gather = op.name.startswith("aten.gather")
    x, indices = (walk.info(op.args[i]) for i in ((0, 2) if is_gather else (0, 1)))
    dim = op.args[1] if is_gather else op.arg(2, "dim")
    does = "picks entries of it by number"
    if dim is None:
        walk.freeze([*x.axes, *indices.axes], does)
        walk.set(out, walk.fixed(out), x.scale, constant=x.constant)
        return
    axes: list[Axis] = []
    for d, n in enumerate(out.shape):
        whole = walk.size(x.axes[d]) == n
        is_broadcast = not is_gather and walk.size(indices.axes[d]) == 1
        if d != dim % len(out.shape) and whole and is_broadcast:
            axes.append(x.axes[d])
        elif d != dim % len(out.shape) and whole and follows_index(walk, indices, d, n):
            walk.same(x.axes[d], indices.axes[d])
            axes.append(x.axes[d])
        else:
            walk.freeze([x.axes[d], indices.axes[d]], does)
            axes.append(Fixed(n))
    walk.set(out, axes, x.scale, constant=x.constant)


@register_rule("aten.pad", "aten.constant_pad_nd", "aten.reflection_pad1d", "aten.reflection_pad2d",
               "aten.replication_pad1d", "aten.replication_pad2d", "aten.zero_pad2d", sizes=True)  # fmt: skip
def pad(walk: Walk, op: Op) -> None:
    """Fixed entries before and after; reflected ones only where the axis does not grow."""
    x, out = walk.info(next(op.inputs())), op.outputs[0]
    amounts = list(op.args[1])
    mode = op.arg(2, "mode", "constant") if op.base == "aten.pad" else "constant"
    fill = op.arg(3 if op.name.startswith("aten.pad") else 2, "value", 0) or 0
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
    given = op.arg(2 if op.name.startswith("aten.roll") else 1, "dims", []) or []
    dims = axis_numbers(given, len(x.axes)) if given != [] else list(range(len(x.axes)))
    walk.freeze([x.axes[d] for d in dims], "shifts its entries")
    walk.set(out, x.axes, x.scale, constant=x.constant)


@register_rule("aten.pixel_shuffle", "aten.pixel_unshuffle", "aten.channel_shuffle", sizes=True)
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
