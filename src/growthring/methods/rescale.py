"""The factors on old tensors in one growth: variance transfer, and what the model's own code needs.

A factor in the code that follows a width (attention's 1/√d_head) must be made up for in the weights by
every method that keeps the function; the rest is variance transfer, which only `paired` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from growthring.core.axes import size
from growthring.core.variance import Factors, Record, ScaleConflict, forward, preserve, rescaling
from growthring.distributed.shards import gathered
from growthring.graph.groups import TensorSpec
from growthring.graph.laws import log_ratios
from growthring.methods.base import CONSTANTS, Divisors, Step

# Largest relative change of a BatchNorm's output in train mode that its ε may make.
_EPS_SHOWS = 1e-3


def transfer(step: Step, tensors: Mapping[str, torch.Tensor], hold_norms: bool = False) -> Factors:
    """Variance transfer of one growth: the factor on every tensor's old entries.

    Args:
        step: the growth.
        tensors: the model's tensors before it.
        hold_norms: in mode "preserving", keep scale 1 in front of all norms: their ε would show.
    """
    groups = step.plan.groups
    ratios = log_ratios(groups.laws, step.before, step.after)
    targets: dict[str, float] = {}
    for name, spec in groups.specs.items():
        if spec.kind != "weight" or spec.read_and_written:
            continue
        role = step.plan.role(spec)
        labels = (
            [name] if spec.pieces is None else [f"{name}#{k}" for k in range(len(spec.pieces[1]))]
        )
        if step.mode == "constraint" and role != "output":
            variance = float(gathered(tensors[name]).double().var(correction=0))
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
        held += [i for r in groups.records if r.kind in ("norm", "stats") for i in r.inputs]
    try:
        return preserve(groups.records, groups.scale_count, targets, ratios, held)
    except ScaleConflict:  # shared layers may allow no factor but 1
        return preserve(groups.records, groups.scale_count, {}, ratios)


def _small_variances(
    records: Sequence[Record], targets: Mapping[str, float], tensors: Mapping[str, torch.Tensor]
) -> list[int]:
    """Inputs of BatchNorms whose variance is so little that its ε would show after rescaling.

    In eval mode ε is taken out of the running variance, which must leave something; in train mode it shows
    in the batch's own.
    """
    shrink = math.exp(2 * min([0.0, *targets.values()]))
    held = []
    for r in records:
        if r.kind == "stats":
            variance = tensors[r.names[1]].detach().double()
            size = (variance / (variance + r.eps)).sqrt()  # of a normalised channel
            after = (shrink * variance / (shrink * variance + r.eps)).sqrt()
            shows = float((size - after).square().mean().sqrt()) > _EPS_SHOWS
            if shows or float(variance.min()) * shrink <= (1 - shrink) * r.eps:
                held.append(r.inputs[0])
    return held


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


def old_factors(step: Step, factors: Factors, tensors: Mapping[str, torch.Tensor]) -> Divisors:
    """The factors of all tensors whose factor is not 1."""
    divisors: Divisors = {}
    for name, spec in step.plan.groups.specs.items():
        factor = old_factor(step, spec, factors, tensors[name])
        if not is_one(factor):
            divisors[name] = factor
    return divisors


def is_kept(step: Step, spec: TensorSpec, factors: Factors) -> bool:
    """Whether a tensor that is no running statistic stays as it is: no new entries, and no factor but 1."""
    parts = () if spec.pieces is None else range(len(spec.pieces[1]))
    labels = [f"{spec.name}#{k}" for k in parts] or [spec.name]
    return not step.changes(spec) and all(factors.tensors.get(n, 1.0) == 1.0 for n in labels)


def is_one(factor: float | torch.Tensor) -> bool:
    """Whether a factor changes nothing."""
    return isinstance(factor, float) and factor == 1.0


def stat_factors(factors: Factors) -> dict[str, tuple[float, float]]:
    """Running mean or variance -> (scale of the norm's input, its ε)."""
    return {name: value for pair, value in factors.stats.items() for name in pair}


def rescaled_stat(spec: TensorSpec, old: torch.Tensor, scale: float, eps: float) -> torch.Tensor:
    """Running statistics of an input rescaled by s: mean · s, variance · s² less what ε adds.

    (s²σ² + ε) is not s²(σ² + ε); taking the difference out of the variance makes eval mode exact.
    """
    if scale == 1.0:
        return old
    square = scale * scale
    return old * scale if spec.kind == "mean" else (square * old - (1 - square) * eps).clamp_min(0)


def rescaled(
    step: Step, factors: Factors, old: Mapping[str, torch.Tensor]
) -> Iterator[tuple[TensorSpec, torch.Tensor]]:
    """Every tensor that a growth changes, with its old values rescaled."""
    stats = stat_factors(factors)
    for name, spec in step.plan.groups.specs.items():
        if name not in stats and is_kept(step, spec, factors):
            continue
        tensor = old[name].detach()
        factor = old_factor(step, spec, factors, tensor)
        if name in stats:
            tensor = rescaled_stat(spec, tensor, *stats[name])
        elif not is_one(factor):
            tensor = tensor * factor
        elif not step.changes(spec):
            continue
        yield spec, tensor


def constant_of(step: Step, spec: TensorSpec) -> complex | None:
    """What new entries of a tensor hold if they are not drawn: the initialiser's constant, a norm's default."""
    constant = step.plan.initial[spec.name].constant
    return CONSTANTS.get(spec.kind) if constant is None else constant
