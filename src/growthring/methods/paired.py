"""paired: new units in equal pairs that cancel in what reads them, with variance transfer (the paper's method).

Nothing is trained or searched: the new tensors follow from the old ones, the plan and a generator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from growthring.core.axes import Axis, Layout, layout, size
from growthring.core.variance import (
    Factors,
    Mode,
    Record,
    ScaleConflict,
    deviation,
    forward,
    preserve,
    rescaling,
)
from growthring.core.widen import break_symmetry, widen_constant, widen_paired
from growthring.graph.groups import TensorSpec
from growthring.graph.laws import log_ratios
from growthring.plan import Plan

# What a new entry holds where the full model's tensor is not constant.
_DEFAULTS = {"bias": 0.0, "gain": 1.0, "mean": 0.0, "variance": 1.0}


@dataclass(frozen=True)
class Step:
    """One growth of a plan: from widths `before` (stage t) to `after` (stage t + 1)."""

    plan: Plan
    before: Mapping[int, int]
    after: Mapping[int, int]
    mode: Mode

    def layouts(self, axes: tuple[Axis, ...], cache: dict[Axis, Layout]) -> list[Layout]:
        """Layouts of a tensor's axes; `cache` shares them between tensors."""
        for axis in axes:
            if axis not in cache:
                cache[axis] = layout(axis, self.before, self.after)
        return [cache[axis] for axis in axes]

    def std(self, spec: TensorSpec) -> float:
        """Deviation of the new entries of a tensor (Table 1; the user's own initialiser at stage 0)."""
        plan, initial = self.plan, self.plan.initial[spec.name]
        if spec.kind != "weight" or spec.tied:
            return initial.std
        fan_in = spec.fan_in(self.after)
        if self.mode == "constraint":
            return math.sqrt(1 / fan_in)
        first, full = plan.stage_widths[0], plan.stage_widths[-1]
        seed_std = initial.std * math.sqrt(spec.fan_in(full) / spec.fan_in(first))
        role = "hidden" if self.mode == "off" and plan.role(spec) == "output" else plan.role(spec)
        return deviation(role, seed_std, spec.fan_in(first), fan_in)


def transfer(step: Step, tensors: Mapping[str, torch.Tensor], hold_norms: bool = False) -> Factors:
    """Variance transfer of one growth: the factor on every tensor's old entries.

    Args:
        step: the growth.
        tensors: the model's tensors before it.
        hold_norms: in mode "preserving", keep scale 1 in front of norms other than BatchNorm, whose ε would show.
    """
    groups = step.plan.groups
    ratios = log_ratios(groups.laws, step.before, step.after)
    targets: dict[str, float] = {}
    for name, spec in groups.specs.items():
        if spec.kind != "weight" or spec.tied:
            continue
        role = step.plan.role(spec)
        labels = (
            [name] if spec.pieces is None else [f"{name}#{k}" for k in range(len(spec.pieces[1]))]
        )
        if step.mode == "constraint" and role != "output":
            variance = float(tensors[name].detach().double().var(correction=0))
            if variance > 0:
                target = -0.5 * math.log(spec.fan_in(step.before) * variance)
                targets |= dict.fromkeys(labels, target)
        elif step.mode != "off":
            factor = rescaling(role, spec.fan_in(step.before), spec.fan_in(step.after))
            targets |= dict.fromkeys(labels, math.log(factor))
    if step.mode in ("paper", "constraint"):
        return forward(groups.records, groups.scale_count, targets, ratios)
    held = _small_variances(groups.records, targets, tensors)
    if hold_norms:
        held += [i for r in groups.records if r.kind == "norm" for i in r.inputs]
    try:
        return preserve(groups.records, groups.scale_count, targets, ratios, held)
    except ScaleConflict:  # shared layers may allow no factor but 1
        return preserve(groups.records, groups.scale_count, {}, ratios)


def _small_variances(
    records: Sequence[Record], targets: Mapping[str, float], tensors: Mapping[str, torch.Tensor]
) -> list[int]:
    """Inputs of BatchNorms that have channels of so little variance that its ε could not be made up for."""
    shrink = math.exp(2 * min([0.0, *targets.values()]))
    return [
        r.inputs[0]
        for r in records
        if r.kind == "stats" and float(tensors[r.names[1]].min()) * shrink <= (1 - shrink) * r.eps
    ]


