"""Parameters that are cut into shards (DTensors): this process's part, where it lies, and sums over all parts.

Optimizers work on their own parts only, and on what has to be known of a whole ring or parameter, its norms, by
local sums that are sent together: one reduction for all parameters, as each costs a trip to the other processes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed as dist

from growthring.distributed.shards import is_shard, local_of
from growthring.errors import InputError

# What a sum is called, the parameter that it is over, and the sum over the part that is here.
Sums = Sequence[tuple[str, Tensor, Tensor]]


def locals_of(tensors: Iterable[Any]) -> list[Any]:
    """`local_of` those that are tensors."""
    return [local_of(t) for t in tensors]


def parts(parameters: list[Any], grads: list[Any], *others: list[Any]) -> list[list[Any]]:
    """Parallel lists of what is here: of parameters, their gradients, and their state, None where there is none.

    Nothing is copied, and lists without shards are those that were given.
    """
    if not any(map(is_shard, parameters)):
        return [parameters, grads, *others]
    own = []
    for parameter, grad in zip(parameters, grads, strict=True):
        if is_shard(parameter) and grad.placements != parameter.placements:
            grad = grad.redistribute(placements=parameter.placements)  # sums that were put off
        own.append(local_of(grad))
    return [locals_of(parameters), own, *map(locals_of, others)]


def like(part: Tensor, parameter: Tensor) -> Tensor:
    """A part of this process as a tensor that is cut as a parameter is."""
    if not is_shard(parameter) or is_shard(part):
        return part
    cut: Any = parameter
    whole: Tensor = type(cut).from_local(
        part,
        cut.device_mesh,
        cut.placements,
        run_check=False,
        shape=cut.shape,
        stride=cut.stride(),
    )
    return whole


def keep(state: dict[str, Any], key: str, part: Tensor | None, parameter: Tensor) -> None:
    """Puts a part of this process into a parameter's state, where it was not made of what is there already."""
    if not is_shard(parameter):
        state[key] = part
    elif part is not None and state.get(key) is None:
        state[key] = like(part, parameter)


def positions(tensor: Tensor, name: str) -> list[Tensor]:
    """For each axis, the positions of the whole tensor that this process's part holds.

    Raises:
        InputError: it is cut in a way that is not known here.

    >>> [axis.tolist() for axis in positions(torch.ones(2, 3), "w")]
    [[0, 1], [0, 1, 2]]
    """
    axes = [torch.arange(n, device="cpu") for n in tensor.shape]
    if not is_shard(tensor):
        return axes
    cut: Any = tensor
    shard = sys.modules["torch.distributed.tensor"].Shard
    place = cut.device_mesh.get_coordinate()
    for dim, placement in enumerate(cut.placements):
        if placement.is_replicate():
            continue
        if type(placement) is not shard:
            raise InputError(
                f"'{name}' is spread over processes as {placement}, so gr.optim does not know who holds what. "
                "Cut models by fully_shard alone, or use an optimizer of torch, whose steps need no rings."
            )
        pieces = axes[placement.dim].chunk(cut.device_mesh.size(dim))
        empty = axes[placement.dim][:0]  # more processes than rows
        axes[placement.dim] = pieces[place[dim]] if place[dim] < len(pieces) else empty
    return axes


def summed(parameters: Sequence[Tensor], sums: Sequence[Tensor]) -> list[Tensor]:
    """Sums over the parts of all processes, of sums over the part of this one.

    Collective where a parameter is cut: one reduction for all parameters that the same processes hold.

    Args:
        parameters: say what is cut, and between whom.
        sums: for each of them, as many as one likes; of the same sizes on all processes.

    >>> summed([torch.ones(2)], [torch.tensor([2.0])])
    [tensor([2.])]
    """
    results = list(sums)
    holders: dict[tuple[Any, tuple[int, ...]], list[int]] = {}
    for i, parameter in enumerate(parameters):
        if is_shard(parameter):
            cut: Any = parameter
            mesh = cut.device_mesh
            dims = [d for d, p in enumerate(cut.placements) if p.is_shard() and mesh.size(d) > 1]
            if dims:
                holders.setdefault((mesh, tuple(dims)), []).append(i)
    for (mesh, along), chosen in holders.items():
        flat = torch.cat([sums[i].flatten().double() for i in chosen])
        for dim in along:
            dist.all_reduce(flat, group=mesh.get_group(dim))
        for i, part in zip(chosen, flat.split([sums[i].numel() for i in chosen]), strict=True):
            results[i] = part.view(sums[i].shape).to(sums[i].dtype)
    return results
