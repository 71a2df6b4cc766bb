"""Reductions in a trace: their axes, whether new entries can fade into them, what becomes of the result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from growthring.core.axes import Axis
from growthring.graph.trace import Op, Trace, Value

_NORMS = ("aten.norm", "aten.linalg_vector_norm", "aten.linalg_norm")
_ALL_BY_DEFAULT = tuple(f"aten.{n}" for n in ("mean", "sum", "nansum", "max", "min", "any", "all"))
_MOST_STEPS = 6


@dataclass(frozen=True)
class Statistics:
    """A reduction over an axis that may grow (a norm, a mean, …): its new entries have to fade in.

    Attributes:
        module: the module whose code calls it.
        axis: an axis that it reduces.
        site: where in that code (see `graph/sites.py`).
        position: which of the axes that the call reduces it is, in the order in which they are given.
        count: how many axes the call reduces.
        is_mean: it is a sum that the code divides by the axis's size: its mean is what has to be kept.
        is_spread: it is a mean that centres a parameter, entry by entry as much as that entry counts.
    """

    module: str
    axis: Axis
    site: str = ""
    position: int = 0
    count: int = 1
    is_mean: bool = False
    is_spread: bool = False

    @property
    def place(self) -> tuple[str, str, int]:
        """What identifies it."""
        return (self.module, self.site, self.position)


def is_number(item: Any) -> bool:
    """Whether an argument is a number in the model's code."""
    return isinstance(item, (int, float)) and not isinstance(item, bool)


def reduced_dims(op: Op) -> list[int]:
    """The axes that a reduction combines, in the order given."""
    base, ndim = op.base, len(op.args[0].shape)
    position = 2 if base in _NORMS else 1
    given = op.arg(position, "dim")
    if isinstance(given, bool) or (op.name.endswith(".default") and base in _ALL_BY_DEFAULT):
        given = None  # var(x, unbiased)
    if given is None or given == []:
        return list(range(ndim))
    return [d % ndim for d in ([given] if isinstance(given, int) else given)] if ndim else []


def can_fade(op: Op) -> bool:
    """Whether new entries can have a weight in a reduction.

    Counts and truth values have none; norms of order 0, infinity or of a matrix are no sums.
    """
    if not op.traits.reduces or not op.args[0].dtype.is_floating_point:
        return False
    if op.base not in _NORMS:
        return True
    order = op.arg(1, "ord", op.kwargs.get("p"))
    if not is_number(order):
        return order is None
    dims = op.arg(2, "dim")
    is_vector = op.base != "aten.linalg_norm" or isinstance(dims, int) or len(dims or ()) == 1
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
        elif _entry_by_entry(op) and set(op.inputs()) == {value}:
            dims &= unseen_dims(trace, op.outputs[0])
        else:
            return set()
    return dims


def _entry_by_entry(op: Op) -> bool:
    traits = op.traits
    is_power = bool(traits.degrees) and not traits.reduces
    return traits.entries == "same" or is_power or op.base in ("aten.pow", "aten.mul")


def mean_of(trace: Trace) -> dict[int, tuple[Op, float]]:
    """Products with a number that may make a mean of a sum: operator -> (the sum, the power it enters with).

    `x.sum(-1) / d`, `x.norm(dim=-1) * d**-0.5`: nothing in between uses the sum itself.
    """
    producers = {v: op for op in trace.ops for v in op.outputs}
    means: dict[int, tuple[Op, float]] = {}
    for op in trace.ops:
        tensors = list(op.inputs())
        if op.base not in ("aten.mul", "aten.div") or len(tensors) != 1:
            continue
        value, power = tensors[0], 1.0
        for _ in range(_MOST_STEPS):
            maker = producers.get(value)
            users = [c for c in trace.consumers.get(value, ()) if c.outputs]
            if maker is None or len(users) != 1 or value in trace.outputs:
                break
            base = maker.base
            if base in ("aten.sum", "aten.linalg_vector_norm", "aten.linalg_norm", "aten.norm"):
                order = 1.0 if base == "aten.sum" else _order(maker)
                means[id(op)] = (maker, power / order)
                break
            number = next((a for a in maker.args[1:2] if is_number(a)), None)
            traits = maker.traits
            if traits.degrees and not traits.reduces:
                power *= traits.degrees[0]
            elif base == "aten.pow" and number is not None:
                power *= float(number)
            elif not traits.keeps_all:
                break
            value = next(maker.inputs())
    return means


def _order(op: Op) -> float:
    order = op.arg(1, "ord", op.kwargs.get("p"))
    return float(order) if is_number(order) else 2.0


def centring_means(trace: Trace) -> dict[Value, Op]:
    """Means that only serve to centre a parameter, as in weight standardisation, and the operators behind them.

    An entry that does not count yet in such a mean must not be shifted by it either: the halves of a pair of
    new inputs would no longer cancel.
    """
    means: dict[Value, Op] = {}
    for op in trace.ops:
        source = op.args[0] if op.args else None
        if op.base not in ("aten.mean", "aten.var_mean", "aten.std_mean"):
            continue
        mean = op.outputs[-1]
        again = source in means  # a mean over one more axis of such a mean
        if again or (source in trace.parameters and _only_centres(trace, mean, source)):
            means[mean] = op
    return means


def _only_centres(trace: Trace, mean: Value, source: Value) -> bool:
    users = [c for c in trace.consumers.get(mean, ()) if c.outputs]
    if not users or mean in trace.outputs or len(mean.shape) != len(source.shape):
        return False
    for op in users:
        if op.base == "aten.mean" and _only_centres(trace, op.outputs[0], source):
            continue
        if op.base != "aten.sub" or op.args[:2] != (source, mean) or op.kwargs:
            return False
    return True
