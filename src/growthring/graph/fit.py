"""Settles, by running a resized copy on fake tensors, whether a model's own code can follow new widths.

The forward pass of a model holds sizes of its own: `view(b, t, self.num_heads, -1)`,
`split(self.split_size)`, `x / math.sqrt(self.head_dim)`. A copy at other widths is traced; it must
run the same operators on tensors of exactly the shapes that the axes predict. Where it fails,
attributes of the failing module that hold a size which should have changed are tried, one at a
time, as long as the trace gets further. What still fails is frozen, with the reason. Factors that
change with a width are explained by a law (∝ width^±½, ±1) or refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from growthring.core.axes import Axis, Ref, refs, size
from growthring.errors import GrowthError, InputError
from growthring.graph.groups import Law, TensorSpec
from growthring.graph.rules.walk import Walk
from growthring.graph.skeleton import Attributes, empty_copy, owner
from growthring.graph.trace import ExampleInputs, Op, Trace, Value, trace

_SCALED = (
    "aten.mul",
    "aten.div",
    "aten.scaled_dot_product_attention",
    "aten.baddbmm",
    "aten.addmm",
)
_POWERS = (-0.5, 0.5, -1.0, 1.0)
_MOST_TRIALS = 40
_NUMBER = re.compile(r"\d+")
# Operators whose whole numbers are sizes, axes or positions.
_SHAPES = re.compile(
    r"aten\.(view|reshape|_unsafe_view|_reshape|flatten|unflatten|expand|broadcast_to|repeat|tile|split|chunk"
    r"|tensor_split|unsafe_|slice|narrow|select|zeros|ones|empty|new_zeros|new_ones|new_empty|conv|constant_pad"
    r"|pad|layer_norm|rms_norm|group_norm|native_|batch_norm|instance_norm|embedding|cat|stack|permute|upsample"
    r"|_?adaptive_|pixel_|channel_shuffle|linear|as_strided|sym_)"
)


@dataclass
class Fit:
    """Outcome of fitting: the attributes that follow, the laws found, or what must be frozen and why."""

    attributes: dict[tuple[str, str], tuple[Axis, ...]] = field(default_factory=dict)
    laws: dict[int, Law] = field(default_factory=dict)
    blocked: list[Ref] = field(default_factory=list)
    reason: str = ""


@dataclass(frozen=True)
class _Failure:
    """Where a resized copy went wrong. Progress is comparable between trials: (ran to its end, operator, line)."""

    progress: tuple[int, int, int]
    module: str
    text: str
    axes: tuple[Axis, ...] = ()


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
    build: Callable[[], nn.Module] | None = None

    def axes(self, walk: Walk, value: Value) -> tuple[Axis, ...]:
        """The resolved axes of a value."""
        return tuple(walk.unifier.resolve(a) for a in walk.infos[value].axes)

    def changes(self, axis: Axis) -> bool:
        """Whether the axis has another size at the widths to try."""
        return size(axis, self.full) != size(axis, self.small)


def fit(probe: Probe, attributes: Attributes) -> Fit:
    """Finds the attributes with which a resized copy runs as predicted, or says what blocks it.

    First everything that the code reads and that holds a changing size follows; then only what
    cannot be mistaken for an unchanging size; then one attribute at a time is added, as long as the
    trace gets further.
    """
    certain, doubtful = _read_sizes(probe) if probe.build is None else ({}, {})
    known = dict(attributes)
    failed = known | certain | doubtful
    if doubtful:
        trial = Fit(failed)
        if _attempt(probe, trial) is None:
            return trial
    result = Fit(known | certain)
    failure = _attempt(probe, result)
    if failure is None:
        return result
    trials = 0
    while trials < _MOST_TRIALS:
        for extra in _candidates(probe, failure, certain | doubtful, result.attributes):
            trials += 1
            trial = Fit(result.attributes | extra)
            if trial.attributes == failed:
                continue
            outcome = _attempt(probe, trial)
            if outcome is None:
                return trial
            if outcome.progress > failure.progress:
                failure, result = outcome, trial
                break
        else:
            break
    result.blocked = _blame(probe, failure)
    result.reason = failure.text
    return result


def _read_sizes(probe: Probe) -> tuple[dict[tuple[str, str], tuple[Axis, ...]], ...]:
    """Attributes that the code read and that hold a changing size: those that hold nothing else, and the rest."""
    certain: dict[tuple[str, str], tuple[Axis, ...]] = {}
    doubtful: dict[tuple[str, str], tuple[Axis, ...]] = {}
    for walk in probe.walks:
        for path, name in sorted(walk.trace.reads):
            holder, last = owner(probe.model, path, name)
            value = getattr(holder, last)
            sizes = (value,) if isinstance(value, int) else tuple(value)
            if not sizes or not all(type(n) is int and n > 1 for n in sizes):
                continue
            seen = _axes_inside(probe, path)
            axes = next(_matching(probe, seen, sizes), None)
            if axes is None:
                continue
            still = {size(a, probe.full) for a in seen if not probe.changes(a)}
            (doubtful if still & set(sizes) else certain)[(path, name)] = axes
    return certain, doubtful


def recheck(probe: Probe, fitted: Fit) -> Fit:
    """Runs a fitted model at other widths; says what blocks it there, if anything."""
    trial = Fit(dict(fitted.attributes))
    failure = _attempt(probe, trial)
    if failure is not None:
        trial.blocked, trial.reason = _blame(probe, failure), failure.text
    return trial


def _attempt(probe: Probe, result: Fit) -> _Failure | None:
    """Traces a copy at the small widths and compares it with the prediction; fills in the laws."""
    result.laws.clear()
    if probe.build is not None:
        twin = probe.build()
        if not isinstance(twin, nn.Module):
            raise InputError(f"build(widths) returned a {type(twin).__name__}, not an nn.Module.")
    else:
        twin = empty_copy(probe.model, probe.specs, result.attributes, probe.full, probe.small)
    for walk, training in zip(probe.walks, probe.modes, strict=True):
        try:
            found = trace(twin, probe.inputs, training, outputs=probe.outputs)
        except GrowthError as error:
            return _crash(probe, walk, twin, error)
        failure = _compare(probe, walk, found, result.laws)
        if failure is not None:
            return failure
    return None


def _crash(probe: Probe, walk: Walk, twin: nn.Module, error: GrowthError) -> _Failure:
    """The copy's own code raised: find the innermost module on the stack."""
    paths = {id(module): path for path, module in twin.named_modules()}
    cause: BaseException = error.__cause__ or error
    module, line = "", 0
    entry = cause.__traceback__
    while entry is not None:
        holder = entry.tb_frame.f_locals.get("self")
        if id(holder) in paths:
            module, line = paths[id(holder)], entry.tb_lineno
        entry = entry.tb_next
    starts = [i for i, op in enumerate(walk.trace.ops) if _inside(op.module, module)]
    message = (str(cause).strip().splitlines() or [""])[0]
    text = f"the code of '{module or '(model)'}' does not follow another width ({message})"
    return _Failure((0, starts[0] if starts else 0, line), module, text)


