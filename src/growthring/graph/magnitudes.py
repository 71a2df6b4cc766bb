"""Weight normalisation, w = g · v / |v|, as a plain weight: growth moves the ratio g / |v| along, and g follows.

Whatever a method does to v, |v| changes with it. So methods are shown ratios r = g / |v| in place of
magnitudes (w = r · v, entry by entry), and the magnitudes g = r · |v| are worked out from what they return.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from growthring.graph.groups import TensorSpec

Specs = Mapping[str, TensorSpec]


def _norm(direction: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
    """|v| over the axes along which its magnitude has one entry."""
    same = magnitude.dim() == direction.dim()
    axes = [i for i in range(direction.dim()) if not same or magnitude.shape[i] == 1]
    if not axes:
        return direction.abs()
    return torch.linalg.vector_norm(direction, dim=axes, keepdim=True).reshape(magnitude.shape)


def _links(specs: Specs) -> dict[str, str]:
    """Magnitude -> direction."""
    return {name: spec.of for name, spec in specs.items() if spec.kind == "magnitude"}


def with_ratios(specs: Specs, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors with g / |v| in place of every magnitude g."""
    result = dict(tensors)
    for g, v in _links(specs).items():
        magnitude = tensors[g].detach()
        result[g] = magnitude / _norm(tensors[v].detach(), magnitude)
    return result


def with_magnitudes(
    specs: Specs, tensors: Mapping[str, torch.Tensor], ratios: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Some tensors, with the magnitudes that give their directions the ratios; the inverse of `with_ratios`.

    Args:
        specs: of all tensors.
        tensors: perhaps not all of them.
        ratios: in place of the magnitudes that are not among them.
    """
    result = dict(tensors)
    for g, v in _links(specs).items():
        if v not in result:
            continue
        ratio = result[g] if g in result else ratios[g]
        norm = _norm(result[v], ratio)
        # New entries that are all zero have no direction; magnitude 0 does the same for any.
        if bool((norm == 0).any()):
            result[v] = torch.where(norm == 0, torch.ones_like(result[v]), result[v])
        result[g] = ratio * norm
    return result


def effective(specs: Specs, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors with the weight w in place of every direction v."""
    ratios, result = with_ratios(specs, tensors), dict(tensors)
    for g, v in _links(specs).items():
        result[v] = tensors[v].detach() * ratios[g]
    return result


def typical_ratio(ratios: torch.Tensor) -> float:
    """The ratio that new units start with: 1 where the model is as torch makes it."""
    middle = float(ratios.detach().double().median())
    return round(middle, 6) if abs(middle - 1) < 1e-6 else middle
