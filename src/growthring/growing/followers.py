"""Followers: what goes through a growth beside the model: copies of its weights, and its optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from growthring.core.rings import RingMap
from growthring.growing.matching import parameter_rings
from growthring.growing.streaming import add_noise, grown_tensors
from growthring.methods.base import Growth, Step
from growthring.optim.base import RingOptimizer
from growthring.optim.options import settle
from growthring.optim.state import Grown, Regrow, grow_state
from growthring.optim.wrap import ring_rates_of
from growthring.planning.plan import Plan


def replay_of(
    growth: Growth, tensors: Mapping[str, Tensor], generator: torch.Generator, noise: float
) -> Regrow:
    """The step that a model is about to take, for copies of its weights: the same new entries and noise.

    Args:
        growth: what the method decided on.
        tensors: of the model before the step; they stand in for the weights of which there is no copy.
        generator: as it is before the step.
        noise: see `Grower`.
    """
    old = {name: tensor.detach() for name, tensor in tensors.items()}
    device, state = generator.device, generator.get_state()

    def replay(copies: Mapping[str, Tensor]) -> dict[str, Tensor]:
        again = torch.Generator(device)
        again.set_state(state)
        grown = grown_tensors(growth, {**old, **copies}, again)
        if noise:
            add_noise(growth, grown, grown, noise, again)
        return grown

    return replay


def changes_of(
    step: Step,
    tensors: Mapping[str, Tensor],
    grown: Iterable[str],
    divisors: Mapping[str, float | Tensor],
) -> dict[Tensor, Grown]:
    """Parameter -> what happened to it, for the state that optimizers keep of it."""
    specs = step.plan.groups.specs
    return {
        tensors[name]: Grown(
            name,
            specs[name].shape(step.before),
            step.layouts(specs[name].axes),
            divisors.get(name, 1.0),
        )
        for name in grown
    }


def grow_optimizers(
    optimizers: Sequence[Optimizer],
    changed: Mapping[Tensor, Grown],
    replay: Regrow,
    num_rings: int,
    unknown_state: Literal["refuse", "reset"],
) -> list[str]:
    """Grows the state of optimizers; returns notes."""
    owners: dict[int, Optimizer] = {}
    for optimizer in optimizers:  # a wrapper may share the state of the one inside
        owners.setdefault(id(optimizer.state), optimizer)
    notes: list[str] = []
    for optimizer in owners.values():
        notes += grow_state(optimizer, changed, replay, num_rings, unknown_state)
    return notes


def tell_rings(
    optimizers: Iterable[Optimizer], model: nn.Module, plan: Plan, rings: RingMap
) -> None:
    """Tells optimizers that know rings where they are."""
    of_parameters = parameter_rings(model, plan, rings)
    for optimizer in optimizers:
        ring_rates = ring_rates_of(optimizer)
        if isinstance(optimizer, RingOptimizer):
            optimizer.bind_rings(of_parameters, plan.preset)
        elif ring_rates is not None:
            settle(optimizer.param_groups, plan.preset, {})
            ring_rates.bind(of_parameters)