def _inside(path: str, module: str) -> bool:
    return module == "" or path == module or path.startswith(f"{module}.")


def _compare(probe: Probe, walk: Walk, found: Trace, laws: dict[int, Law]) -> _Failure | None:
    """First operator whose name, shapes or numbers are not as predicted."""
    for i, (op, twin) in enumerate(zip(walk.trace.ops, found.ops, strict=False)):
        progress = (1, i, 0)

        def failure(text: str, op: Op = op, progress: tuple[int, int, int] = progress) -> _Failure:
            axes = [
                a
                for v in (*op.inputs(), *op.outputs)
                if v in walk.infos
                for a in probe.axes(walk, v)
            ]
            return _Failure(progress, op.module, text, tuple(axes))

        if op.name != twin.name:
            return failure(f"at another width '{op.module}' runs {twin.name} instead of {op.name}")
        for value, other in zip(op.outputs, twin.outputs, strict=True):
            wanted = tuple(size(a, probe.small) for a in probe.axes(walk, value))
            if wanted != other.shape:
                text = f"{op.where()} computes a shape by itself: {other.shape} where {wanted} is needed"
                return failure(text)
        if not _same_constants(walk.trace, op, found, twin):
            return failure(f"{op.where()} uses a constant that changes with a width")
        for position, axis in walk.expected.get(walk.first_op + i, {}).items():
            if twin.args[position] != size(walk.unifier.resolve(axis), probe.small):
                return failure(f"{op.where()} has a fixed number of groups in the model's code")
        if not _explained(probe, walk, op, twin, walk.first_op + i, laws):
            return failure(
                f"{op.where()} uses a number that changes with a width in an unknown way"
            )
    if len(walk.trace.ops) != len(found.ops):
        return _Failure(
            (1, len(found.ops), 0), "", "at another width the model runs other operators"
        )
    return None


