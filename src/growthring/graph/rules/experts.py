"""Mixtures of experts: tokens picked or sorted by expert, one matrix for each. The number of experts stays."""

from __future__ import annotations

import torch

from growthring.core.axes import Axis, Fixed
from growthring.graph.rules.records import Info
from growthring.graph.rules.registry import register_rule
from growthring.graph.rules.selection import index
from growthring.graph.rules.walk import Walk
from growthring.graph.rules.writing import index_put
from growthring.graph.trace import Op, Value

_MASKS = (torch.bool, torch.uint8)


@register_rule("aten._grouped_mm", "growthring.grouped_mm", "transformers.grouped_mm_fallback")
def grouped_mm(walk: Walk, op: Op) -> None:
    """A · b in groups: `offs` says where each group of the one flat axis ends.

    a[s, k] · b[e, k, n] -> [s, n] is the usual one: rows s in groups, one matrix for each. With a[e, m, k] ·
    b[k, s] -> [m, s] the columns are in groups, with a[m, s] · b[s, n] -> [e, m, n] what is summed over;
    a[e, m, k] · b[e, k, n] is an ordinary batch.
    """
    a, b = walk.info(op.args[0]), walk.info(op.args[1])
    (*a_groups, rows, a_inner), (*b_groups, b_inner, columns) = a.axes, b.axes
    grouped = "takes it apart into groups, one for each expert"
    walk.freeze([*a_groups, *b_groups], "has one entry of it for each expert")
    out: list[Axis] = [*(a_groups if len(a_groups) == len(b_groups) else ()), rows, columns]
    if not a_groups and not b_groups:
        walk.freeze([a_inner, b_inner], grouped)
        out = [*walk.fixed(op.outputs[0])[:1], rows, columns]
    else:
        walk.freeze([columns] if a_groups and not b_groups else [], grouped)
        walk.freeze([rows] if b_groups and not a_groups else [], grouped)
        if b.use is not None:
            walk.contract(b, len(b.axes) - 2, a, len(a.axes) - 1)
        else:
            walk.contract(a, len(a.axes) - 1, b, len(b.axes) - 2)
    # torch's kernel takes rows of whole 16 bytes only, in whichever order they lie
    for axis in (rows, a_inner, columns):
        walk.multiple(axis, 16 // op.args[0].dtype.itemsize)
    scale = _scale(walk, a, b)
    bias = op.arg(3, "bias")
    if isinstance(bias, Value):
        walk.add_bias(walk.info(bias), columns, scale)
    walk.set(op.outputs[0], out, scale)


def _scale(walk: Walk, a: Info, b: Info) -> int:
    if (a.use is None) == (b.use is None):
        return walk.multiply(a, b)
    return walk.transform(a, b) if b.use is not None else walk.transform(b, a)


@register_rule("aten.histc", "aten.bincount")
def count(walk: Walk, op: Op) -> None:
    """How many entries fall into each bin: nothing of that follows a width."""
    _without_widths(walk, op, "counts its entries")


@register_rule("aten.nonzero", "aten.nonzero_numpy", "aten.where.default")
def positions(walk: Walk, op: Op) -> None:
    """Where the entries are that are not zero."""
    _without_widths(walk, op, "numbers its entries")


def _without_widths(walk: Walk, op: Op, does: str) -> None:
    infos = [walk.info(v) for v in op.inputs()]
    for info in infos:
        walk.freeze(info.axes, does)
    for out in op.outputs:
        walk.set(out, walk.fixed(out), walk.demand(*infos), constant=all(i.constant for i in infos))


def _leading_index(op: Op) -> tuple[Value, int] | None:
    """The index and how many axes it picks from, where only the first axes are indexed, by one tensor."""
    first, *others = op.args[1]
    if first is None or any(v is not None for v in others):
        return None
    return first, len(first.shape) if first.dtype in _MASKS else 1


@register_rule("aten.index.Tensor")
def pick(walk: Walk, op: Op) -> None:
    """x[mask] and weights[expert of each token]; everything else is for the general rule."""
    x, out, leading = walk.info(op.args[0]), op.outputs[0], _leading_index(op)
    is_matrix = len(x.axes) > 2 and x.use is not None
    if leading is None or not (is_matrix or leading[0].dtype in _MASKS):
        index(walk, op)
        return
    by, num_indexed = leading
    walk.freeze(x.axes[:num_indexed], "picks entries of it by number")
    walk.freeze(walk.info(by).axes, "picks entries with it")
    picked = len(out.shape) - (len(x.axes) - num_indexed)
    axes = [*(Fixed(n) for n in out.shape[:picked]), *x.axes[num_indexed:]]
    source = [*([None] * picked), *x.source[num_indexed:]] if x.use is not None else None
    walk.set(out, axes, x.scale, x, source, x.constant)


@register_rule("aten.index_put.default", "aten.index_put_.default")
def put(walk: Walk, op: Op) -> None:
    """x[mask] = values, one for each entry picked; everything else is for the general rule."""
    x, values, leading = walk.info(op.args[0]), walk.info(op.args[2]), _leading_index(op)
    rest = x.axes[leading[1] :] if leading is not None else ()
    if leading is None or leading[0].dtype not in _MASKS or len(values.axes) != 1 + len(rest):
        index_put(walk, op)
        return
    walk.freeze(x.axes[: leading[1]], "writes entries of it by number")
    walk.freeze(walk.info(leading[0]).axes, "writes entries with it")
    for a, b in zip(rest, values.axes[1:], strict=True):
        walk.same(a, b)
    constant = x.constant and values.constant
    walk.set(op.outputs[0], x.axes, walk.carry(x, values), constant=constant)
