"""Compares the trace of a resized copy with what the axes predict: operators, shapes, numbers.

A factor that changes with the widths must obey a law, ∝ size ** power, of some axis nearby; all laws that fit are
kept, and further widths tell them apart. A factor may be a number in the code, the `scale=` of attention, or a
tensor of one entry that the code made (`torch.sqrt(torch.tensor(float(d)))`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from growthring.core.axes import Axis, Ref, refs, size, unsigned
from growthring.graph.follow import Attributes
from growthring.graph.groups import Law, TensorSpec
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import ExampleInputs, Op, Trace, Value

POWERS = (-0.5, 0.5, -1.0, 1.0, -0.25, 0.25, -2.0, 2.0)
_PRODUCTS = ("aten.mul", "aten.multiply", "aten.div", "aten.divide", "aten.true_divide")
_NEAR = 8
# A number of the code may have come through float32 on its way (`torch.tensor(d).sqrt().item()`).
_LEAST_TOLERANCE = 4 * torch.finfo(torch.float32).eps
# Operators whose whole numbers are sizes, axes or positions.
_SHAPES = re.compile(
    r"aten\.(view|reshape|_unsafe_view|_reshape|flatten|unflatten|expand|broadcast_to|repeat|tile|split|chunk"
    r"|tensor_split|unsafe_|slice|narrow|select|zeros|ones|empty|new_zeros|new_ones|new_empty|conv|constant_pad"
    r"|pad|layer_norm|rms_norm|group_norm|native_|batch_norm|instance_norm|embedding|cat|stack|permute|upsample"
    r"|_?adaptive_|pixel_|channel_shuffle|linear|as_strided|sym_)"
)


@dataclass(frozen=True)
class Failure:
    """Where a resized copy went wrong. Progress is comparable between trials: (ran to its end, operator, line)."""

    progress: tuple[int, int, int]
    module: str
    text: str
    axes: tuple[Axis, ...] = ()
    number: int | None = None  # of the operator whose numbers changed


@dataclass(frozen=True)
class Probe:
    """A model, its traces with the axes of every value, and the widths to try it at."""

    model: nn.Module
    inputs: ExampleInputs
    outputs: Sequence[str] | None
    walks: Sequence[Walk]
    modes: Sequence[bool]
    specs: Mapping[str, TensorSpec]
    full: Mapping[int, int]
    small: Mapping[int, int]
    attributes: Attributes
    build: Callable[[], nn.Module] | None = None

    def axes(self, walk: Walk, value: Value) -> tuple[Axis, ...]:
        """The resolved axes of a value."""
        return tuple(walk.unifier.resolve(a) for a in walk.infos[value].axes)

    def changes(self, axis: Axis) -> bool:
        """Whether the axis has another size at the widths to try."""
        return size(axis, self.full) != size(axis, self.small)


def compare(
    probe: Probe, walk: Walk, found: Trace, laws: dict[int, tuple[Law, ...]]
) -> Failure | None:
    """First operator whose name, shapes or numbers are not as predicted; adds the laws that fit each factor."""
    old_constants, new_constants = fold(walk.trace), fold(found)
    for i, (op, twin) in enumerate(zip(walk.trace.ops, found.ops, strict=False)):
        index = walk.first_op + i

        def failure(text: str, op: Op = op, i: int = i, number: int | None = None) -> Failure:
            values = [v for v in (*op.inputs(), *op.outputs) if v in walk.infos]
            axes = [a for v in values for a in probe.axes(walk, v)]
            return Failure((1, i, 0), op.module, text, tuple(axes), number)

        if op.name != twin.name or len(op.outputs) != len(twin.outputs):
            return failure(f"at another width '{op.module}' runs {twin.name} instead of {op.name}")
        for value, other in zip(op.outputs, twin.outputs, strict=True):
            wanted = tuple(size(a, probe.small) for a in probe.axes(walk, value))
            if wanted != other.shape:
                text = f"{op.where()} computes a shape by itself: {other.shape} where {wanted} is needed"
                return failure(text)
        if not _same_tensors(walk.trace, op, found, twin):
            return failure(f"{op.where()} uses a constant that changes with a width")
        for position, axis in walk.expected.get(index, {}).items():
            if twin.args[position] != size(walk.unifier.resolve(axis), probe.small):
                return failure(f"{op.where()} has a fixed number of groups in the model's code")
        if op.outputs and all(v in old_constants for v in op.outputs):
            continue  # a number in the making; what matters is who uses it
        old, new = _Numbers(op, old_constants), _Numbers(twin, new_constants)
        unknown = f"{op.where()} uses a number that changes with a width in an unknown way"
        if old.others != new.others:
            return failure(unknown, number=index)
        if is_default_attention(op):
            width = walk.unifier.resolve(walk.infos[op.args[0]].axes[-1])
            if probe.changes(width):
                laws[index] = (Law(width, -0.5),)
        elif old.factor != new.factor:
            fitting = _laws(probe, walk, op, old, new)
            if not fitting:
                return failure(unknown, number=index)
            laws[index] = fitting
    if len(walk.trace.ops) != len(found.ops):
        ran = found.ops[len(walk.trace.ops) :] or walk.trace.ops[len(found.ops) :]
        text = "at another width the model runs other operators"
        return Failure((1, min(len(found.ops), len(walk.trace.ops)), 0), ran[0].module, text)
    return None


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


class _Numbers:
    """The factor that an operator multiplies its input by, and the other numbers that it computes with.

    Sizes are left out: they show in the shape of the output.
    """

    def __init__(self, op: Op, constants: Mapping[Value, torch.Tensor]) -> None:
        base = _base(op)
        self.factor: float | None = None
        self.eps = 0.0
        args, kwargs = list(op.args), dict(op.kwargs)
        if base in _PRODUCTS and len(args) > 1:
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
        elif base == "aten.scaled_dot_product_attention":
            self.factor = kwargs.pop("scale", None)
        elif base in ("aten.baddbmm", "aten.addmm"):
            self.factor = float(kwargs.pop("alpha", 1))
        self.others = list(_visit(base, args, kwargs, constants))


def _visit(
    base: str, args: list[Any], kwargs: dict[str, Any], constants: Mapping[Value, torch.Tensor]
) -> Iterator[float]:
    is_fill = base in ("aten.full", "aten.new_full")
    kinds = float if _SHAPES.match(base) else (int, float)
    if is_fill:
        size_at = 0 if base == "aten.full" else 1
        args = [*args[:size_at], *args[size_at + 1 :]]

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


def _base(op: Op) -> str:
    return ".".join(op.name.split(".")[:2]).removesuffix("_")


def is_default_attention(op: Op) -> bool:
    """Whether an operator is attention that divides by √d by itself."""
    return _base(op) == "aten.scaled_dot_product_attention" and op.kwargs.get("scale") is None


def _same_tensors(trace: Trace, op: Op, found: Trace, twin: Op) -> bool:
    """Whether the tensors of several entries that the code made by itself hold the same values at both widths."""
    for value, other in zip(op.inputs(), twin.inputs(), strict=False):
        a, b = trace.constants.get(value), found.constants.get(other)
        if a is None or b is None or a.shape != b.shape or a.device.type == "meta":
            continue
        if a.numel() != 1 and not torch.equal(a.detach(), b.detach()):
            return False
    return True


def _laws(probe: Probe, walk: Walk, op: Op, old: _Numbers, new: _Numbers) -> tuple[Law, ...]:
    """All laws that explain how the factor changed, the nearest axis first."""
    if old.factor is None or new.factor is None or old.factor * new.factor <= 0:
        return ()
    if math.isinf(old.factor * new.factor) or _scales_a_weight(walk, op):
        return ()
    change = math.log(old.factor / new.factor)
    tolerance = max(_LEAST_TOLERANCE, 4 * old.eps, 4 * new.eps)
    found: dict[Law, None] = {}
    for axis in _nearby(probe, walk, op):
        ratio = math.log(size(axis, probe.full) / size(axis, probe.small))
        for power in POWERS:
            if abs(change - power * ratio) <= tolerance:
                law = Law(unsigned(axis), power, _mean_at(walk, op, axis, power))
                found[law] = None
    return tuple(found)


def _mean_at(walk: Walk, op: Op, axis: Axis, power: float) -> tuple[str, str] | None:
    """The module and site of a sum that a product with a number ∝ axis^power makes a mean of, if it does."""
    if id(op) not in walk.means:
        return None
    total, entered = walk.means[id(op)]
    if total.site is None or not math.isclose(entered + power, 0, abs_tol=1e-9):
        return None
    site, unifier = total.site, walk.unifier
    summed = [unifier.resolve(s.axis) for s in walk.statistics if (s.module, s.site) == site]
    moving = [a for a in summed if any(unifier.frozen(r.group) is None for r in refs(a))]
    if {unsigned(a) for a in moving} != {unsigned(axis)}:
        return None
    sums = [o for o in walk.trace.ops if o.site == site and o.name == total.name]
    means = {id(o) for o, _ in walk.means.values()}
    return site if all(id(o) in means for o in sums) else None


def _scales_a_weight(walk: Walk, op: Op) -> bool:
    """Whether the factor is on a weight or bias itself, whose own rescaling is not the place to make up for it."""
    for value in op.inputs():
        name = walk.trace.parameters.get(value)
        use = walk.infos[value].use if value in walk.infos else None
        uses = [use] if use is not None else walk.uses.get(name or "", [])
        if any(u.kind in ("weight", "bias", "gain") for u in uses):
            return True
    return False


def same_numbers(op: Op, trace: Trace, twin: Op, found: Trace) -> bool:
    """Whether an operator computes with the same numbers in two traces."""
    old, new = _Numbers(op, fold(trace)), _Numbers(twin, fold(found))
    return old.factor == new.factor and old.others == new.others


def _nearby(probe: Probe, walk: Walk, op: Op) -> Iterator[Axis]:
    """Axes that change: of the operator's inputs and of what produced them, then all others."""
    producers = {v: o for o in walk.trace.ops for v in o.outputs}
    frontier = list(op.inputs())
    seen: set[Value] = set()
    for _ in range(_NEAR):
        following: list[Value] = []
        for value in frontier:
            if value in seen:
                continue
            seen.add(value)
            name = walk.trace.parameters.get(value)
            axes: tuple[Axis, ...] = ()
            if value in walk.infos:
                axes = probe.axes(walk, value)
            elif name is not None and name in probe.specs:
                axes = probe.specs[name].axes
            for axis in reversed(axes):
                for part in (axis, *refs(axis)):
                    if probe.changes(part):
                        yield part
            if value in producers:
                following += producers[value].inputs()
        frontier = following
    for group in probe.full:
        if probe.changes(Ref(group)):
            yield Ref(group)
