"""Refuses models and inputs that cannot be grown, each with where, what, why and what to do."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from growthring.distributed.shards import local_of
from growthring.errors import InputError, UnsupportedModelError
from growthring.graph.trace import ExampleInputs, split_inputs
from growthring.graph.wrappers import check_sharded, check_wrappers


def check_model(model: nn.Module, may_shard: bool = False) -> None:
    """Raises if the model is not a plain, initialised, unwrapped module.

    Args:
        model: to look at.
        may_shard: whether fully_shard may have cut it.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}, not an nn.Module.")
    for path, module in model.named_modules():
        _check_module(f"'{path}'" if path else "the model", module)
    (check_wrappers if may_shard else check_sharded)(model)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
            raise UnsupportedModelError(
                f"parameter '{name}' is lazy: its shape is not known yet. Run the model once on "
                "an example input first."
            )
        if tensor.is_quantized or (
            isinstance(tensor, nn.Parameter)
            and not (tensor.is_floating_point() or tensor.is_complex())
        ):
            raise UnsupportedModelError(
                f"parameter '{name}' holds {tensor.dtype} numbers: quantised weights cannot be "
                "widened. Grow the float "
                "model and quantise the result."
            )
        if tensor.is_sparse or tensor.layout is not torch.strided:
            raise UnsupportedModelError(f"'{name}' is a sparse tensor; only dense tensors grow.")


def check_trainable(model: nn.Module) -> None:
    """Raises if a tensor can never be trained."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_inference():
            raise UnsupportedModelError(
                f"'{name}' was made in torch.inference_mode, so it can neither be changed nor trained. Build "
                "the model outside of it, or copy the values into one that was."
            )


def _check_module(where: str, module: nn.Module) -> None:
    kind, source = type(module).__name__, type(module).__module__
    try:
        is_compiled = hasattr(module, "_orig_mod")
    except Exception as error:  # torch asks modules for names that they may not have, and so do we
        raise UnsupportedModelError(
            f"{where} ({kind}) raises {type(error).__name__} when asked for an attribute that it does not have. "
            "Let its __getattr__ raise AttributeError."
        ) from error
    if is_compiled:
        raise UnsupportedModelError(
            f"{where} is already compiled: its graph is fixed to the present widths. Plan the plain "
            "module (model._orig_mod); gr.Grower takes the compiled one, as a whole."
        )
    if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        raise UnsupportedModelError(
            f"{where} is wrapped in {kind}. "
            + (
                "Plan the plain module (model.module), and train it in DistributedDataParallel, which "
                "gr.Grower takes."
                if isinstance(module, nn.DataParallel)
                else "Plan the plain module (model.module); gr.Grower takes the wrapped one, as a whole."
            )
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedModelError(
            f"{where} is a {kind}: scripted code is fixed to its shapes. Grow the Python module and "
            "script it afterwards."
        )
    if "quantized" in source.split(".") or source.startswith(("bitsandbytes", "torchao")):
        raise UnsupportedModelError(
            f"{where} is a quantised {kind}: packed weights cannot be widened. Grow the float model "
            "and quantise the result."
        )


def check_inputs(model: nn.Module, example_inputs: ExampleInputs) -> None:
    """Raises if the example inputs are on another device than the model, empty or NaN, or hold no tensor."""
    args, kwargs = split_inputs(example_inputs)
    tensors = list(_tensors([*args, *kwargs.values()]))
    if not tensors:
        raise InputError("example_inputs holds no tensor; pass what one call of the model takes.")
    devices = {p.device.type for p in model.parameters()}
    for tensor in tensors:
        shape = tuple(tensor.shape)
        if not tensor.numel():
            raise InputError(
                f"an example input of shape {shape} is empty, so nothing could be measured on it. Pass inputs such "
                "as the model is trained on."
            )
        is_number = tensor.is_floating_point() or tensor.is_complex()
        if is_number and tensor.device.type != "meta" and bool(torch.isnan(tensor).any()):
            raise InputError(
                f"an example input of shape {shape} holds NaN, which would hide every change of the outputs. Pass "
                "inputs such as the model is trained on."
            )
        if devices and tensor.device.type not in devices:
            raise InputError(
                f"an example input is on {tensor.device}, the model on "
                f"{', '.join(sorted(devices))}. "
                "Move one of them."
            )


def _tensors(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, dict):
        for child in item.values():
            yield from _tensors(child)
    elif isinstance(item, (list, tuple)):
        for child in item:
            yield from _tensors(child)


def check_finite(model: nn.Module) -> None:
    """Raises if the model has no values (meta device) or a weight that is not finite."""
    # Other buffers may hold infinities by design (masks).
    statistics = [(n, b) for n, b in model.named_buffers() if "running_" in n]
    for name, held in [*model.named_parameters(), *statistics]:
        tensor = local_of(held)  # every process looks at what it has
        if tensor.device.type == "meta":
            raise UnsupportedModelError(
                f"'{name}' is on the meta device and has no values, so neither its deviation nor "
                "its entries can be used. "
                "Materialise the model (model.to_empty(device=…), then initialise it) first."
            )
        has_values = tensor.is_floating_point() or tensor.is_complex()
        if not has_values or bool(torch.isfinite(tensor.detach().sum())):
            continue  # one cheap pass; a sum may overflow, so a bad one is looked at entry by entry
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(
                f"'{name}' holds values that are not finite; growing would spread them. Restore "
                "the weights from "
                "before they diverged."
            )
