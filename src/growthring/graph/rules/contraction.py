"""Operators that sum products over an axis: linear, convolution, matrix products, einsum, attention, embedding."""

from __future__ import annotations

from growthring.core.axes import Axis, Fixed, Product
from growthring.graph.rules.elementwise import broadcast
from growthring.graph.rules.records import Info
from growthring.graph.rules.registry import register_rule
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op, Value


@register_rule("aten.linear")
def linear(walk: Walk, op: Op) -> None:
    """y[…, o] = Σ_i x[…, i] W[o, i] + b[o]."""
    x, weight = walk.info(op.args[0]), walk.info(op.args[1])
    bias = op.arg(2, "bias")
    walk.contract(weight, len(weight.axes) - 1, x, len(x.axes) - 1)
    axes = [*x.axes[:-1], *weight.axes[:-1]]
    scale = walk.transform(x, weight)
    if bias is not None:
        walk.add_bias(walk.info(bias), axes[-1], scale)
    walk.attribute("in_features", x.axes[-1])
    walk.attribute("out_features", axes[-1])
    walk.set(op.outputs[0], axes, scale)


@register_rule("aten.conv1d", "aten.conv2d", "aten.conv3d", sizes=True)
def convolution(walk: Walk, op: Op) -> None:
    """W[o, i/groups, k, …]; groups are an outer factor of both channel axes."""
    groups = op.arg(6, "groups", 1)
    _convolution(walk, op, int(groups), transposed=False)


@register_rule(
    "aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d", sizes=True
)
def transposed_convolution(walk: Walk, op: Op) -> None:
    """W[i, o/groups, k, …]."""
    groups = op.arg(6, "groups", 1)
    _convolution(walk, op, int(groups), transposed=True)


@register_rule("aten.convolution", sizes=True)
def any_convolution(walk: Walk, op: Op) -> None:
    """The general form, with `transposed` and `groups` as its 7th and 9th arguments."""
    _convolution(walk, op, int(op.args[8]), transposed=bool(op.args[6]))


def _convolution(walk: Walk, op: Op, groups: int, transposed: bool) -> None:
    x, weight = walk.info(op.args[0]), walk.info(op.args[1])
    bias = op.arg(2, "bias")
    out = op.outputs[0]
    channel = len(x.axes) - (len(weight.axes) - 2) - 1
    walk.freeze(x.axes[channel + 1 :], "slides a kernel over it")
    walk.freeze(weight.axes[2:], "slides this kernel over space", "kernel")
    if weight.use is not None:
        weight.use.kernel.update(range(2, len(weight.axes)))
    if groups == 1:
        read, written = (0, 1) if transposed else (1, 0)
        walk.contract(weight, read, x, channel)
        channels: Axis = weight.axes[written]
    else:
        x_group, x_inner = walk.factor(x.axes[channel], groups)
        w_group, w_inner = walk.factor(weight.axes[0], groups)
        walk.same(x_group, w_group)
        walk.even([x_group])
        if transposed:
            walk.opposite(x_inner, w_inner)
            if weight.use is not None:
                weight.use.inner = w_inner
            channels = Product((w_group, weight.axes[1]))
        else:
            inner = Info((*x.axes[:channel], x_inner, *x.axes[channel + 1 :]), x.scale)
            walk.contract(weight, 1, inner, channel)
            channels = weight.axes[0]
        walk.attribute("groups", x_group)
    scale = walk.transform(x, weight)
    if bias is not None:
        walk.add_bias(walk.info(bias), channels, scale)
    walk.attribute("in_channels", x.axes[channel])
    walk.attribute("out_channels", channels)
    space = [Fixed(n) for n in out.shape[channel + 1 :]]
    walk.set(out, [*x.axes[:channel], channels, *space], scale)


def _contraction_scale(walk: Walk, a: Info, b: Info) -> int:
    if b.use is not None and a.use is None:
        return walk.transform(a, b)
    if a.use is not None and b.use is None:
        return walk.transform(b, a)
    for info in (a, b):
        if info.use is not None:
            info.use.kind = "weight"
    return walk.multiply(a, b)


@register_rule("aten.matmul", "aten.mm", "aten.bmm", "aten.mv", "aten.dot", "aten.__matmul__")
def matmul(walk: Walk, op: Op) -> None:
    """a[…, m, k] · b[…, k, n], with vectors and broadcast batch axes."""
    a, b = walk.info(op.args[0]), walk.info(op.args[1])
    out = op.outputs[0]
    walk.set(out, _matmul_axes(walk, a, b, out), _contraction_scale(walk, a, b))


def _matmul_axes(walk: Walk, a: Info, b: Info, out: Value) -> list[Axis]:
    rows = a.axes[-2:-1] if len(a.axes) > 1 else ()
    columns = b.axes[-1:] if len(b.axes) > 1 else ()
    walk.contract(a, len(a.axes) - 1, b, max(len(b.axes) - 2, 0))
    batch_shape = out.shape[: len(out.shape) - len(rows) - len(columns)]
    batch_infos = [Info(i.axes[:-2], i.scale) for i in (a, b)]
    batch, _ = broadcast(walk, Value(batch_shape, out.dtype), batch_infos)
    walk.even(batch)
    if a.use is None and b.use is None:
        walk.side_by_side(batch)
    return [*batch, *rows, *columns]


