"""Wrappers that spread a model over processes: refused, or retired when the model under them grows."""

from __future__ import annotations

import gc
import sys
from typing import Any

from torch import distributed, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from growthring.errors import GrowthStepError, UnsupportedModelError

_WAY_OUT = "Grow the plain module on every process, before it is sharded; growing a sharded one is not supported."


def check_sharded(model: nn.Module) -> None:
    """Raises if the model's parameters are pieces that something else owns: what grows here would be lost."""
    for path, module in model.named_modules():
        kind = _sharding_of(type(module))
        if kind is not None:
            where = f"'{path}'" if path else "the model"
            raise UnsupportedModelError(f"{where} is sharded by {kind}. {_WAY_OUT}")
        if _is_replicated(module):
            where = f"'{path}'" if path else "the model"
            raise UnsupportedModelError(
                f"{where} is replicated by torch.distributed's replicate(), which cannot be renewed after a growth "
                "and would not average gradients any more. Wrap the model in DistributedDataParallel instead, "
                "again after each growth."
            )
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
    for wrapper in _live_wrappers(model):
        kind = _sharding_of(type(wrapper))
        if kind is not None:
            raise UnsupportedModelError(
                f"the model is held by a {kind}, which shards it. {_WAY_OUT}"
            )


def retire_replicas(model: nn.Module) -> None:
    """Makes every DistributedDataParallel around the model refuse to run.

    Its hooks sit on gradient accumulators that a parameter loses with its shape, even if it gets the
    old one back: it would stop averaging without a word, and the processes would drift apart.
    """
    for wrapper in _live_wrappers(model):
        if (
            _sharding_of(type(wrapper)) is None
            and _refuse not in wrapper._forward_pre_hooks.values()
        ):
            wrapper.register_forward_pre_hook(_refuse)


def _refuse(wrapper: nn.Module, args: Any) -> None:
    kind = type(wrapper).__name__
    raise GrowthStepError(
        f"this {kind} is older than the last growth of its module (or than one that failed): it would not "
        f"average gradients any more, and the processes would drift apart. Wrap the module again after "
        f"each growth: {kind}(model)."
    )


def _sharding_of(kind: type) -> str | None:
    """The name of the sharding that a class of modules does, None for any other class."""
    names = {(c.__module__.startswith("torch.distributed"), c.__name__) for c in kind.__mro__}
    if (True, "FullyShardedDataParallel") in names:
        return "FullyShardedDataParallel"
    return "fully_shard" if (True, "FSDPModule") in names else None


def _is_replicated(module: nn.Module) -> bool:
    """Whether hooks of a module lead through a DistributedDataParallel that nobody calls."""
    holders = [type(getattr(hook, "__self__", None)) for hook in module._forward_pre_hooks.values()]
    return any(
        kind.__module__.startswith("torch.distributed") and kind.__name__ == "_ReplicateState"
        for kind in holders
    )


def _live_wrappers(model: nn.Module) -> list[nn.Module]:
    """The distributed wrappers that exist in this process and hold a parameter of the model."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return []
    kinds: tuple[type, ...] = (nn.parallel.DistributedDataParallel,)
    if fsdp := sys.modules.get("torch.distributed.fsdp"):
        kinds += (fsdp.FullyShardedDataParallel,)
    modules, parameters = {id(m) for m in model.modules()}, {id(p) for p in model.parameters()}
    return [
        item
        for item in gc.get_objects()
        if issubclass(type(item), kinds)
        and (
            any(id(m) in modules for m in item.modules())
            or any(id(p) in parameters for p in item.parameters())
        )
    ]
