"""Initial: how the user's initialiser filled a tensor, and what that asks of a thinner one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from growthring.graph.groups import TensorSpec, WidthGroups
from growthring.graph.magnitudes import typical_ratio, with_ratios
from growthring.graph.resize import named_tensors


@dataclass(frozen=True)
class Initial:
    """How the user's initialiser filled a tensor of the full model: its deviation, or the one value it holds."""

    std: float
    constant: complex | None


def initials_of(model: nn.Module, groups: WidthGroups) -> dict[str, Initial]:
    """How each tensor of the model is initialised; of a normalised weight's magnitude, its ratio to the norm."""
    initials = {}
    for name, tensor in with_ratios(groups.specs, named_tensors(model)).items():
        if name in groups.specs:
            is_ratio = groups.specs[name].kind == "magnitude"
            initials[name] = Initial(0.0, typical_ratio(tensor)) if is_ratio else _initial(tensor)
    return initials


def seed_gain(
    spec: TensorSpec,
    groups: WidthGroups,
    initial: Mapping[str, Initial],
    first: Mapping[int, int],
    full: Mapping[int, int],
) -> float:
    """What the seed's part of a tensor is multiplied by: √(full fan-in / seed fan-in) where that set its scale."""
    if spec.read_and_written or not spec.is_parameter or initial[spec.name].constant is not None:
        return 1.0
    if spec.kind == "bias":
        # torch draws a layer's bias from the fan-in of its weight
        weights = [groups.specs[n] for n in _weight_names(spec.name) if n in groups.specs]
        gains = (seed_gain(w, groups, initial, first, full) for w in weights if w.kind == "weight")
        return next(gains, 1.0)
    if spec.kind != "weight":
        return 1.0
    return math.sqrt(spec.fan_in(full) / spec.fan_in(first))


def _initial(tensor: torch.Tensor) -> Initial:
    values = tensor.detach()
    is_complex = values.is_complex()
    if not (values.is_floating_point() or is_complex) or not values.numel():
        return Initial(0.0, 0.0)
    first = values.flatten()[0]
    if bool((values == first).all()):
        return Initial(0.0, complex(first) if is_complex else float(first))
    wide = values.to(torch.complex128) if is_complex else values.double()
    return Initial(float(wide.std(correction=0)), None)


def _weight_names(bias: str) -> list[str]:
    """What the weight beside a bias may be called: plain, weight-normalised (two styles), of a recurrent layer."""
    stem = bias.removesuffix("bias")
    normalised = [f"{stem}weight_v", f"{stem}parametrizations.weight.original1"]
    prefix, is_recurrent, gate = bias.rpartition("bias_")
    of_layer = [f"{prefix}weight_hh{gate[2:]}"] if is_recurrent else []
    return [f"{stem}weight", *normalised, *of_layer]
