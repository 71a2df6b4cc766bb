"""Variance transfer: by how much old weights are rescaled, and how large new ones are (paper, Table 1 top).

    role      old weights × c          variance of new weights
    input     1                        1 / C_in
    hidden    √(C_t / C_{t+1})         1 / C_{t+1}
    output    C_t / C_{t+1}            1 / C_{t+1}²

C is the fan-in of the layer. The paper's claim that rescaling leaves the function alone holds where
a norm follows; in general each activation carries a scale s, a weight from g to h is multiplied by
s_h / s_g, and operators restrict s (see `growthring.graph.scales` for the kinds of record). All
scales here are natural logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from growthring.errors import GrowthError

Mode = Literal["preserving", "paper", "constraint", "off"]
Role = Literal["input", "hidden", "output"]
MODES: tuple[Mode, ...] = ("preserving", "paper", "constraint", "off")
_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Record:
    """What one operator does to scales; `kind` is one of those listed in `growthring.graph.scales`."""

    kind: str
    inputs: tuple[int, ...]
    output: int | None
    names: tuple[str, ...]
    where: str
    eps: float = 0.0
    op: int = -1
    power: float = 1.0


@dataclass
class Factors:
    """The outcome of one growth's variance transfer.

    Attributes:
        tensors: parameter -> factor on its old entries (weights, gains, biases, tables).
        stats: (running mean, running variance) -> (factor s, the norm's ε).
        outputs: the factors on the model's outputs that the rule leaves, one per output.
        violations: operators at which the chosen rule does not preserve the function.
        rescaled: the parameters that got the factor of variance transfer (others may compensate one).
    """

    tensors: dict[str, float] = field(default_factory=dict)
    stats: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    outputs: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    rescaled: set[str] = field(default_factory=set)


class ScaleConflict(GrowthError, ValueError):
    """No assignment of scales keeps the function; says at which operator it fails."""


def rescaling(role: Role, before: float, after: float) -> float:
    """Factor c on old weights by Table 1, for a fan-in that grows from `before` to `after`.

    >>> rescaling("hidden", 16, 64), rescaling("output", 16, 64), rescaling("input", 3, 3)
    (0.5, 0.25, 1.0)
    """
    if role == "input":
        return 1.0
    return math.sqrt(before / after) if role == "hidden" else before / after


def deviation(role: Role, initial: float, first: float, after: float) -> float:
    """Standard deviation of new weights: the user's own at stage 0, scaled with width by Table 1.

    Args:
        role: role of the layer.
        initial: σ₀, the deviation of this weight at stage 0.
        first: fan-in at stage 0.
        after: fan-in after this growth.

    >>> deviation("hidden", 0.5, 4, 16), deviation("output", 0.5, 4, 16)
    (0.25, 0.125)
    """
    return initial * rescaling(role, first, after)


class _Potentials:
    """Union-find whose members know their distance to the root: s_member = s_root + offset."""

    def __init__(self, count: int) -> None:
        self.one = count
        self._parent = list(range(count + 1))
        self._offset = [0.0] * (count + 1)

    def find(self, node: int) -> tuple[int, float]:
        path, offset = [], 0.0
        while self._parent[node] != node:
            path.append(node)
            node = self._parent[node]
        for member in reversed(path):
            offset += self._offset[member]
            self._parent[member], self._offset[member] = node, offset
        return node, (self._offset[path[0]] if path else 0.0)

    def join(self, a: int, b: int, distance: float, where: str) -> None:
        """States s_a = s_b + distance."""
        (root_a, off_a), (root_b, off_b) = self.find(a), self.find(b)
        if root_a == root_b:
            if abs(off_a - off_b - distance) > _TOLERANCE:
                raise ScaleConflict(
                    f"{where} needs two different scales at once, so a factor that changes with width cannot "
                    "be compensated in the weights."
                )
        elif root_a == self.find(self.one)[0]:
            self._parent[root_b], self._offset[root_b] = root_a, off_a - distance - off_b
        else:
            self._parent[root_a], self._offset[root_a] = root_b, off_b + distance - off_a


def _classes(records: Sequence[Record], count: int, ratios: Mapping[int, float]) -> _Potentials:
    """Joins the scales that operators tie together; weights stay free."""
    nodes = _Potentials(count)
    one = nodes.one
    products: list[Record] = []
    for r in records:
        if r.kind == "carry":
            members = [*r.inputs, *([r.output] if r.output is not None else [])]
            for member in members[1:]:
                nodes.join(member, members[0], 0.0, r.where)
        elif r.kind in ("demand", "result"):
            for member in [*r.inputs, *([r.output] if r.output is not None else [])]:
                nodes.join(member, one, 0.0, r.where)
        elif r.kind == "scalar":
            assert r.output is not None
            nodes.join(r.output, r.inputs[0], r.power * ratios.get(r.op, 0.0), r.where)
        elif r.kind == "product":
            products.append(r)
    while products:
        waiting = []
        for r in products:
            assert r.output is not None
            (root_a, off_a), (root_b, off_b) = (nodes.find(i) for i in r.inputs)
            anchor = nodes.find(one)[0]
            if root_b == anchor:
                nodes.join(r.output, r.inputs[0], off_b, r.where)
            elif root_a == anchor:
                nodes.join(r.output, r.inputs[1], off_a, r.where)
            elif root_a == root_b and nodes.find(r.output)[0] == anchor:
                # One fused projection makes both factors: each takes half of what the product
                # needs.
                half = (nodes.find(r.output)[1] - nodes.find(one)[1] - off_a - off_b) / 2
                nodes.join(root_a, one, half, r.where)
            else:
                waiting.append(r)
        if len(waiting) == len(products):
            # Neither factor is settled: the second one keeps scale 1.
            nodes.join(waiting[0].inputs[1], one, 0.0, waiting[0].where)
        products = waiting
    return nodes


def preserve(
    records: Sequence[Record],
    count: int,
    targets: Mapping[str, float],
    ratios: Mapping[int, float],
    held: Collection[int] = (),
) -> Factors:
    """Rescales as far as a consistent assignment of scales exists, with s = 1 at the outputs.

    A weight either gets its target factor, or keeps c = 1, or (where the model's code multiplies by
    a factor that changes with width, as 1/√d_head does) the factor that compensates it.

    Args:
        records: what the model's operators do to scales, in order.
        count: number of scale variables.
        targets: parameter -> log of the wanted factor.
        ratios: operator -> log of (new / old) of a factor in the model's code.
        held: activations that must keep scale 1 as well.
    """
    nodes = _classes(records, count, ratios)
    for node in held:
        if nodes.find(node)[0] != nodes.find(nodes.one)[0]:
            nodes.join(node, nodes.one, 0.0, "a norm")
    root, offset = nodes.find(nodes.one)
    fixed = {root: -offset}
    while True:
        trial = _Assignment(nodes, fixed)
        clash = trial.run(records, targets)
        if clash is None:
            break
        fixed |= clash
    result = Factors(tensors={name: math.exp(c) for name, c in trial.factors.items()})
    result.rescaled = {
        name
        for name, c in trial.factors.items()
        if c and abs(c - targets.get(name, 0.0)) < _TOLERANCE
    }
    _finish(records, result, trial.scale)
    return result


class _Assignment:
    """One attempt to give every class of scales a value; those in `held` have theirs."""

    def __init__(self, nodes: _Potentials, held: Mapping[int, float]) -> None:
        self.nodes, self.held = nodes, held
        self.potential = dict(held)
        self.factors: dict[str, float] = {}
        self._followers: dict[tuple[str, ...], float] = {}

    def scale(self, node: int) -> float:
        root, offset = self.nodes.find(node)
        return self.potential.setdefault(root, 0.0) + offset

    def run(
        self, records: Sequence[Record], targets: Mapping[str, float]
    ) -> dict[int, float] | None:
        """Assigns along the records; returns a class to hold and its value, or None if all is consistent."""
        for r in records:
            clash = None
            if r.kind in ("weight", "own"):
                clash = self._edge(r, targets.get(r.names[0], 0.0))
            elif r.kind in ("bias", "stats"):
                s = self.scale(r.inputs[0])
                if abs(self._followers.setdefault(r.names, s) - s) > _TOLERANCE:
                    clash = self._hold(r.inputs[0])
                    if clash is None:
                        raise _two_factors(r.names[0])
            if clash is not None:
                return clash
        return None

    def _edge(self, r: Record, target: float) -> dict[int, float] | None:
        """A weight takes its target factor, or 1, or what the classes at both ends leave it."""
        assert r.output is not None
        source = r.inputs[0] if r.kind == "weight" else self.nodes.one
        root, offset = self.nodes.find(r.output)
        known = self.factors.get(r.names[0])  # of an earlier use, in another mode say
        if root not in self.potential:
            wanted = target if known is None else known
            self.potential[root] = self.scale(source) + wanted - offset
        c = self.scale(r.output) - self.scale(source)
        agrees = abs(self.factors.setdefault(r.names[0], c) - c) <= _TOLERANCE
        if agrees and (known is not None or min(abs(c - target), abs(c)) <= _TOLERANCE):
            return None
        clash = self._hold(source, r.output)
        if clash is None and not agrees:
            raise _two_factors(r.names[0])
        return clash

    def _hold(self, *activations: int) -> dict[int, float] | None:
        """The first of the activations that is not held yet is to keep its scale."""
        for node in activations:
            root, offset = self.nodes.find(node)
            if root not in self.held:
                return {root: -offset}
        return None


def _two_factors(name: str) -> ScaleConflict:
    return ScaleConflict(
        f"parameter '{name}' is used twice and would need two different factors, so a factor that "
        "changes with width cannot be compensated in the weights."
    )


def forward(
    records: Sequence[Record],
    count: int,
    targets: Mapping[str, float],
    ratios: Mapping[int, float],
) -> Factors:
    """Applies the targets to the letter (modes `paper`, `constraint`) and follows the scales to the outputs.

    Where two scales meet that differ, or a scale meets an operator that needs 1, the function
    changes; those places are listed in `violations`. Biases and running statistics follow the scale
    of the activation they belong to.
    """
    forced = preserve(records, count, {}, ratios).tensors
    scales = [0.0] * count
    result = Factors()
    followers: dict[tuple[str, ...], float] = {}

    def complain(where: str) -> None:
        if where and where not in result.violations:
            result.violations.append(where)

    for r in records:
        values = [scales[i] for i in r.inputs]
        uneven = bool(values) and max(values) - min(values) > 1e-9
        out = values[0] if values else 0.0
        if r.kind == "carry" and uneven:
            complain(r.where)
            out = min(values, key=abs)  # a residual stream outweighs its branches
        elif r.kind == "demand":
            if any(abs(v) > 1e-9 for v in values):
                complain(r.where)
            out = 0.0
        elif r.kind == "product":
            out = sum(values)
        elif r.kind == "scalar":
            out += r.power * ratios.get(r.op, 0.0)
        elif r.kind in ("weight", "own"):
            name = r.names[0]
            c = targets.get(name, 0.0) + math.log(forced.get(name, 1.0))
            result.tensors[name] = math.exp(c)
            out = c + (values[0] if values else 0.0)
        if r.output is not None:
            scales[r.output] = out
        if r.kind in ("bias", "stats") and abs(followers.setdefault(r.names, out) - out) > 1e-9:
            complain(r.where)
    _finish(records, result, lambda node: scales[node])
    return result


def _finish(records: Sequence[Record], result: Factors, scale: Callable[[int], float]) -> None:
    """Biases, running statistics and outputs follow the scale of their activation."""
    for r in records:
        if r.kind == "bias":
            result.tensors[r.names[0]] = math.exp(scale(r.inputs[0]))
        elif r.kind == "stats":
            result.stats[(r.names[0], r.names[1])] = (math.exp(scale(r.inputs[0])), r.eps)
        elif r.kind == "result":
            result.outputs.extend(math.exp(scale(i)) for i in r.inputs)
