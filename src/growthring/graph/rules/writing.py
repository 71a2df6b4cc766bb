"""Operators that write into part of a tensor: scatter, index_add, index_put, slices, fills; and branches."""

from __future__ import annotations

from typing import Any

import torch

from growthring.core.axes import Concat, Fixed
from growthring.graph.rules.elementwise import broadcast
from growthring.graph.rules.records import Info
from growthring.graph.rules.registry import register_rule
from growthring.graph.rules.selection import follows_index, picked_axes
from growthring.graph.rules.structure import axis_numbers
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op, Value

_DOES = "writes entries of it by number"


@register_rule("growthring.write")
def write(walk: Walk, op: Op) -> None:
    """(parent, view of it, new content of the view) -> parent: see `growthring.graph.memory`."""
    parent, view, content = (walk.info(v) for v in op.args)
    for a, b in zip(view.axes, content.axes, strict=True):
        walk.same(a, b)
    is_whole = op.args[1].shape == op.args[0].shape
    scale = content.scale if is_whole else walk.carry(parent, content)
    constant = content.constant and (parent.constant or is_whole)
    walk.set(op.outputs[0], parent.axes, scale, constant=constant)


@register_rule("growthring.either")
def either(walk: Walk, op: Op) -> None:
    """The result of one of two branches, chosen by a condition."""
    condition, a, b = (walk.info(v) for v in op.args)
    walk.freeze(condition.axes, "branches on it")
    walk.need_one(condition.scale)
    for left, right in zip(a.axes, b.axes, strict=True):
        walk.same(left, right)
    walk.set(op.outputs[0], a.axes, walk.carry(a, b), constant=a.constant and b.constant)


@register_rule("aten.copy")
def copy(walk: Walk, op: Op) -> None:
    """The second tensor, repeated to the shape of the first."""
    x, source = walk.info(op.args[0]), walk.info(op.args[1])
    axes, spans = broadcast(walk, op.outputs[0], [x, source])
    walk.even(axis for axis, spanned in zip(axes, spans[1], strict=True) if not spanned)
    walk.set(op.outputs[0], axes, source.scale, constant=source.constant)


@register_rule("aten.zero", "aten.fill")
def fill(walk: Walk, op: Op) -> None:
    """Every entry becomes one number; zeros have any scale and any parity."""
    x, out = walk.info(op.args[0]), op.outputs[0]
    every = range(len(x.axes))
    if op.name.startswith("aten.zero") or op.args[1] == 0:
        walk.set(out, x.axes, walk.new_scale(), constant=True, repeated=every)
        return
    numbers = [walk.info(v) for v in list(op.inputs())[1:]]
    walk.even(x.axes)
    constant = all(i.constant for i in numbers)
    walk.set(out, x.axes, walk.demand(*numbers), constant=constant, repeated=every)


@register_rule("aten.slice_scatter", "aten.select_scatter", sizes=True)
def slice_scatter(walk: Walk, op: Op) -> None:
    """One segment, or one entry, of an axis is replaced."""
    x_value, out = op.args[0], op.outputs[0]
    x, source = walk.info(x_value), walk.info(op.args[1])
    (dim,) = axis_numbers(op.arg(2, "dim", 0), len(x.axes))
    axes, others = list(x.axes), list(source.axes)
    if op.name.startswith("aten.select"):
        walk.freeze([axes[dim]], "replaces one entry of it")
        others.insert(dim, axes[dim])
    else:
        total, length = x_value.shape[dim], op.args[1].shape[dim]
        start = op.arg(3, "start", 0) or 0
        start = min(start + total if start < 0 else start, total)
        if op.arg(5, "step", 1) != 1:
            walk.freeze([axes[dim], others[dim]], "replaces some entries of it")
        elif length != total:
            before, rest = walk.cut(axes[dim], start)
            part, after = walk.cut(rest, length)
            walk.same(part, others[dim])
            axes[dim] = Concat((before, part, after))
        else:
            walk.same(axes[dim], others[dim])
    for d, (a, b) in enumerate(zip(axes, others, strict=True)):
        if d != dim:
            walk.same(a, b)
    scale = walk.carry(x, source)
    walk.set(out, axes, scale, constant=x.constant and source.constant)


def _reduction(op: Op) -> str:
    """How entries that meet are combined: "" (the last one stays), sum, mean, prod, amax, amin, …."""
    base = op.base.removesuffix("_")
    if base in ("aten.index_add", "aten.scatter_add"):
        return "sum"
    given = [a for a in (*op.args, *op.kwargs.values()) if isinstance(a, str)]
    return {"add": "sum", "multiply": "prod"}.get(given[0], given[0]) if given else ""


