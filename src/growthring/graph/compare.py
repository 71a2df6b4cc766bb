"""Compares the trace of a resized copy with what the axes predict: operators, shapes, numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from growthring.core.axes import Axis, size
from growthring.graph.groups import Law
from growthring.graph.laws import fitting_laws
from growthring.graph.numbers import Numbers, fold, is_default_attention
from growthring.graph.probe import Probe
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op, Trace


@dataclass(frozen=True)
class Failure:
    """Where a resized copy went wrong. Progress is comparable between trials: (ran to its end, operator, line)."""

    progress: tuple[int, int, int]
    module: str
    text: str
    axes: tuple[Axis, ...] = ()
    number: int | None = None  # of the operator whose numbers changed


def compare(
    probe: Probe, walk: Walk, copy_trace: Trace, laws: dict[int, tuple[Law, ...]]
) -> Failure | None:
    """First operator whose name, shapes or numbers are not as predicted; adds the laws that fit each factor."""
    old_constants, new_constants = fold(walk.trace), fold(copy_trace)
    for i, (op, copy_op) in enumerate(zip(walk.trace.ops, copy_trace.ops, strict=False)):
        index = walk.first_op + i

        def failure(text: str, op: Op = op, i: int = i, number: int | None = None) -> Failure:
            values = [v for v in (*op.inputs(), *op.outputs) if v in walk.infos]
            axes = [a for v in values for a in probe.axes(walk, v)]
            return Failure((1, i, 0), op.module, text, tuple(axes), number)

        if op.name != copy_op.name or len(op.outputs) != len(copy_op.outputs):
            return failure(
                f"at another width '{op.module}' runs {copy_op.name} instead of {op.name}"
            )
        for value, other in zip(op.outputs, copy_op.outputs, strict=True):
            wanted = tuple(size(a, probe.small) for a in probe.axes(walk, value))
            if wanted != other.shape:
                text = f"{op.where()} computes a shape by itself: {other.shape} where {wanted} is needed"
                return failure(text)
        if not _same_tensors(walk.trace, op, copy_trace, copy_op):
            return failure(f"{op.where()} uses a constant that changes with a width")
        for position, axis in walk.expected.get(index, {}).items():
            if copy_op.args[position] != size(walk.unifier.resolve(axis), probe.small):
                return failure(f"{op.where()} has a fixed number of groups in the model's code")
        if op.outputs and all(v in old_constants for v in op.outputs):
            continue  # a number in the making; what matters is who uses it
        old, new = Numbers(op, old_constants), Numbers(copy_op, new_constants)
        unknown = f"{op.where()} uses a number that changes with a width in an unknown way"
        if old.others != new.others:
            return failure(unknown, number=index)
        if is_default_attention(op):
            width = walk.unifier.resolve(walk.infos[op.args[0]].axes[-1])
            if probe.changes(width):
                laws[index] = (Law(width, -0.5),)
        elif old.factor != new.factor:
            fitting = fitting_laws(probe, walk, op, old, new)
            if not fitting:
                return failure(unknown, number=index)
            laws[index] = fitting
    if len(walk.trace.ops) != len(copy_trace.ops):
        ran = copy_trace.ops[len(walk.trace.ops) :] or walk.trace.ops[len(copy_trace.ops) :]
        text = "at another width the model runs other operators"
        return Failure((1, min(len(copy_trace.ops), len(walk.trace.ops)), 0), ran[0].module, text)
    return None


def _same_tensors(trace: Trace, op: Op, copy_trace: Trace, copy_op: Op) -> bool:
    """Whether the tensors of several entries that the code made by itself hold the same values at both widths."""
    for value, other in zip(op.inputs(), copy_op.inputs(), strict=False):
        a, b = trace.constants.get(value), copy_trace.constants.get(other)
        if a is None or b is None or a.shape != b.shape or a.device.type == "meta":
            continue
        if a.numel() != 1 and not torch.equal(a.detach(), b.detach()):
            return False
    return True
