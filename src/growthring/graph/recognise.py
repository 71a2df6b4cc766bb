"""Recognises norms in a trace, however they are written, by how they answer a scaled input.

`x * rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)` does not change when x is multiplied by a number,
but for ε. Each operator on the way from x has a degree: a square 2, a square root ½, a mean 1, a product the
sum of its factors'. Where the degree comes to 0 after a statistic was taken, what is in between is a
norm: weights in front of it may be rescaled. No name, attribute or layout of the code matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from growthring.graph.trace import Op, Trace, Value

REDUCTIONS = {
    "aten.mean": (1.0,), "aten.sum": (1.0,), "aten.var": (2.0,), "aten.std": (1.0,), "aten.var_mean": (2.0, 1.0),
    "aten.std_mean": (1.0, 1.0), "aten.linalg_vector_norm": (1.0,), "aten.linalg_norm": (1.0,),
    "aten.norm": (1.0,),
}  # fmt: skip
_POWERS = {
    "aten.square": 2.0, "aten.sqrt": 0.5, "aten.rsqrt": -0.5, "aten.reciprocal": -1.0, "aten.abs": 1.0,
    "aten.neg": 1.0,
}  # fmt: skip
_CASTS = (
    "aten.to", "aten._to_copy", "aten.alias", "aten.contiguous", "aten.clone", "aten.detach", "aten.type_as",
    "aten.float", "aten.double", "aten.half", "aten.bfloat16",
)  # fmt: skip
_SHAPES = (
    "aten.expand", "aten.expand_as", "aten.unsqueeze", "aten.squeeze", "aten.view", "aten.reshape",
    "aten.permute", "aten.transpose", "aten.flatten", "aten.unflatten", "aten.broadcast_to",
)  # fmt: skip
_NORMS = ("aten.norm", "aten.linalg_vector_norm", "aten.linalg_norm")
_ALL_BY_DEFAULT = tuple(f"aten.{n}" for n in ("mean", "sum", "nansum", "max", "min", "any", "all"))
_LARGEST_EPS = 1e-2
_MOST_STEPS = 6


@dataclass(frozen=True)
class _Degree:
    """How a value answers a factor on the root, and with which powers it answers numbers in the code."""

    degree: float
    numbers: tuple[tuple[int, float], ...] = ()
    is_reduced: bool = False

    def power(self, p: float) -> _Degree:
        return _Degree(self.degree * p, _scaled(self.numbers, p), self.is_reduced)

    def times(self, other: _Degree, sign: float = 1.0) -> _Degree:
        numbers = dict(self.numbers)
        for key, value in other.numbers:
            numbers[key] = numbers.get(key, 0.0) + sign * value
        kept = tuple((k, v) for k, v in numbers.items() if v)
        degree = self.degree + sign * other.degree
        return _Degree(degree, kept, self.is_reduced or other.is_reduced)


def _scaled(numbers: Iterable[tuple[int, float]], p: float) -> tuple[tuple[int, float], ...]:
    return tuple((key, p * value) for key, value in numbers)


@dataclass
class Norm:
    """A norm in a trace.

    Attributes:
        root: what it normalises.
        ops: its operators, in order.
        numbers: result -> the powers with which factors in the code (by operator) enter into it.
        gains: operator -> a parameter that it multiplies by before the norm is through.
    """

    root: Value
    ops: list[Op]
    numbers: dict[Value, dict[int, float]]
    gains: dict[int, Value]


def _base(op: Op) -> str:
    return ".".join(op.name.split(".")[:2])


def find_norms(trace: Trace) -> dict[int, Norm]:
    """The norms of a trace, by the id of each of their operators."""
    producers = {v: op for op in trace.ops for v in op.outputs}
    order = {id(op): i for i, op in enumerate(trace.ops)}
    found: dict[int, Norm] = {}
    for op in trace.ops:
        if _base(op) not in REDUCTIONS or id(op) in found:
            continue
        for root in _candidates(op, producers):
            norm = _grow_from(trace, root, producers, order)
            if norm is not None and any(o is op for o in norm.ops):
                if not any(id(o) in found for o in norm.ops):
                    found |= {id(o): norm for o in norm.ops}
                break
    return found


def _candidates(op: Op, producers: dict[Value, Op]) -> Iterator[Value]:
    """What a reduction may be normalising: its input, and what that was computed from, nearest first."""
    frontier, seen = [v for v in op.args[:1] if isinstance(v, Value)], set()
    for _ in range(_MOST_STEPS):
        following: list[Value] = []
        for value in frontier:
            if value not in seen:
                seen.add(value)
                yield value
                if value in producers:
                    following += producers[value].inputs()
        frontier = following


def _grow_from(
    trace: Trace, root: Value, producers: dict[Value, Op], order: dict[int, int]
) -> Norm | None:
    """The norm of a value, if its results lose every factor on it and nothing in between is used elsewhere."""
    degrees: dict[Value, _Degree] = {root: _Degree(1.0)}
    gains: dict[int, Value] = {}
    makers: dict[Value, Op] = {}
    ends: dict[Value, _Degree] = {}
    queue, seen = [root], set()
    while queue:
        value = queue.pop(0)
        for op in trace.consumers.get(value, ()):
            if id(op) in seen or not op.outputs:
                continue
            results = _degrees(op, degrees)
            if results is None:
                results = _gained(trace, op, degrees, gains, producers)
            if results is None:
                continue
            seen.add(id(op))
            for out, degree in zip(op.outputs, results, strict=True):
                makers[out] = op
                if degree.degree == 0 and degree.is_reduced:
                    ends[out] = degree
                else:
                    degrees[out] = degree
                    queue.append(out)
    members: dict[int, Op] = {}
    todo = list(ends)
    while todo:
        op = makers[todo.pop()]
        if id(op) not in members:
            members[id(op)] = op
            todo += [v for v in op.inputs() if v in makers]
    if not any(_base(op) in REDUCTIONS for op in members.values()):
        return None
    for op in members.values():
        for out in op.outputs:
            users = [c for c in trace.consumers.get(out, ()) if c.outputs]
            leaks = out in trace.outputs or any(id(c) not in members for c in users)
            if leaks and out not in ends:
                return None
    if any(power != 1 for d in ends.values() for key, power in d.numbers if key in gains):
        return None
    ops = sorted(members.values(), key=lambda op: order[id(op)])
    return Norm(root, ops, {v: dict(d.numbers) for v, d in ends.items()}, gains)


def _gained(
    trace: Trace,
    op: Op,
    known: dict[Value, _Degree],
    gains: dict[int, Value],
    producers: dict[Value, Op],
) -> list[_Degree] | None:
    """The degree of a product with a gain, which is noted."""
    tensors = list(op.inputs())
    outside = [v for v in tensors if v not in known]
    if _base(op) != "aten.mul" or len(tensors) != 2 or len(outside) != 1:
        return None
    if _parameter(trace, outside[0], producers) is None:
        return None
    gains[id(op)] = outside[0]
    x = next(known[v] for v in tensors if v in known)
    return [x.times(_Degree(0.0, ((id(op), 1.0),)))]


def _degrees(op: Op, known: dict[Value, _Degree]) -> list[_Degree] | None:
    """The degrees of an operator's results, or None where it is not homogeneous in what is known."""
    base = _base(op)
    tensors = list(op.inputs())
    inside = [known.get(v) for v in tensors]
    if base in (*_CASTS, *_SHAPES):
        return [inside[0]] * len(op.outputs) if inside[0] is not None else None
    if None in inside:
        return None
    x = inside[0]
    assert x is not None
    if base in REDUCTIONS:
        return [_reduced(x.power(p)) for p in REDUCTIONS[base]][: len(op.outputs)]
    if base in _POWERS:
        return [x.power(_POWERS[base])]
    number = next((a for a in op.args[1:2] if _is_number(a)), None)
    if base == "aten.pow" and number is not None and len(tensors) == 1:
        return [x.power(float(number))]
    if base in ("aten.mul", "aten.div") and "mode" not in str(op.name):
        sign = -1.0 if base == "aten.div" else 1.0
        if len(tensors) == 2 and inside[1] is not None:
            return [x.times(inside[1], sign)]
        if number is not None and number > 0:
            return [x.times(_Degree(0.0, ((id(op), 1.0),)))]
    if base in ("aten.add", "aten.sub") and not op.kwargs:
        if len(tensors) == 2 and inside[1] is not None:
            y = inside[1]
            if y.degree == x.degree and dict(y.numbers) == dict(x.numbers):
                return [x.times(_Degree(0.0, (), y.is_reduced))]
        if base == "aten.add" and number is not None and 0 <= number <= _LARGEST_EPS:
            return [x]
    is_floor = base in ("aten.clamp_min", "aten.clamp") and len(op.args) == 2 and not op.kwargs
    if is_floor and number is not None and 0 <= number <= _LARGEST_EPS:
        return [x]
    return None


