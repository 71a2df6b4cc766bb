"""Wrapping: what stands around a model while it is trained, and how it goes on after a growth.

A growth gives parameters other data, and torch then forgets where their gradients are accumulated, and with it
the hooks by which DistributedDataParallel averages them. So its reducer, which has them, is made anew inside the
same object: code that holds the wrapped model never notices.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from torch import distributed as dist, nn
from torch.nn.parallel import DistributedDataParallel

from growthring.distributed.fullyshard import (
    check_units,
    is_fully_sharded,
    mesh_of,
    refit,
    settle,
)
from growthring.distributed.ranks import Ranks
from growthring.distributed.shards import ranks_over
from growthring.errors import GrowthStepError, UnsupportedModelError


def unwrapped(model: Any) -> Any:
    """The plain module inside of DistributedDataParallel and torch.compile, in whatever order.

    >>> import torch
    >>> net = nn.Linear(2, 2)
    >>> unwrapped(torch.compile(net)) is net
    True
    """
    return _layers(model)[-1]


def _layers(model: Any) -> list[Any]:
    """A wrapped model from the outermost wrapper to the plain module."""
    dynamo = sys.modules.get("torch._dynamo")  # where it was never imported nothing is compiled
    layers = [model]
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif dynamo is not None and isinstance(model, dynamo.OptimizedModule):
            model = model._orig_mod
        else:
            return layers
        layers.append(model)


class Wrapping:
    """A model, and the DistributedDataParallel that it is trained through, if there is one.

    Args:
        model: as its training loop calls it.
        through: what it is trained through instead, where that wraps a module that holds it.

    Attributes:
        model: the plain module.
        ranks: the processes that train it.
    """

    def __init__(self, model: nn.Module, through: nn.Module | None = None) -> None:
        self.model = unwrapped(model)
        self._through: list[DistributedDataParallel] = []
        self._averaged: set[int] = set()  # parameters (ids) whose gradients it averages
        self._is_sharded = isinstance(self.model, nn.Module) and is_fully_sharded(self.model)
        self.ranks = Ranks()
        if isinstance(self.model, nn.Module):
            self.attach(model if through is None else through)

    def attach(self, model: nn.Module) -> None:
        """The model is trained through this from now on.

        Args:
            model: the module itself, or what wraps it or a module that contains it.

        Raises:
            UnsupportedModelError: it cannot be renewed after a growth, or something else wraps the model too.
        """
        layers = _layers(model)
        found = [each for each in layers if isinstance(each, DistributedDataParallel)]
        if not any(unwrapped(m) is self.model for m in layers[-1].modules()):
            raise UnsupportedModelError(
                f"the {type(model).__name__} does not hold the model that grows: it holds another one, or a copy."
            )
        for wrapper in found:
            _check_renewable(wrapper)
        if len(found) > 1:
            raise UnsupportedModelError(
                "the model is wrapped in DistributedDataParallel twice; one is enough."
            )
        self._through = found
        self._averaged = {id(p) for wrapper in found for p in _averaged_by(wrapper)}
        self.ranks = Ranks()
        if is_fully_sharded(self.model):
            check_replicated(self.model)
            check_units(self.model)
            settle(self.model)
        mesh = mesh_of(self.model)
        if mesh is not None:
            self.ranks = ranks_over(mesh)
        elif found and found[0].process_group.size() > 1:
            device = next(self.model.parameters()).device
            self.ranks = Ranks(found[0].process_group, device)
        self.check()

    def check(self) -> None:
        """Refuses a model in a DistributedDataParallel of which nobody has told: it would stop averaging."""
        check_replicated(self.model)
        if is_fully_sharded(self.model) != self._is_sharded:
            raise UnsupportedModelError(
                "the model was cut by fully_shard after the Grower was made, which knows the parameters before. "
                "First fully_shard, then the optimizer, then gr.Grower(model, plan, optimizer)."
            )
        for wrapper in live_wrappers(self.model):
            if not any(wrapper is known for known in self._through):
                raise UnsupportedModelError(
                    f"the model is held by a {type(wrapper).__name__} that the Grower does not know, which would "
                    "not average gradients any more after a growth. Pass that one instead of the module: "
                    "gr.Grower(ddp_model, ...); or, if the Grower is older, call grower.attach(ddp_model)."
                )
        for wrapper in self._through:
            if wrapper._join_config.enable:
                raise GrowthStepError(
                    "the model cannot grow inside of torch's Join: processes that ran out of data would not grow "
                    "with the others. Give every process the same number of batches."
                )

    def renew(self) -> None:
        """Lets gradients be averaged again, after parameters got other data; also after that was taken back."""
        refit(self.model)
        for wrapper in self._through:
            parameters = list(wrapper.parameters())
            frozen = [p for p in parameters if not p.requires_grad and id(p) in self._averaged]
            self._averaged |= {id(p) for p in parameters if p.requires_grad}
            for parameter in frozen:  # may be thawed later, and has to be averaged then
                parameter.requires_grad_(True)
            try:
                renew(wrapper)
            finally:
                for parameter in frozen:
                    parameter.requires_grad_(False)


def renew(wrapper: DistributedDataParallel) -> None:
    """Makes the reducer of a DistributedDataParallel anew, as when the object is unpickled; no message is sent."""
    state = dict(vars(wrapper))
    hooks, wrapper._comm_hooks = wrapper._comm_hooks, []
    state["_comm_hooks"] = wrapper._comm_hooks
    wrapper.reducer._remove_autograd_hooks()  # of parameters that kept their data
    for name in ("reducer", "logger"):
        del state[name]
        delattr(wrapper, name)
    # what the wrapper notes of its reducer's first backward pass
    state |= {"_has_rebuilt_buckets": False, "_static_graph_delay_allreduce_enqueued": False}
    wrapper.__setstate__(state)
    for hook, own in hooks:
        wrapper.register_comm_hook(own, hook)


def _averaged_by(wrapper: DistributedDataParallel) -> list[nn.Parameter]:
    """The parameters whose gradients a DistributedDataParallel averages; its reducer says only how many."""
    every = [
        p for n, p in wrapper.module.named_parameters() if n not in wrapper.parameters_to_ignore
    ]
    trained = [p for p in every if p.requires_grad]
    count = wrapper._get_ddp_logging_data()["num_parameter_tensors"]
    for parameters in (trained, every):
        if len(parameters) == count:
            return parameters
    raise UnsupportedModelError(
        f"{count} parameters were trained when this {type(wrapper).__name__} was made, and {len(trained)} are now. "
        "It does not average gradients of what was frozen then. Freeze and thaw first, then wrap the model anew."
    )


def live_wrappers(model: nn.Module) -> list[DistributedDataParallel]:
    """The DistributedDataParallels of this process that hold a parameter of the model."""
    if not (dist.is_available() and dist.is_initialized()):
        return []
    parameters = {id(p) for p in model.parameters()}
    return [
        item
        for item in gc.get_objects()
        if issubclass(type(item), DistributedDataParallel)
        and "module" in item.__dict__.get("_modules", ())
        and any(id(p) in parameters for p in item.parameters())
    ]


def check_replicated(model: nn.Module) -> None:
    """Refuses modules whose hooks lead through a DistributedDataParallel that nobody calls."""
    for path, module in model.named_modules():
        holders = [
            type(getattr(hook, "__self__", None)) for hook in module._forward_pre_hooks.values()
        ]
        if any(
            kind.__module__.startswith("torch.distributed") and kind.__name__ == "_ReplicateState"
            for kind in holders
        ):
            where = f"'{path}'" if path else "the model"
            raise UnsupportedModelError(
                f"{where} is replicated by torch.distributed's replicate(), which cannot be renewed after a growth "
                "and would not average gradients any more. Wrap the model in DistributedDataParallel instead."
            )


def _check_renewable(wrapper: DistributedDataParallel) -> None:
    """Refuses what a DistributedDataParallel was asked for that a new reducer would not know."""
    reasons = {
        "mixed_precision": "keeps second copies of the parameters; use torch.autocast instead",
        "_delay_all_reduce_params": "keeps a buffer of the present shapes; leave delay_all_reduce_named_params out",
        "_use_python_reducer": "hooks parameters itself; leave torch._dynamo.config.optimize_ddp at its default",
    }
    for name, reason in reasons.items():
        if getattr(wrapper, name, None):
            raise UnsupportedModelError(
                f"this {type(wrapper).__name__} ({name.strip('_')}) {reason}."
            )
    if any(hasattr(p, "_in_backward_optimizers") for p in wrapper.parameters()):
        raise UnsupportedModelError(
            f"this {type(wrapper).__name__} steps optimizers in its backward pass, which a Grower does not see. "
            "Step one optimizer after it, and give that to the Grower."
        )
    names = [getattr(hook, "__name__", str(hook)) for hook, _ in wrapper._comm_hooks]
    for (_, state), name in zip(wrapper._comm_hooks, names, strict=True):
        if hasattr(state, "error_dict"):  # PowerSGD, by whatever name
            raise UnsupportedModelError(
                f"the communication hook '{name}' keeps errors of the present shapes ({type(state).__name__}). Use "
                "one without a memory, such as fp16_compress_hook, while the model grows."
            )