def grow_tensors(
    step: Step,
    tensors: Mapping[str, torch.Tensor],
    factors: Factors,
    generator: torch.Generator,
    cache: dict[Axis, Layout],
) -> dict[str, torch.Tensor]:
    """The grown tensors, without symmetry-breaking noise; those that do not change are left out."""
    stats = {name: pair for pair in factors.stats for name in pair}
    grown: dict[str, torch.Tensor] = {}
    for name, spec in step.plan.groups.specs.items():
        old = tensors[name].detach()
        layouts = step.layouts(spec.axes, cache)
        factor = old_factor(step, spec, factors, old)
        if name in stats:
            grown[name] = _grow_stat(spec, old, layouts, *factors.stats[stats[name]])
        elif not any(lay.grows for lay in layouts):
            if not isinstance(factor, float) or factor != 1.0:
                grown[name] = old * factor
        else:
            grown[name] = _grow(step, spec, old, layouts, factor, generator)
    return grown


def old_factor(
    step: Step, spec: TensorSpec, factors: Factors, old: torch.Tensor
) -> float | torch.Tensor:
    """The factor on the old entries: one number, or one per segment of a fused tensor."""
    if spec.pieces is None:
        return factors.tensors.get(spec.name, 1.0)
    axis, parts = spec.pieces
    numbers = [factors.tensors.get(f"{spec.name}#{k}", 1.0) for k in range(len(parts))]
    if all(n == 1.0 for n in numbers):
        return 1.0
    sizes = [size(part, step.before) for part in parts]
    line = torch.repeat_interleave(old.new_tensor(numbers), torch.tensor(sizes, device=old.device))
    return line.reshape([-1] + [1] * (old.dim() - 1 - axis))


def _grow_stat(
    spec: TensorSpec, old: torch.Tensor, layouts: list[Layout], scale: float, eps: float
) -> torch.Tensor:
    """Running statistics of an input rescaled by s: mean · s, variance · s² less what ε adds.

    (s²σ² + ε) is not s²(σ² + ε); taking the difference out of the variance makes eval mode exact.
    """
    if scale != 1.0:
        square = scale * scale
        old = (
            old * scale if spec.kind == "mean" else (square * old - (1 - square) * eps).clamp_min(0)
        )
    return widen_constant(old, layouts, _DEFAULTS[spec.kind])


def _grow(
    step: Step,
    spec: TensorSpec,
    old: torch.Tensor,
    layouts: list[Layout],
    factor: float | torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    initial = step.plan.initial[spec.name]
    if spec.tied:
        return widen_constant(old, layouts, 0.0, factor)
    if initial.constant is not None or spec.kind in _DEFAULTS:
        constant = initial.constant
        value = _DEFAULTS[spec.kind] if constant is None else constant
        if _odd(spec, layouts):
            value = 0.0  # opposite halves: only zero is its own opposite
        return widen_constant(old, layouts, value, factor)
    new = widen_paired(old, layouts, spec.read, step.std(spec), factor, generator)
    if spec.zero_rows:
        rows = torch.tensor(sorted(spec.zero_rows), device=new.device)
        kept = layouts[1].new.to(new.device)
        new[rows[:, None], kept[None, :]] = 0
    return new


def _odd(spec: TensorSpec, layouts: list[Layout]) -> bool:
    return not all(lay.is_plain for lay in layouts)


def add_noise(
    step: Step,
    grown: Mapping[str, torch.Tensor],
    noise: float,
    generator: torch.Generator,
    cache: dict[Axis, Layout],
) -> None:
    """Adds noise of relative size `noise` to second halves of pairs, in place.

    Depthwise filters and vectors get none: their pairs part through the signs of what reads them.
    """
    for name, new in grown.items():
        spec = step.plan.groups.specs[name]
        is_drawn = step.plan.initial[name].constant is None and not spec.tied
        if spec.kind == "weight" and spec.read and is_drawn:
            layouts = step.layouts(spec.axes, cache)
            break_symmetry(new, layouts, spec.read, noise * step.std(spec), generator)
