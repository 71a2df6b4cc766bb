"""Recognises norms in a trace, however they are written, by how they answer a scaled input.

`x * rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)` does not change when x is multiplied by a number,
but for ε. Each operator on the way from x has a degree: a square 2, a square root ½, a mean 1, a product the
sum of its factors'. Where the degree comes to 0 after a statistic was taken, what is in between is a
norm: weights in front of it may be rescaled. No name, attribute or layout of the code matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from growthring.graph.reductions import is_number
from growthring.graph.trace import Op, Trace, Value

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


def find_norms(trace: Trace) -> dict[int, Norm]:
    """The norms of a trace, by the id of each of their operators."""
    producers = {v: op for op in trace.ops for v in op.outputs}
    order = {id(op): i for i, op in enumerate(trace.ops)}
    norms: dict[int, Norm] = {}
    for op in trace.ops:
        if not op.traits.reduces or id(op) in norms:
            continue
        for root in _candidates(op, producers):
            norm = _grow_from(trace, root, producers, order)
            if norm is not None and any(o is op for o in norm.ops):
                if not any(id(o) in norms for o in norm.ops):
                    norms |= {id(o): norm for o in norm.ops}
                break
    return norms


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
    if not any(op.traits.reduces for op in members.values()):
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
    if op.base != "aten.mul" or len(tensors) != 2 or len(outside) != 1:
        return None
    if _parameter(trace, outside[0], producers) is None:
        return None
    gains[id(op)] = outside[0]
    x = next(known[v] for v in tensors if v in known)
    return [x.times(_Degree(0.0, ((id(op), 1.0),)))]


def _degrees(op: Op, known: dict[Value, _Degree]) -> list[_Degree] | None:
    """The degrees of an operator's results, or None where it is not homogeneous in what is known."""
    base, traits = op.base, op.traits
    tensors = list(op.inputs())
    inside = [known.get(v) for v in tensors]
    if traits.keeps_all:
        return [inside[0]] * len(op.outputs) if inside[0] is not None else None
    if None in inside:
        return None
    x = inside[0]
    assert x is not None
    if traits.reduces:
        return [_reduced(x.power(p)) for p in traits.degrees][: len(op.outputs)]
    if traits.degrees:
        return [x.power(traits.degrees[0])]
    number = next((a for a in op.args[1:2] if is_number(a)), None)
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


def affine_parameters(trace: Trace, norms: Iterable[Norm]) -> dict[str, str]:
    """Parameters that multiply ("gain") or shift ("bias") what a norm returns, by name."""
    producers = {v: op for op in trace.ops for v in op.outputs}
    kinds = {"aten.mul": "gain", "aten.add": "bias"}
    affine: dict[str, str] = {}
    for norm in {id(n): n for n in norms}.values():
        inside = [_parameter(trace, v, producers) for v in norm.gains.values()]
        affine |= {name: "gain" for name in inside if name is not None}
        todo = list(norm.numbers)
        while todo:
            value = todo.pop()
            users = trace.consumers.get(value, ())
            for op in users:
                base = op.base
                if op.traits.keeps_all:
                    todo += op.outputs
                elif base in kinds and len(users) == 1:
                    others = [v for v in op.inputs() if v is not value]
                    name = _parameter(trace, others[0], producers) if others else None
                    if name is not None:
                        affine.setdefault(name, kinds[base])
                    if name is not None or not others:
                        todo += op.outputs
    return affine


def _parameter(trace: Trace, value: Value, producers: dict[Value, Op]) -> str | None:
    """The vector that a value is: a parameter, cast, rearranged, or with a number added (1 + gain)."""
    for _ in range(_MOST_STEPS):
        if value in trace.parameters:
            is_vector = sum(n > 1 for n in value.shape) <= 1
            return trace.parameters[value] if is_vector else None
        op = producers.get(value)
        if op is None or len(list(op.inputs())) != 1:
            return None
        if not (op.traits.keeps_all or op.base in ("aten.add", "aten.slice")):
            return None
        value = next(op.inputs())
    return None