def _reduced(x: _Degree) -> _Degree:
    return _Degree(x.degree, x.numbers, True)


def _is_number(item: Any) -> bool:
    return isinstance(item, (int, float)) and not isinstance(item, bool)


def reduced_dims(op: Op) -> list[int]:
    """The axes that a reduction combines, in the order given."""
    base, ndim = _base(op), len(op.args[0].shape)
    position = 2 if base in _NORMS else 1
    given = op.args[position] if len(op.args) > position else op.kwargs.get("dim")
    if isinstance(given, bool) or (op.name.endswith(".default") and base in _ALL_BY_DEFAULT):
        given = None  # var(x, unbiased)
    if given is None or given == []:
        return list(range(ndim))
    return [d % ndim for d in ([given] if isinstance(given, int) else given)] if ndim else []


def can_fade(op: Op) -> bool:
    """Whether new entries can have a weight in a reduction.

    Counts and truth values have none; norms of order 0, infinity or of a matrix are no sums.
    """
    base = _base(op)
    if base not in REDUCTIONS or not op.args[0].dtype.is_floating_point:
        return False
    if base not in _NORMS:
        return True
    order = op.args[1] if len(op.args) > 1 else op.kwargs.get("ord", op.kwargs.get("p"))
    if not _is_number(order):
        return order is None
    dims = op.args[2] if len(op.args) > 2 else op.kwargs.get("dim")
    is_vector = base != "aten.linalg_norm" or isinstance(dims, int) or len(dims or ()) == 1
    return is_vector and 0 < order < math.inf