@register_rule("aten.addmm", "aten.baddbmm", "aten.addmv", factor="alpha")
def addmm(walk: Walk, op: Op) -> None:
    """Bias + a · b."""
    bias, a, b = (walk.info(v) for v in op.args[:3])
    out = op.outputs[0]
    axes = _matmul_axes(walk, a, b, out)
    scale = _contraction_scale(walk, a, b)
    beta, alpha = op.kwargs.get("beta", 1), op.kwargs.get("alpha", 1)
    if alpha != 1:  # the way attention code writes a scaled product
        scale = walk.times_number(scale)
    if beta != 0 and len(bias.axes) == 1 and alpha == beta == 1:
        walk.add_bias(bias, axes[-1], scale)
    elif beta != 0:
        whole = Info(tuple(axes), scale)
        axes, _ = broadcast(walk, out, [whole, bias])
        walk.even(axes)
        scale = walk.carry(whole, bias)
    walk.set(out, axes, scale)


@register_rule("aten.scaled_dot_product_attention", factor="scale", modal=True)
def attention(walk: Walk, op: Op) -> None:
    """softmax(scale · q kᵀ + mask) v over q[…, h, t, d], k[…, h, s, d], v[…, h, s, e].

    New query dims come as (a, a) and new key dims as (b, -b), which is the contraction's opposite
    parity.
    """
    q, k, v = (walk.info(value) for value in op.args[:3])
    mask = op.arg(3, "attn_mask")
    out = op.outputs[0]
    walk.contract(q, len(q.axes) - 1, k, len(k.axes) - 1)
    walk.freeze([k.axes[-2], v.axes[-2], q.axes[-2]], "attends over it")
    walk.same(k.axes[-2], v.axes[-2])
    heads = q.axes[:-2]
    if op.kwargs.get("enable_gqa") and len(heads) and walk.size(heads[-1]) != walk.size(k.axes[-3]):
        kv, rest = walk.factor(heads[-1], walk.size(k.axes[-3]))
        walk.freeze([rest], "shares keys among this many heads")
        walk.same(kv, k.axes[-3])
        walk.same(kv, v.axes[-3])
        walk.even([kv])
        batch_infos = [Info(i.axes[:-3], i.scale) for i in (q, k, v)]
        batch, _ = broadcast(walk, Value(out.shape[:-3], out.dtype), batch_infos)
        batch = [*batch, heads[-1]]
    else:
        batch_infos = [Info(i.axes[:-2], i.scale) for i in (q, k, v)]
        batch, _ = broadcast(walk, Value(out.shape[:-2], out.dtype), batch_infos)
    walk.even(batch)
    walk.side_by_side(batch)
    logits = walk.multiply(q, k)
    scaled = walk.times_number(logits)
    walk.need_one(scaled)
    if isinstance(mask, Value):
        info = walk.info(mask)
        shape = Value((*out.shape[:-1], walk.size(k.axes[-2])), out.dtype)
        grid = Info((*batch, q.axes[-2], k.axes[-2]), v.scale)
        broadcast(walk, shape, [grid, info])
        walk.need_one(info.scale)
    walk.set(out, [*batch, q.axes[-2], v.axes[-1]], v.scale)


@register_rule("aten.embedding", sizes=True)
def embedding(walk: Walk, op: Op) -> None:
    """Rows of a table, picked by number: the rows stay, the columns may grow."""
    weight, indices = walk.info(op.args[0]), walk.info(op.args[1])
    walk.freeze(weight.axes[:1], "looks its rows up by number", "rows")
    walk.attribute("embedding_dim", weight.axes[1])
    padding = op.arg(2, "padding_idx", -1)
    scale = weight.scale
    if weight.use is not None:
        weight.use.kind = "table"
        if isinstance(padding, int) and padding >= 0:
            weight.use.zero_rows.add(padding)
    walk.set(op.outputs[0], [*indices.axes, *weight.axes[1:]], scale)


@register_rule(
    "aten.embedding_bag", "aten._embedding_bag", "aten._embedding_bag_forward_only", sizes=True
)
def embedding_bag(walk: Walk, op: Op) -> None:
    """Sums, means or maxima of rows of a table; the rows stay, the columns may grow."""
    weight, out = walk.info(op.args[0]), op.outputs[0]
    walk.freeze(weight.axes[:1], "looks its rows up by number", "rows")
    for value in list(op.inputs())[1:]:
        walk.freeze(walk.info(value).axes, "picks rows with it")
        walk.need_one(walk.info(value).scale)
    walk.attribute("embedding_dim", weight.axes[1])
    mode = op.arg(4, "mode", 0)
    if mode == 2:  # maxima
        walk.even(weight.axes[1:])
    padding = op.arg(8, "padding_idx")
    if weight.use is not None:
        weight.use.kind = "table"
        if isinstance(padding, int) and padding >= 0:
            weight.use.zero_rows.add(padding)
    walk.set(out, [Fixed(out.shape[0]), weight.axes[1]], weight.scale)
    for value in op.outputs[1:]:  # which rows went where; the last one has a column for each column
        is_wide = len(value.shape) == 2 and value.shape[1] == out.shape[1]
        axes = [Fixed(value.shape[0]), weight.axes[1]] if is_wide else walk.fixed(value)
        walk.set(value, axes, walk.demand(), constant=True)


@register_rule("aten.addbmm")
def addbmm(walk: Walk, op: Op) -> None:
    """Bias + Σ over the batch of a · b."""
    bias, a, b = (walk.info(v) for v in op.args[:3])
    out = op.outputs[0]
    walk.freeze([a.axes[0], b.axes[0]], "sums over it")
    walk.contract(a, 2, b, 1)
    whole = Info((a.axes[1], b.axes[2]), _contraction_scale(walk, a, b))
    axes, spans = broadcast(walk, out, [whole, bias])
    walk.even(axis for axis, spanned in zip(axes, spans[1], strict=True) if not spanned)
    numbers = [op.kwargs.get(name, 1) for name in ("alpha", "beta")]
    scale = walk.carry(whole, bias) if numbers == [1, 1] else walk.demand(whole, bias)
    walk.set(out, axes, scale)
