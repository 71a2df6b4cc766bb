"""Sums of products over any axes: einsum, tensordot, outer, bilinear."""

from __future__ import annotations

from collections.abc import Sequence

from growthring.core.axes import Axis
from growthring.graph.rules.records import Info
from growthring.graph.rules.registry import register_rule
from growthring.graph.rules.structure import axis_numbers
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op, Value

Labels = tuple[str, ...]


@register_rule("aten.einsum")
def einsum(walk: Walk, op: Op) -> None:
    """Letters shared by operands and gone from the result are contracted; all others pass."""
    values: list[Value] = list(op.args[1])
    terms, result = parse(str(op.args[0]), [len(v.shape) for v in values])
    sum_of_products(walk, op, terms, result)


def parse(equation: str, dims: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of every operand's axes and of the result's.

    Those under an ellipsis are ...0, ...1 and so on, from the right.

    >>> parse("...i, io -> ...o", [3, 2])
    ([('...1', '...0', 'i'), ('i', 'o')], ('...1', '...0', 'o'))
    >>> parse("ij,jk", [2, 2])
    ([('i', 'j'), ('j', 'k')], ('i', 'k'))
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = [_labels(term, n) for term, n in zip(left.split(","), dims, strict=True)]
    rest = {label for term in terms for label in term if label.startswith("...")}
    longest = tuple(sorted(rest, key=lambda label: -int(label[3:])))
    if arrow:
        before, dots, after = right.partition("...")
        return terms, (*before, *(longest if dots else ()), *after)
    every = [label for term in terms for label in term if label not in rest]
    return terms, (*longest, *sorted(label for label in every if every.count(label) == 1))


def _labels(term: str, ndim: int) -> Labels:
    before, dots, after = term.partition("...")
    hidden = ndim - len(before) - len(after) if dots else 0
    return (*before, *(f"...{k}" for k in reversed(range(hidden))), *after)


def sum_of_products(walk: Walk, op: Op, terms: Sequence[Labels], result: Labels) -> None:
    """Joins, contracts or freezes the axes of each label and gives the output its axes."""
    infos = [walk.info(v) for v in op.inputs()]
    places: dict[str, list[tuple[Info, int]]] = {}
    doubled = {label for term in terms for label in term if term.count(label) > 1}
    for info, term in zip(infos, terms, strict=True):
        for i, label in enumerate(term):
            places.setdefault(label, []).append((info, i))
    axes: dict[str, Axis] = {}
    for label, members in places.items():
        most = max(walk.size(info.axes[i]) for info, i in members)
        members = [(info, i) for info, i in members if walk.size(info.axes[i]) == most]
        axes[label] = members[0][0].axes[members[0][1]]
        if label in doubled:
            walk.freeze([info.axes[i] for info, i in members], "takes a diagonal of it")
        else:
            _join(walk, members, label in result)
            if label in result and sum(info.use is None for info, _ in members) > 1:
                walk.side_by_side([axes[label]])
    walk.set(op.outputs[0], [axes[label] for label in result], product_scale(walk, infos))


def _join(walk: Walk, members: list[tuple[Info, int]], stays: bool) -> None:
    """All axes of one label. A sum over three or more takes all but one of them as one product."""
    axes = [info.axes[i] for info, i in members]
    if stays:
        for axis in axes[1:]:
            walk.same(axes[0], axis)
            walk.even(axes)
        return
    if len(members) == 1:
        walk.freeze(axes, "sums over it alone, where a fade does not reach (x.sum is faded)")
        return
    members = sorted(members, key=lambda item: item[0].use is not None)
    *others, (last, i) = members
    first, j = others[0]
    for info, k in others[1:]:
        walk.same(first.axes[j], info.axes[k])
    if len(others) > 1:
        walk.even([first.axes[j]])
    walk.contract(last, i, first, j)


def product_scale(walk: Walk, infos: Sequence[Info]) -> int:
    """Scale of a sum of products; each parameter in it is a weight."""
    weights = [i for i in infos if i.use is not None]
    rest = [i for i in infos if i.use is None]
    if len(infos) == 1:
        return walk.carry(*infos)
    if not rest:
        for weight in weights:
            if weight.use is not None:
                weight.use.kind = "weight"
        rest, weights = weights, []
    total = rest[0]
    for info in rest[1:]:
        total = Info((), walk.multiply(total, info))
    for weight in weights:
        total = Info((), walk.transform(total, weight))
    return total.scale


@register_rule("aten.tensordot", "aten.outer", "aten.ger", "aten.inner")
def tensordot(walk: Walk, op: Op) -> None:
    """Sums over some axes of the one against some of the other; what is left stands side by side."""
    a, b = (
        [f"{side}{i}" for i in range(len(v.shape))]
        for side, v in zip("ab", op.args[:2], strict=True)
    )
    pairs: list[tuple[int, int]] = []
    if op.name.startswith("aten.tensordot"):
        left, right = (axis_numbers(d, len(n)) for d, n in zip(op.args[2:4], (a, b), strict=True))
        pairs = list(zip(left, right, strict=True))
    elif op.name.startswith("aten.inner"):
        pairs = [(len(a) - 1, len(b) - 1)]
    for i, j in pairs:
        a[i] = b[j] = f"sum{i}"
    result = [label for label in (*a, *b) if not label.startswith("sum")]
    sum_of_products(walk, op, [tuple(a), tuple(b)], tuple(result))


@register_rule("aten.bilinear")
def bilinear(walk: Walk, op: Op) -> None:
    """y[…, o] = Σ_ij x[…, i] W[o, i, j] z[…, j] + b[o]: both inputs may grow, together or apart."""
    x, z, weight = (walk.info(v) for v in op.args[:3])
    bias = op.arg(3, "bias")
    for i, given in ((1, x), (2, z)):
        walk.contract(weight, i, given, len(given.axes) - 1)
        walk.attribute(f"in{i}_features", given.axes[-1])
    for a, b in zip(x.axes[:-1], z.axes[:-1], strict=True):
        walk.same(a, b)
    walk.even(x.axes[:-1])
    scale = walk.transform(Info((), walk.multiply(x, z)), weight)
    if bias is not None:
        walk.add_bias(walk.info(bias), weight.axes[0], scale)
    walk.attribute("out_features", weight.axes[0])
    walk.set(op.outputs[0], [*x.axes[:-1], weight.axes[0]], scale)
