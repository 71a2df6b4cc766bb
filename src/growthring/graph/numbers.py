"""The numbers that an operator computes with: the factor that it multiplies by, and all others.

A factor may be a number in the code, the `scale=` of attention, or a tensor of one entry that the code made
(`torch.sqrt(torch.tensor(float(d)))`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from growthring.graph.trace import Op, Trace, Value
from growthring.graph.traits import Traits


class Numbers:
    """The factor that an operator multiplies its input by, and the other numbers that it computes with.

    Sizes are left out: they show in the shape of the output.
    """

    def __init__(self, op: Op, constants: Mapping[Value, torch.Tensor]) -> None:
        base, multiplies_by = op.base, op.traits.factor
        self.factor: float | None = None
        self.eps = 0.0
        args, kwargs = list(op.args), dict(op.kwargs)
        if multiplies_by == "other" and len(args) > 1:
            tensors = [i for i, a in enumerate(args[:2]) if isinstance(a, Value)]
            last = 1 if len(tensors) < 2 or args[1] in constants or "div" in base else 0
            factor = args[last] if isinstance(args[0], Value) else None
            if isinstance(factor, Value):
                held = constants.get(factor)
                if held is not None:
                    self.eps = torch.finfo(held.dtype).eps if held.is_floating_point() else 0.0
                factor = None if held is None else held.item()
            if isinstance(factor, (int, float)) and not isinstance(factor, bool):
                self.factor = float(factor)
                args[last] = None
                if "div" in base:
                    self.factor = 1 / self.factor if self.factor else math.inf
        elif multiplies_by == "scale":
            self.factor = kwargs.pop("scale", None)
        elif multiplies_by == "alpha":
            self.factor = float(kwargs.pop("alpha", 1))
        self.others = list(_visit(op.traits, args, kwargs, constants))


def _visit(
    traits: Traits, args: list[Any], kwargs: dict[str, Any], constants: Mapping[Value, torch.Tensor]
) -> Iterator[float]:
    kinds = float if traits.sizes else (int, float)
    if traits.size_at is not None:
        args = [*args[: traits.size_at], *args[traits.size_at + 1 :]]

    def visit(item: Any) -> Iterator[float]:
        if isinstance(item, Value):
            if item in constants:
                held = constants[item].item()
                yield float(held) if isinstance(held, (int, float)) else 0.0
        elif isinstance(item, kinds) and not isinstance(item, bool):
            yield float(item)
        elif isinstance(item, (list, tuple)):
            for child in item:
                yield from visit(child)

    yield from visit(args)
    yield from visit(list(kwargs.values()))


def same_numbers(op: Op, trace: Trace, copy_op: Op, copy_trace: Trace) -> bool:
    """Whether an operator computes with the same numbers in two traces."""
    old, new = Numbers(op, fold(trace)), Numbers(copy_op, fold(copy_trace))
    return old.factor == new.factor and old.others == new.others


def is_default_attention(op: Op) -> bool:
    """Whether an operator is attention that divides by √d by itself."""
    return op.traits.factor == "scale" and op.kwargs.get("scale") is None


def fold(trace: Trace) -> dict[Value, torch.Tensor]:
    """Tensors of one entry that follow from constants of the code alone, computed."""
    known = {
        v: t.detach()
        for v, t in trace.constants.items()
        if t.numel() == 1 and t.device.type != "meta" and type(t) is torch.Tensor
    }
    for op in trace.ops:
        base = op.name.split(".")[1] if op.name.count(".") > 1 else ""
        inputs = list(op.inputs())
        makes = base in ("full", "scalar_tensor", "ones", "zeros")
        if base == "detach_" and inputs[0] in known:  # torch.tensor(...) does so
            known[op.outputs[0]] = known[inputs[0]]
            continue
        if base.endswith("_"):  # in place: from here on nobody knows
            for value in inputs[:1]:
                known.pop(value, None)
            continue
        follows = bool(inputs) and all(v in known for v in inputs)
        single = len(op.outputs) == 1 and math.prod(op.outputs[0].shape) == 1
        if single and (makes or follows):
            held = _evaluate(op, known)
            if held is not None:
                known[op.outputs[0]] = held
    return known


def _evaluate(op: Op, known: Mapping[Value, torch.Tensor]) -> torch.Tensor | None:
    _, name, overload = op.name.split(".")

    def fill(item: Any) -> Any:
        if isinstance(item, Value):
            return known[item]
        if isinstance(item, (list, tuple)):
            return [fill(child) for child in item]
        return item

    kwargs = {k: fill(v) for k, v in op.kwargs.items() if k not in ("device", "pin_memory")}
    try:
        function = getattr(getattr(torch.ops.aten, name), overload)
        if torch.Tag.nondeterministic_seeded in function.tags:
            return None
        result = function(*fill(op.args), **kwargs)
    except (RuntimeError, AttributeError, TypeError, NotImplementedError):
        return None
    return result if isinstance(result, torch.Tensor) else None
