"""Wrappers that cut a model into pieces for several processes: refused, but for fully_shard while it grows."""

from __future__ import annotations

import gc
import sys
from typing import Any

from torch import distributed, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from growthring.distributed.fullyshard import check_units, is_fully_sharded
from growthring.distributed.wrapping import check_replicated
from growthring.errors import UnsupportedModelError

_WAY_OUT = "Grow the plain module on every process, or one that torch's fully_shard has cut (docs/fsdp.md)."
_PLAN_FIRST = "Plan the plain model, then cut the seed: plan.build_seed(), fully_shard, the optimizer, gr.Grower."


def check_wrappers(model: nn.Module) -> None:
    """Raises if something other than fully_shard owns pieces of the model, or that in a way that cannot grow."""
    if not is_fully_sharded(model):
        check_sharded(model)
        return
    check_replicated(model)
    _check_modules(model, allowed="fully_shard")
    check_units(model)


def check_sharded(model: nn.Module) -> None:
    """Raises if the model's parameters are pieces that something else owns: what grows here would be lost."""
    check_replicated(model)
    _check_modules(model)
    for name, parameter in model.named_parameters():
        kind = type(parameter).__name__
        tensor: Any = parameter
        if is_traceable_wrapper_subclass(tensor):
            raise UnsupportedModelError(
                f"parameter '{name}' is a {kind}, a tensor made of others, which cannot be given new data. "
                + (
                    _WAY_OUT
                    if kind == "DTensor"
                    else "Grow a model of plain tensors and convert it afterwards."
                )
            )
        if hasattr(parameter, "ds_id"):
            raise UnsupportedModelError(f"parameter '{name}' is sharded by DeepSpeed. {_WAY_OUT}")
    for wrapper in _live_shards(model):
        kind = type(wrapper).__name__
        raise UnsupportedModelError(f"the model is held by a {kind}, which shards it. {_WAY_OUT}")


def _check_modules(model: nn.Module, allowed: str | None = None) -> None:
    for path, module in model.named_modules():
        kind = _sharding_of(type(module))
        if kind not in (None, allowed):
            where, way = f"'{path}'" if path else "the model", _WAY_OUT
            way = _PLAN_FIRST if kind == "fully_shard" else way
            raise UnsupportedModelError(f"{where} is sharded by {kind}. {way}")


def _sharding_of(kind: type) -> str | None:
    """The name of the sharding that a class of modules does, None for any other class."""
    names = {(c.__module__.startswith("torch.distributed"), c.__name__) for c in kind.__mro__}
    if (True, "FullyShardedDataParallel") in names:
        return "FullyShardedDataParallel"
    return "fully_shard" if (True, "FSDPModule") in names else None


def _live_shards(model: nn.Module) -> list[nn.Module]:
    """The FullyShardedDataParallels of this process that hold a parameter of the model."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not (distributed.is_available() and distributed.is_initialized()):
        return []
    modules, parameters = {id(m) for m in model.modules()}, {id(p) for p in model.parameters()}
    return [
        item
        for item in gc.get_objects()
        if issubclass(type(item), fsdp.FullyShardedDataParallel)
        and (
            any(id(m) in modules for m in item.modules())
            or any(id(p) in parameters for p in item.parameters())
        )
    ]
