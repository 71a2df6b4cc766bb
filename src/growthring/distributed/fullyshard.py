"""Models that torch's fully_shard (FSDP2) has cut into shards: what of it has to follow a growth.

A growth gives sharded parameters other data; the objects that FSDP gathers them with know the old shapes and are
told the new ones here. They are private parts of torch, so it is looked first whether they are what they were.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from growthring.distributed import publicly
from growthring.distributed.shards import is_shard, local_of
from growthring.errors import GrowthStepError, UnsupportedModelError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_PARAMETER_PARTS = (
    "sharded_param", "sharded_size", "contiguous_sharded_stride", "padded_sharded_param_size", "_orig_size",
    "_contiguous_orig_stride", "_sharded_param_data", "_sharding_spec", "all_gather_outputs", "fsdp_placement",
    "mesh_info", "is_dtensor", "offload_to_cpu", "unsharded_accumulated_grad", "post_forward_mesh_info",
    "reset_sharded_param", "_init_sharded_post_forward_param_metadata", "_unsharded_inner_tensors",
)  # fmt: skip
_GROUP_PARTS = ("fsdp_params", "_training_state", "_partial_reduce_output", "mesh_info")
_STATE_PARTS = ("_fsdp_param_groups", "_lazy_init", "_is_root", "_mp_policy", "_reset_iter_state")


def is_unit(module: nn.Module) -> bool:
    """Whether fully_shard was applied to this very module."""
    return any(
        c.__name__ == "FSDPModule" and c.__module__.startswith("torch.distributed.fsdp")
        for c in type(module).__mro__
    )


def is_fully_sharded(model: nn.Module) -> bool:
    """Whether fully_shard was applied to a module of the model.

    >>> is_fully_sharded(nn.Linear(2, 2))
    False
    """
    return any(is_unit(module) for module in model.modules())


def states_of(model: nn.Module) -> list[Any]:
    """FSDP's objects of the model's units, from the outermost in; several modules may share one."""
    if publicly.is_public(model):
        return []
    units: list[Any] = [module for module in model.modules() if is_unit(module)]
    return list({id(state): state for state in (u._get_fsdp_state() for u in units)}.values())


def _parameters(model: nn.Module) -> list[Any]:
    """FSDP's objects of the model's sharded parameters."""
    groups = [group for state in states_of(model) for group in state._fsdp_param_groups]
    return [each for group in groups for each in group.fsdp_params]


def mesh_of(model: nn.Module) -> DeviceMesh | None:
    """The mesh of processes that a model is sharded over; None if it is not."""
    if publicly.is_public(model):
        return publicly.mesh_of(model)
    for each in _parameters(model):
        mesh: DeviceMesh = each.mesh_info.mesh
        return mesh
    return None


def check_units(model: nn.Module) -> None:
    """Refuses what fully_shard was asked for that could not follow a growth, and a torch of other private parts."""
    if publicly.is_public(model):
        publicly.check_units(model)
        return
    _check_parts(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    mesh, owned = mesh_of(model), set()
    for each in _parameters(model):
        parameter = each.sharded_param
        name, own = names.get(id(parameter), "a parameter"), each.mesh_info.mesh
        owned.add(id(parameter))
        reason = None
        if each.is_dtensor:
            reason = "is spread by tensor parallelism too, and how its parts grow is not known"
        elif own != mesh:
            reason = f"is sharded over {own}, others over {mesh}"
        elif own.ndim > 1 and own.size() != torch.distributed.get_world_size():
            reason = f"is sharded over {own}, which are not all processes; one axis, or all of them"
        elif each.offload_to_cpu:
            reason = "is offloaded to the CPU, where its shards cannot be gathered; leave CPUOffloadPolicy out"
        elif hasattr(local_of(parameter), "fsdp_pre_all_gather"):
            reason = f"has shards of type {type(local_of(parameter)).__name__}, packed in a way of their own"
        if reason is not None:
            raise UnsupportedModelError(f"'{name}' {reason}.")
    for name, parameter in model.named_parameters():
        if is_shard(parameter) and id(parameter) not in owned:
            raise UnsupportedModelError(
                f"parameter '{name}' is a DTensor that fully_shard does not own (tensor parallelism, or "
                "distribute_tensor by hand): what grows would not be spread as its code expects. Shard the model "
                "by fully_shard alone."
            )


def _check_parts(model: nn.Module) -> None:
    """Refuses a torch whose fully_shard is built in another way than the one this was written for."""
    missing = [] if hasattr(torch.Tensor, "_use_count") else ["Tensor._use_count"]
    for state in states_of(model):
        missing += [f"FSDPState.{name}" for name in _STATE_PARTS if not hasattr(state, name)]
        for group in getattr(state, "_fsdp_param_groups", ()):
            missing += [f"FSDPParamGroup.{n}" for n in _GROUP_PARTS if not hasattr(group, n)]
            for each in getattr(group, "fsdp_params", ()):
                missing += [f"FSDPParam.{n}" for n in _PARAMETER_PARTS if not hasattr(each, n)]
    if missing:
        raise UnsupportedModelError(
            f"fully_shard of torch {torch.__version__} has no {missing[0]}: sharded parameters cannot be given new "
            "shapes in place. Use a torch that growthring was tested with (2.13), or let growths make new "
            "models: gr.Grower(model, plan, optimizer, shard=...) (docs/fsdp.md)."
        )


def settle(model: nn.Module) -> None:
    """Brings a model's parameters back into shards, as they are between two steps.

    Raises:
        GrowthStepError: it is in the middle of a step, and something would be lost.
    """
    if publicly.is_public(model):
        publicly.settle(model)
        return
    for each in _parameters(model):
        whole = getattr(each, "_unsharded_param", None)
        if each.unsharded_accumulated_grad is not None or (
            whole is not None and whole.grad is not None
        ):
            raise GrowthStepError(
                f"'{each._param_fqn}' holds a gradient that was not reduced yet "
                "(set_requires_gradient_sync(False)), which cannot grow. Grow after the optimizer's step, or "
                "synchronise gradients in every backward pass."
            )
        # its own name, and the node that takes its gradient; what is more was saved for a backward pass
        if whole is not None and whole._use_count() > 2:
            raise GrowthStepError(
                f"a backward pass that is still to come holds '{each._param_fqn}' as a whole: it would meet other "
                "shapes. Grow after backward() and the optimizer's step, and keep no other loss or output."
            )
    for state in states_of(model):
        for group in state._fsdp_param_groups:
            if group._training_state.name != "IDLE" or group._partial_reduce_output is not None:
                raise GrowthStepError(
                    "fully_shard is in the middle of a step (a forward or backward pass that did not end, or "
                    "gradients that are not reduced over all processes). Grow after the optimizer's step."
                )
    _reshard(model)


def _reshard(model: nn.Module) -> None:
    for state in states_of(model):
        if state._is_root is None:
            state._lazy_init()  # its hooks should be there before anything takes note of what there is
        for group in state._fsdp_param_groups:
            group.reshard()


def refit(model: nn.Module) -> None:
    """Tells FSDP the present shapes of its parameters, after they got other data or had it taken back."""
    for each in _parameters(model):
        local = local_of(each.sharded_param)
        mine = each._sharded_param_data.untyped_storage()._cdata
        if each._orig_size != each.sharded_param.shape or (
            local.numel() and mine != local.untyped_storage()._cdata
        ):
            _refit(each)


def _refit(each: Any) -> None:
    parameter: Any = each.sharded_param
    local, shape = local_of(parameter), parameter.shape
    dim, count = each.fsdp_placement.dim, getattr(each.mesh_info, "shard_mesh_size", 1)
    each._orig_size = shape
    each._contiguous_orig_stride = parameter._spec.tensor_meta.stride
    each.sharded_size = local.size()
    each.contiguous_sharded_stride = local.stride()
    padded = list(shape)
    padded[dim] = -(-shape[dim] // count)  # as torch.chunk cuts
    each.padded_sharded_param_size = torch.Size(padded)
    if each.post_forward_mesh_info is not None:
        each._init_sharded_post_forward_param_metadata(torch.empty(shape, device="meta"))
    _forget_whole(each)
    each.reset_sharded_param()


def _forget_whole(each: Any) -> None:
    """Lets the buffer that a parameter is gathered into be made anew."""
    each.all_gather_outputs = []
    each._unsharded_inner_tensors = []
    if hasattr(each, "_unsharded_param"):
        del each._unsharded_param


@contextlib.contextmanager
def passing(model: nn.Module) -> Iterator[None]:
    """For forward passes that leave nothing: in full precision, and in shards again afterwards.

    A growth is measured in the precision of the weights that grow, not in that of a MixedPrecisionPolicy.
    """
    if publicly.is_public(model):
        with publicly.passing(model):
            yield
        return
    states = states_of(model)
    if not states:
        yield
        return
    from torch.distributed.fsdp import MixedPrecisionPolicy

    _reshard(model)
    policies = [(state, state._mp_policy) for state in states]
    lowered = [(each, each.param_dtype) for each in _parameters(model) if each.param_dtype]
    try:
        for state, _ in policies:
            state._mp_policy = MixedPrecisionPolicy()
        for each, _ in lowered:
            _forget_whole(each)
            each.param_dtype = None
        yield
    except BaseException:
        for state in states:
            if state._is_root:
                state._reset_iter_state()  # a pass that failed half-way
        raise
    finally:
        for state, policy in policies:
            state._mp_policy = policy
        _reshard(model)
        for each, dtype in lowered:
            _forget_whole(each)
            each.param_dtype = dtype


def shard_sizes(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Parameters that are not cut along their first axis -> that axis, and by how many it has to be divisible."""
    if publicly.is_public(model):
        return publicly.shard_sizes(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(each.sharded_param)]: (each.fsdp_placement.dim, each.mesh_info.shard_mesh_size)
        for each in _parameters(model)
        if each.fsdp_placement.dim > 0 and id(each.sharded_param) in names
    }
