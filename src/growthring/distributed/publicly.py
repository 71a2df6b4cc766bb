"""Models that fully_shard has cut, through its public functions alone: what a growth into a new one needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from growthring.distributed.shards import is_shard, local_of, ranks_over
from growthring.errors import GrowthStepError, UnsupportedModelError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Models whose private parts are left alone, and the type that they compute in if that is not their weights'.
_PUBLIC: WeakKeyDictionary[nn.Module, torch.dtype | None] = WeakKeyDictionary()


def choose(model: nn.Module, is_public: bool) -> None:
    """Whether FSDP's own objects of a model are left alone from now on."""
    _PUBLIC.pop(model, None)
    if is_public:
        _PUBLIC[model] = None


def is_public(model: nn.Module) -> bool:
    """Whether FSDP's own objects of a model are left alone.

    >>> is_public(nn.Linear(2, 2))
    False
    """
    return model in _PUBLIC


def lowered(model: nn.Module) -> torch.dtype | None:
    """The type that a MixedPrecisionPolicy computes in; None where that is the weights' own."""
    return _PUBLIC.get(model)


def mesh_of(model: nn.Module) -> DeviceMesh | None:
    """The mesh of processes that a model is sharded over; None if it is not."""
    for parameter in _shards(model).values():
        mesh: DeviceMesh = parameter.device_mesh
        return mesh
    return None


def shard_sizes(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Parameters that are not cut along their first axis -> that axis, and by how many it has to be divisible."""
    return {
        name: (placement.dim, parameter.device_mesh.size(axis))
        for name, parameter in _shards(model).items()
        for axis, placement in enumerate(parameter.placements)
        if placement.is_shard() and placement.dim > 0
    }


def check_units(model: nn.Module) -> None:
    """Refuses shards that full_tensor and distribute_tensor would not bring into the same places."""
    from torch.distributed.tensor import Shard

    _reshard(model)
    mesh = mesh_of(model)
    for name, parameter in _shards(model).items():
        own, placements = parameter.device_mesh, parameter.placements
        cuts = [p for p in placements if not p.is_replicate()]
        reason = None
        if own != mesh:
            reason = f"is sharded over {own}, others over {mesh}"
        elif own.ndim > 1 and own.size() != torch.distributed.get_world_size():
            reason = f"is sharded over {own}, which are not all processes; one axis, or all of them"
        elif len(cuts) > 1 or any(type(p) is not Shard for p in cuts):
            reason = f"is spread as {placements}, and how its parts grow is not known"
        elif local_of(parameter).device.type not in (own.device_type, "meta"):
            reason = "is offloaded to the CPU, where its shards cannot be gathered; leave CPUOffloadPolicy out"
        if reason is not None:
            raise UnsupportedModelError(f"'{name}' {reason}.")


def settle(model: nn.Module) -> None:
    """Brings a model's parameters back into shards, after a look at them as wholes, unit by unit: a meeting.

    Raises:
        GrowthStepError: it is in the middle of a step, and something would be lost.
    """
    _reshard(model)
    mesh = mesh_of(model)
    if mesh is None:
        return
    plain = {id(p) for p in model.parameters() if not is_shard(p)}
    names, types = dict(_names(model)), {name: p.dtype for name, p in _shards(model).items()}
    ranks_over(mesh).meet()
    held, lower = None, None
    for unit in _units(model):
        unit.unshard()  # whatever it holds; FSDP also takes note here of parameters that are new
        for module in unit.modules():
            for own, parameter in module.named_parameters(recurse=False):
                if is_shard(parameter) or id(parameter) in plain:
                    continue
                name = f"{names[module]}{own}"
                held = name if parameter.grad is not None else held
                lower = (
                    parameter.dtype
                    if parameter.dtype != types.get(name, parameter.dtype)
                    else lower
                )
        unit.reshard()
    _PUBLIC[model] = lower
    if held is not None:
        raise GrowthStepError(
            f"'{held}' holds a gradient that was not reduced yet (set_requires_gradient_sync(False)), which cannot "
            "grow. Grow after the optimizer's step, or synchronise gradients in every backward pass."
        )


@contextlib.contextmanager
def passing(model: nn.Module) -> Iterator[None]:
    """For forward passes that leave nothing: in shards before and afterwards."""
    _reshard(model)
    try:
        yield
    except BaseException:
        for unit in _outermost(model):
            if hasattr(unit, "reset_iter_state"):
                unit.reset_iter_state()  # a pass that failed half-way
        raise
    finally:
        _reshard(model)


def _shards(model: nn.Module) -> dict[str, Any]:
    return {name: parameter for name, parameter in model.named_parameters() if is_shard(parameter)}


def _units(model: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _outermost(model: nn.Module) -> list[Any]:
    units = _units(model)
    inner = {id(m) for unit in units for m in unit.modules() if m is not unit}
    return [unit for unit in units if id(unit) not in inner]


def _reshard(model: nn.Module) -> None:
    for unit in _units(model):
        unit.reshard()


def _names(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for path, module in model.named_modules():
        yield module, f"{path}." if path else ""
