"""Shards: tensors of which every process holds a part (DTensors), made whole one at a time.

Whoever needs all entries of a tensor gathers it, and gives back a part of what came out; so no process ever holds a
whole model. What is said here of a tensor holds for plain ones too: they are whole already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, distributed as dist

from growthring.distributed.ranks import Ranks


def is_shard(tensor: Any) -> bool:
    """Whether a tensor's entries are spread over processes.

    >>> is_shard(torch.ones(2))
    False
    """
    module: Any = sys.modules.get("torch.distributed.tensor")  # never imported: nothing is cut
    return module is not None and isinstance(tensor, module.DTensor)


def local_of(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor."""
    local: Tensor = tensor._local_tensor if is_shard(tensor) else tensor  # type: ignore[attr-defined]
    return local


def ranks_over(mesh: Any) -> Ranks:
    """The processes of a mesh of devices."""
    if mesh.size() == 1:
        return Ranks()
    group = mesh.get_group() if mesh.ndim == 1 else dist.group.WORLD
    device = torch.device(mesh.device_type)
    if device.type != "cpu":
        device = torch.device(device.type, torch.get_device_module(device).current_device())
    return Ranks(group, device)


def gathered(tensor: Tensor) -> Tensor:
    """All entries of a tensor, without a gradient; of a shard that is a meeting of all processes.

    Raises:
        RanksError: another process has failed meanwhile, and will not come.
    """
    if not is_shard(tensor):
        return tensor.detach()
    shard: Any = tensor.detach()
    ranks_over(shard.device_mesh).meet()
    with torch.no_grad():
        whole: Tensor = shard.full_tensor()
    return whole


def shard_like(tensor: Tensor, whole: Tensor) -> Tensor:
    """A whole tensor spread as another one is; nothing is sent, every process has all of it."""
    if not is_shard(tensor):
        return whole
    from torch.distributed.tensor import distribute_tensor

    old: Any = tensor
    with torch.no_grad():
        new: Any = distribute_tensor(
            whole.detach(), old.device_mesh, old.placements, src_data_rank=None
        )
    local = new._local_tensor
    if local.untyped_storage().nbytes() > local.numel() * local.element_size():
        new._local_tensor = local.clone()  # a view would hold all of it
    result: Tensor = new
    return result


def on_whole(tensor: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
    """What `act` makes of all entries of a tensor, spread as that is."""
    return shard_like(tensor, act(gathered(tensor))) if is_shard(tensor) else act(tensor)


def set_shard(tensor: Tensor, new: Tensor) -> None:
    """Gives a shard other data, perhaps of another shape; the object stays the same."""
    held: Any = tensor
    tensor.data = new
    held._local_tensor, held._spec = new._local_tensor, new._spec  # type: ignore[attr-defined]


class Whole(Mapping[str, Tensor]):
    """Tensors by name, each of which is gathered when it is asked for, and not kept.

    Args:
        tensors: some of which are shards.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return gathered(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