def _combined(walk: Walk, op: Op, x: Info, others: list[Info]) -> int:
    """Scale of the result; sums, means and replacements are linear, all else needs equal halves of a pair."""
    how = _reduction(op)
    if how not in ("", "sum", "mean"):
        walk.even(x.axes)
    numbers = [a for a in op.args[3:4] if isinstance(a, (int, float)) and a != 0]
    return walk.demand(x, *others) if how == "prod" or numbers else walk.carry(x, *others)


@register_rule("aten.index_add", "aten.index_copy", "aten.index_fill", "aten.index_reduce")
def index_add(walk: Walk, op: Op) -> None:
    """Rows of another tensor written to, or added to, the numbered entries of one axis."""
    x, indices = walk.info(op.args[0]), walk.info(op.args[2])
    (dim,) = axis_numbers(op.args[1], len(x.axes))
    walk.freeze([x.axes[dim], *indices.axes], _DOES)
    others: list[Info] = []
    if op.name.startswith("aten.index_fill"):
        walk.even(x.axes)
        others = [walk.info(v) for v in op.args[3:4] if isinstance(v, Value)]
    else:
        source = walk.info(op.args[3])
        others = [source]
        for d, (a, b) in enumerate(zip(x.axes, source.axes, strict=True)):
            if d == dim:
                walk.freeze([b], _DOES)
            else:
                walk.same(a, b)
    constant = x.constant and all(i.constant for i in others)
    walk.set(op.outputs[0], x.axes, _combined(walk, op, x, others), constant=constant)


@register_rule("aten.scatter", "aten.scatter_add", "aten.scatter_reduce")
def scatter(walk: Walk, op: Op) -> None:
    """Entries written along one axis; the others pass where the index is the same all along them."""
    x, indices = walk.info(op.args[0]), walk.info(op.args[2])
    (dim,) = axis_numbers(op.args[1], len(x.axes))
    given: Any = op.arg(3, "src", op.kwargs.get("value"))
    others = [walk.info(given)] if isinstance(given, Value) else []
    for d, axis in enumerate(x.axes):
        beside = [i.axes[d] for i in (indices, *others)]
        n = walk.size(axis)
        fits = all(walk.size(a) == n for a in beside)
        if d != dim and fits and follows_index(walk, indices, d, n):
            for other in beside:
                walk.same(axis, other)
        else:
            walk.freeze([axis, *beside], _DOES)
    if not others:
        walk.even(x.axes)
    constant = x.constant and all(i.constant for i in others)
    walk.set(op.outputs[0], x.axes, _combined(walk, op, x, others), constant=constant)


@register_rule("aten.index_put", "aten._unsafe_index_put", "aten._index_put_impl")
def index_put(walk: Walk, op: Op) -> None:
    """x[indices] = values, or += with accumulate: the indexed axes keep their size, the others pass."""
    x, values, given = walk.info(op.args[0]), walk.info(op.args[2]), list(op.args[1])
    out = op.outputs[0]
    masks = [v for v in given if v is not None and v.dtype in (torch.bool, torch.uint8)]
    if masks and len(given) == 1 and not values.axes:  # x[mask] = number
        mask = walk.info(masks[0])
        for a, b in zip(x.axes, mask.axes, strict=False):
            walk.same(a, b)
        walk.even(x.axes)
        walk.set(out, x.axes, walk.demand(x, mask, values), constant=x.constant)
        return
    if masks:
        raise NotImplementedError("several values through a mask")
    for value in given:
        if value is not None:
            walk.freeze(walk.info(value).axes, "writes entries with it")
    axes = picked_axes(walk, x, given, _DOES)
    target = Value(tuple(walk.size(a) for a in axes), out.dtype)
    _, spans = broadcast(walk, target, [Info(tuple(axes), x.scale), values])
    walk.even(axis for axis, spanned in zip(axes, spans[1], strict=True) if not spanned)
    walk.set(out, x.axes, walk.carry(x, values), constant=x.constant and values.constant)


@register_rule("aten.segment_reduce")
def segment_reduce(walk: Walk, op: Op) -> None:
    """Runs of entries of one axis combined into one each; the later axes pass."""
    x, out = walk.info(op.args[0]), op.outputs[0]
    dim = int(op.arg(5, "axis", 0))
    for value in list(op.inputs())[1:]:
        walk.freeze(walk.info(value).axes, "cuts runs with it")
    walk.freeze(x.axes[: dim + 1], "combines runs of it")
    axes = [*(Fixed(n) for n in out.shape[: dim + 1]), *x.axes[dim + 1 :]]
    if op.args[1] not in ("sum", "mean"):
        walk.even(axes)
    walk.set(out, axes, walk.demand(x), constant=x.constant)