def unseen_dims(trace: Trace, value: Value) -> set[int]:
    """Axes along which a value is only used by reductions that fade: new entries may hold anything there."""
    dims = set(range(len(value.shape)))
    users = [c for c in trace.consumers.get(value, ()) if c.outputs]
    if not users or value in trace.outputs:
        return set()
    for op in users:
        if can_fade(op) and op.site is not None:
            dims &= set(reduced_dims(op))
        elif _base(op) in (*_CASTS, *_POWERS, "aten.pow", "aten.mul") and set(op.inputs()) == {
            value
        }:
            dims &= unseen_dims(trace, op.outputs[0])
        else:
            return set()
    return dims


def mean_of(trace: Trace) -> dict[int, tuple[Op, float]]:
    """Products with a number that may make a mean of a sum: operator -> (the sum, the power it enters with).

    `x.sum(-1) / d`, `x.norm(dim=-1) * d**-0.5`: nothing in between uses the sum itself.
    """
    producers = {v: op for op in trace.ops for v in op.outputs}
    found: dict[int, tuple[Op, float]] = {}
    for op in trace.ops:
        tensors = list(op.inputs())
        if _base(op) not in ("aten.mul", "aten.div") or len(tensors) != 1:
            continue
        value, power = tensors[0], 1.0
        for _ in range(_MOST_STEPS):
            maker = producers.get(value)
            users = [c for c in trace.consumers.get(value, ()) if c.outputs]
            if maker is None or len(users) != 1 or value in trace.outputs:
                break
            base = _base(maker)
            if base in ("aten.sum", "aten.linalg_vector_norm", "aten.linalg_norm", "aten.norm"):
                order = 1.0 if base == "aten.sum" else _order(maker)
                found[id(op)] = (maker, power / order)
                break
            number = next((a for a in maker.args[1:2] if _is_number(a)), None)
            if base in _POWERS:
                power *= _POWERS[base]
            elif base == "aten.pow" and number is not None:
                power *= float(number)
            elif base not in (*_CASTS, *_SHAPES):
                break
            value = next(maker.inputs())
    return found