def _same_constants(trace: Trace, op: Op, found: Trace, twin: Op) -> bool:
    """Whether the tensors that the code made by itself hold the same values at both widths."""
    for value, other in zip(op.inputs(), twin.inputs(), strict=False):
        a, b = trace.constants.get(value), found.constants.get(other)
        if a is None or b is None or a.shape != b.shape or a.device.type == "meta":
            continue
        if not torch.equal(a.detach(), b.detach()):
            return False
    return True


def _numbers(op: Op) -> list[float]:
    """The numbers an operator computes with; sizes, which its output's shape shows, are left out."""
    base = ".".join(op.name.split(".")[:2]).removesuffix("_")
    kinds = float if _SHAPES.match(base) else (int, float)
    fill = {"aten.full": 0, "aten.new_full": 1}.get(base)
    args = op.args if fill is None else (*op.args[:fill], *op.args[fill + 1 :])
    if fill is not None:
        kinds = (int, float)

    def visit(item: Any) -> Iterator[float]:
        if isinstance(item, kinds) and not isinstance(item, bool):
            yield float(item)
        elif isinstance(item, (list, tuple)):
            for child in item:
                yield from visit(child)

    return [*visit(args), *visit(tuple(op.kwargs.values()))]


def _explained(
    probe: Probe, walk: Walk, op: Op, twin: Op, index: int, laws: dict[int, Law]
) -> bool:
    base = ".".join(op.name.split(".")[:2]).removesuffix("_")
    if base == "aten.scaled_dot_product_attention" and op.kwargs.get("scale") is None:
        width = walk.unifier.resolve(walk.infos[op.args[0]].axes[-1])
        if probe.changes(width):
            laws[index] = Law(width, -0.5)
        return twin.kwargs.get("scale") is None
    old, new = _numbers(op), _numbers(twin)
    if base in ("aten.baddbmm", "aten.addmm"):
        old, new = ([float(o.kwargs.get("alpha", 1))] for o in (op, twin))
    if base in ("aten.mul", "aten.div") and len(list(op.inputs())) == 1:
        old, new = ([float(a) for a in o.args if isinstance(a, (int, float))] for o in (op, twin))
    if old == new:
        return True
    if base not in _SCALED or len(old) != 1 or len(new) != 1 or old[0] * new[0] <= 0:
        return False
    change = math.log(old[0] / new[0]) * (-1 if base == "aten.div" else 1)
    for axis in _nearby(probe, walk, op):
        ratio = math.log(size(axis, probe.full) / size(axis, probe.small))
        for power in _POWERS:
            if math.isclose(change, power * ratio, rel_tol=1e-6):
                laws[index] = Law(axis, power, walk.mean_at(op, axis, power))
                return True
    return False


