"""Example inputs for a model that may have been moved or cast since they were given, or that never had values."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.utils import _pytree as pytree

from growthring.core.widen import normal
from growthring.graph.isolation import copied
from growthring.graph.trace import ExampleInputs


def fitted(
    inputs: ExampleInputs, dtypes: Mapping[str, torch.dtype], model: nn.Module
) -> ExampleInputs:
    """A copy of the inputs on the device of the model's parameters, in their type.

    Args:
        inputs: the example.
        dtypes: of the parameters when the inputs were given: numbers of such a type are cast to what it is now.
        model: to run on them.
    """
    parameters = dict(model.named_parameters())
    devices = {p.device for p in parameters.values()}
    # where parts of the model were cast differently, the first layers count
    names = [n for n in reversed(list(dtypes)) if n in parameters]
    casts = {dtypes[n]: parameters[n].dtype for n in names}

    def follow(tensor: torch.Tensor) -> torch.Tensor:
        device = tensor.device if tensor.device in devices or not devices else min(devices, key=str)
        if tensor.device.type == "meta" != device.type:
            tensor = made_up(tensor)
        moved = tensor.detach().to(device, casts.get(tensor.dtype, tensor.dtype))
        return moved.requires_grad_(tensor.requires_grad)

    result: ExampleInputs = pytree.tree_map_only(torch.Tensor, follow, copied(inputs))
    return result


def made_up(tensor: torch.Tensor) -> torch.Tensor:
    """Values for an example input that has none: normal numbers, zeros where they are whole.

    >>> made_up(torch.empty(2, dtype=torch.int64, device="meta")).tolist()
    [0, 0]
    """
    zeros = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
    is_number = tensor.is_floating_point() or tensor.is_complex()
    if not is_number:
        return zeros
    return normal(tensor.shape, 1.0, zeros, torch.Generator().manual_seed(0))
