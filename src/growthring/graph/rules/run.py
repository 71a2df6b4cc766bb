"""Applies the rules to a trace, operator by operator."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from growthring.errors import GrowthError, WidthGroupError
from growthring.graph.recognise import Norm, affine_parameters, find_norms
from growthring.graph.rules.records import Info
from growthring.graph.rules.registry import Rule, find_rule
from growthring.graph.rules.walk import Walk
from growthring.graph.scales import Scales
from growthring.graph.trace import Op, Trace
from growthring.graph.unify import Reason, Unifier


def walk_trace(
    unifier: Unifier,
    scales: Scales,
    trace: Trace,
    first_op: int = 0,
    held: Mapping[str, Reason] | None = None,
    may_gain: bool = False,
) -> Walk:
    """Walks a whole trace; what the model takes and returns keeps its size.

    Args:
        unifier: what is known of axes.
        scales: what is known of scales.
        trace: the operators.
        first_op: the number of the first one, counted over all traces of a model.
        held: tensors that must not grow, and why.
        may_gain: whether the last axis of what the model returns may grow all the same: its classes.
    """
    walk = Walk(unifier, scales, trace, first_op, held)
    norms = find_norms(trace)
    inside = _InsideNorms(walk, norms)
    for value, text in trace.inputs.items():
        axes = tuple(unifier.fresh(n) for n in value.shape)
        for i, axis in enumerate(axes):
            unifier.freeze([axis], Reason("input", f"axis {i} of {text}"))
        walk.infos[value] = Info(axes, walk.one, constant=True)
    for index, op in enumerate(trace.ops, first_op):
        walk.index, walk.op = index, op
        if not op.outputs:
            continue
        first_record = len(scales.records)
        _apply(walk, find_rule(op) or _no_rule, op)
        if any(v not in walk.infos for v in op.outputs):
            raise WidthGroupError(
                f"the rule for '{op.name}' gave an output no axes; call walk.set."
            )
        if id(op) in norms:
            inside.rewrite(norms[id(op)], op, first_record)
    for i, value in enumerate(trace.outputs):
        info = walk.info(value)
        for j, axis in enumerate(info.axes[:-1] if may_gain else info.axes):
            unifier.freeze([axis], Reason("output", f"axis {j} of model output {i}"))
        scales.add("result", (info.scale,), None, where=f"model output {i}")
    for value, name in trace.left.items():  # its values are kept, its widths may grow
        scales.add("demand", (walk.info(value).scale,), None, where=f"'{name}'")
    # A parameter that turned out to be a weight, bias or gain has a record of its own kind.
    spent = {
        id(r) for use, r in walk.direct_records if use.kind not in ("direct", "table", "buffer")
    }
    scales.records[:] = [r for r in scales.records if id(r) not in spent]
    for name, kind in affine_parameters(trace, norms.values()).items():
        for use in walk.uses.get(name, ()):
            use.kind = kind if use.kind == "direct" else use.kind
    return walk


class _InsideNorms:
    """Inside a norm scales are nobody's business: its results have those of its gains and numbers."""

    def __init__(self, walk: Walk, norms: Mapping[int, Norm]) -> None:
        self._walk, self._norms = walk, norms
        self._indices: dict[int, int] = {}
        self._gains: dict[int, int] = {}

    def rewrite(self, norm: Norm, op: Op, first_record: int) -> None:
        """Replaces what the rule of one operator of a norm said about scales."""
        walk, scales = self._walk, self._walk.scales
        added = scales.records[first_record:]
        scales.records[first_record:] = [r for r in added if r.kind == "own"]
        self._indices[id(op)] = walk.index
        if id(op) in norm.gains:
            self._gains[id(op)] = walk.info(norm.gains[id(op)]).scale
        if op is norm.ops[0] and norm.root in walk.infos:
            walk.norm_input(walk.infos[norm.root])
        for value in op.outputs:
            scale = walk.one
            for other, power in norm.numbers.get(value, {}).items():
                before, scale = scale, scales.fresh()
                if other in norm.gains:
                    factors = (before, self._gains[other])
                    scales.add("product", factors, scale, where=walk.where())
                else:
                    index = self._indices[other]
                    scales.add(
                        "scalar", (before,), scale, where=walk.where(), op=index, power=power
                    )
            walk.infos[value] = replace(walk.infos[value], scale=scale)


def _apply(walk: Walk, rule: Rule, op: Op) -> None:
    """Runs a rule; one that fails, or whose axes do not fit, is taken back and everything frozen."""
    before = _Before(walk, op)
    try:
        rule(walk, op)
        for value in op.outputs:
            if value in walk.infos:
                sizes = tuple(walk.size(a) for a in walk.infos[value].axes)
                assert sizes == value.shape, f"axes of {sizes} for {value.shape}"
    except GrowthError:
        raise
    except Exception as error:  # an argument form that the rule's author did not think of
        before.restore()
        text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        _freeze_all(walk, op, f"has an argument form that its rule does not know ({text})")


class _Before:
    """What was noted before a rule that may fail; statements about axes stay, they only restrict."""

    def __init__(self, walk: Walk, op: Op) -> None:
        self._walk = walk
        lists: list[list[Any]] = [
            walk.scales.records, walk.statistics, walk.ties, walk.direct_records, *walk.pieces.values()
        ]  # fmt: skip
        self._lengths = [(items, len(items)) for items in lists]
        self._attributes, self._pieces = len(walk.attributes), len(walk.pieces)
        used = [walk.infos[v].use for v in op.inputs() if v in walk.infos]
        self._uses = [(use, {k: copy.copy(v) for k, v in vars(use).items()}) for use in used if use]

    def restore(self) -> None:
        """Forgets what the rule noted; parameters that it used get their uses anew."""
        walk = self._walk
        for items, length in self._lengths:
            del items[length:]
        while len(walk.attributes) > self._attributes:
            walk.attributes.popitem()
        while len(walk.pieces) > self._pieces:
            walk.pieces.popitem()
        walk.expected.pop(walk.index, None)
        for use, held in self._uses:
            vars(use).update(held)
        for key in [key for key in walk.own_infos if key[1] == walk.index]:
            own = walk.own_infos.pop(key)
            walk.uses[own.label] = [u for u in walk.uses[own.label] if u is not own.use]


def _no_rule(walk: Walk, op: Op) -> None:
    """An operator nobody wrote a rule for: nothing that touches it may change."""
    walk.unknown.setdefault(op.name, op.module)
    _freeze_all(walk, op, "has no axis rule (register one with gr.register_rule)")


def _freeze_all(walk: Walk, op: Op, does: str) -> None:
    infos = [walk.info(v) for v in op.inputs()]
    for info in infos:
        walk.freeze(info.axes, does)
    scale = walk.demand(*infos)
    for value in op.outputs:
        walk.set(value, walk.fixed(value), scale, constant=all(i.constant for i in infos))