def _nearby(probe: Probe, walk: Walk, op: Op) -> Iterator[Axis]:
    """Axes that change, of the operator's inputs and of what produced them, nearest first."""
    producers = {v: o for o in walk.trace.ops for v in o.outputs}
    frontier = list(op.inputs())
    seen: set[Value] = set()
    for _ in range(8):
        following: list[Value] = []
        for value in frontier:
            if value in seen:
                continue
            seen.add(value)
            if value in walk.infos:
                for axis in reversed(probe.axes(walk, value)):
                    for part in (axis, *refs(axis)):
                        if probe.changes(part):
                            yield part
            if value in producers:
                following += producers[value].inputs()
        frontier = following


def _candidates(
    probe: Probe,
    failure: _Failure,
    read: Mapping[tuple[str, str], tuple[Axis, ...]],
    known: Attributes,
) -> Iterator[dict[tuple[str, str], tuple[Axis, ...]]]:
    """Attributes worth trying: those of the failing module that were read, then of its parents.

    The same attribute of every module of that class is tried together: a stack of layers fails as
    one.
    """
    path = failure.module
    while True:
        kind = type(probe.model.get_submodule(path))
        for name in [n for p, n in read if p == path and (p, n) not in known]:
            yield {
                (p, n): axes
                for (p, n), axes in read.items()
                if n == name and type(probe.model.get_submodule(p)) is kind
            }
        if path == "":
            return
        path = path.rpartition(".")[0]


def _matching(
    probe: Probe, seen: Iterable[Axis], sizes: tuple[int, ...]
) -> Iterator[tuple[Axis, ...]]:
    """Axes among `seen` that have these sizes; at least one of them changes."""
    choices = [[a for a in seen if size(a, probe.full) == n] for n in sizes]
    moving = [[a for a in options if probe.changes(a)] for options in choices]
    if any(moving) and all(choices):
        yield tuple((m or c)[0] for m, c in zip(moving, choices, strict=True))


def _axes_inside(probe: Probe, path: str) -> list[Axis]:
    """Axes of the tensors that a module's own code handles; of its sub-modules' where it handles none."""
    found: dict[Axis, None] = {}
    for direct in (True, False):
        for walk in probe.walks:
            for op in walk.trace.ops:
                if op.module == path if direct else _inside(op.module, path):
                    for value in (*op.inputs(), *op.outputs):
                        if value in walk.infos:
                            for axis in probe.axes(walk, value):
                                found.update(dict.fromkeys((axis, *refs(axis))))
        if found:
            break
    return list(found)


def _blame(probe: Probe, failure: _Failure) -> list[Ref]:
    """The widths to freeze: those of the failing operator, or those that only its module knows.

    Layers come in stacks: the same widths of every module at a like place are blamed together.
    """
    axes: Iterable[Axis] = failure.axes or _axes_inside(probe, failure.module)
    candidates = {ref.group: ref for axis in axes for ref in refs(axis) if probe.changes(ref)}
    outside = {
        ref.group
        for walk in probe.walks
        for op in walk.trace.ops
        if not _inside(op.module, failure.module)
        for value in op.outputs
        for axis in probe.axes(walk, value)
        for ref in refs(axis)
    }
    local = [ref for key, ref in candidates.items() if key not in outside]
    if not local:
        if candidates:
            return list(candidates.values())
        return [Ref(key) for key in probe.full if probe.full[key] != probe.small[key]]
    own = [r.group for axis in _axes_inside(probe, failure.module) for r in refs(axis)]
    blamed = list(local)
    pattern = _NUMBER.sub("*", failure.module)
    for path, _ in probe.model.named_modules():
        if path != failure.module and _NUMBER.sub("*", path) == pattern:
            theirs = [r for axis in _axes_inside(probe, path) for r in refs(axis)]
            if len(theirs) == len(own):
                blamed += [theirs[own.index(r.group)] for r in local if r.group in own]
    return blamed