def _order(op: Op) -> float:
    order = op.args[1] if len(op.args) > 1 else op.kwargs.get("ord", op.kwargs.get("p"))
    return float(order) if _is_number(order) else 2.0


def centring_means(trace: Trace) -> dict[Value, Op]:
    """Means that only serve to centre a parameter, as in weight standardisation, and the operators behind them.

    An entry that does not count yet in such a mean must not be shifted by it either: the halves of a pair of
    new inputs would no longer cancel.
    """
    found: dict[Value, Op] = {}
    for op in trace.ops:
        source = op.args[0] if op.args else None
        if _base(op) not in ("aten.mean", "aten.var_mean", "aten.std_mean"):
            continue
        mean = op.outputs[-1]
        again = source in found  # a mean over one more axis of such a mean
        if again or (source in trace.parameters and _only_centres(trace, mean, source)):
            found[mean] = op
    return found


def _only_centres(trace: Trace, mean: Value, source: Value) -> bool:
    users = [c for c in trace.consumers.get(mean, ()) if c.outputs]
    if not users or mean in trace.outputs or len(mean.shape) != len(source.shape):
        return False
    for op in users:
        if _base(op) == "aten.mean" and _only_centres(trace, op.outputs[0], source):
            continue
        if _base(op) != "aten.sub" or op.args[:2] != (source, mean) or op.kwargs:
            return False
    return True


def affine_parameters(trace: Trace, norms: Iterable[Norm]) -> dict[str, str]:
    """Parameters that multiply ("gain") or shift ("bias") what a norm returns, by name."""
    producers = {v: op for op in trace.ops for v in op.outputs}
    kinds = {"aten.mul": "gain", "aten.add": "bias"}
    found: dict[str, str] = {}
    for norm in {id(n): n for n in norms}.values():
        inside = [_parameter(trace, v, producers) for v in norm.gains.values()]
        found |= {name: "gain" for name in inside if name is not None}
        todo = list(norm.numbers)
        while todo:
            value = todo.pop()
            users = trace.consumers.get(value, ())
            for op in users:
                base = _base(op)
                if base in (*_CASTS, *_SHAPES):
                    todo += op.outputs
                elif base in kinds and len(users) == 1:
                    others = [v for v in op.inputs() if v is not value]
                    name = _parameter(trace, others[0], producers) if others else None
                    if name is not None:
                        found.setdefault(name, kinds[base])
                    if name is not None or not others:
                        todo += op.outputs
    return found


def _parameter(trace: Trace, value: Value, producers: dict[Value, Op]) -> str | None:
    """The vector that a value is: a parameter, cast, rearranged, or with a number added (1 + gain)."""
    for _ in range(_MOST_STEPS):
        if value in trace.parameters:
            is_vector = sum(n > 1 for n in value.shape) <= 1
            return trace.parameters[value] if is_vector else None
        op = producers.get(value)
        if op is None or len(list(op.inputs())) != 1:
            return None
        if _base(op) not in (*_CASTS, *_SHAPES, "aten.add", "aten.slice"):
            return None
        value = next(op.inputs())
    return None
