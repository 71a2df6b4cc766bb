"""Streaming: growth of tensors that are spread over processes, one whole tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from growthring.distributed.fullyshard import is_fully_sharded, shard_sizes
from growthring.distributed.shards import Whole, gathered, is_shard, local_of, shard_like
from growthring.errors import InputError, UnsupportedModelError
from growthring.methods import Growth, GrowthMethod
from growthring.methods.base import Divisors
from growthring.planning.plan import Plan


def grown_tensors(
    growth: Growth, old: Mapping[str, Tensor], generator: torch.Generator
) -> dict[str, Tensor]:
    """The grown tensors, each spread as the old one is; those that do not change are left out.

    Every process draws all numbers, so all of them hold the numbers that a single process would draw.
    """
    if not any(map(is_shard, old.values())):
        return growth.tensors(old, generator)
    grown: dict[str, Tensor] = {}
    for name, new in growth.each(Whole(old), generator):
        grown[name] = shard_like(old[name], new)
        del new  # before the next one is gathered
    return grown


def add_noise(
    growth: Growth,
    grown: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    noise: float,
    generator: torch.Generator,
) -> None:
    """Adds the method's noise to what is new, in place.

    Args:
        growth: what the method decided on.
        grown: the tensors that it made, in its order.
        tensors: those that have these values now.
        noise: see `Grower`.
        generator: of the noise.
    """
    if not any(map(is_shard, grown.values())):
        growth.add_noise(grown, noise, generator)
        return
    for name in grown:
        whole = gathered(tensors[name])
        growth.add_noise({name: whole}, noise, generator)
        with torch.no_grad():
            local_of(tensors[name]).copy_(local_of(shard_like(tensors[name], whole)))


def divisors_of(growth: Growth, tensors: Mapping[str, Tensor]) -> Divisors:
    """What gradients are divided by; the kind of the tensors counts, not their entries."""
    return growth.gradient_divisors({name: local_of(tensor) for name, tensor in tensors.items()})


def check_growth_of_shards(model: nn.Module, plan: Plan, method: GrowthMethod) -> None:
    """Refuses a way of growing that would need a whole model on one process, or shards that cannot be cut."""
    if not is_fully_sharded(model):
        return
    if method.searches:
        raise InputError(
            f"method '{method.name}' searches on copies of the model, and a model that fully_shard has cut has "
            "none: no process could hold it. Use 'paired', 'net2net' or 'random'."
        )
    for spec in plan.groups.specs.values():
        if spec.kind == "magnitude":
            raise UnsupportedModelError(
                f"'{spec.name}' is the magnitude of a weight-normalised weight, which grows with that one, and "
                "fully_shard has cut both. Remove the weight norm, or train with DistributedDataParallel."
            )
    for name, (dim, count) in shard_sizes(model).items():
        spec = plan.groups.specs[name]
        for stage, widths in enumerate(plan.stage_widths):
            size = spec.shape(widths)[dim]
            if size % count:
                raise UnsupportedModelError(
                    f"'{name}' is cut along axis {dim} (shard_placement_fn), which has {size} entries at stage "
                    f"{stage}: fully_shard cuts axes but the first into equal parts only, here {count}. Plan "
                    f"widths that {count} divides (gr.plan(..., round_to={count})), or let it cut the first axis."
                )
