"""A user's factory, `build(widths) -> module`, for models whose code no attribute can make follow other widths."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from growthring.errors import InputError
from growthring.graph.analysis import Build
from growthring.graph.isolation import kept_random, settings_of
from growthring.graph.resize import named_tensors


def call_build(
    build: Build, widths: dict[str, int], model: nn.Module, device: torch.device | None = None
) -> nn.Module:
    """Calls the user's factory for a model like another one; everybody's generators stay as they were."""
    with kept_random(), settings_of(model, device):
        return build(widths)


def built(
    build: Build, widths: dict[str, int], model: nn.Module, tensors: Mapping[str, torch.Tensor]
) -> nn.Module:
    """Calls the user's factory and puts the tensors into what it returns; complains where shapes differ."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    module = checked(call_build(build, dict(widths), model), shapes, widths)
    own = named_tensors(module)
    for name, tensor in tensors.items():
        own[name].data = tensor.to(own[name].device)
    return module


def checked(
    module: nn.Module, shapes: Mapping[str, tuple[int, ...]], widths: Mapping[str, int]
) -> nn.Module:
    """What the user's factory returned; complains where it has other tensors, or other shapes."""
    if not isinstance(module, nn.Module):
        raise InputError(f"build(widths) returned a {type(module).__name__}, not an nn.Module.")
    own = named_tensors(module)
    missing = sorted(set(shapes) ^ set(own))
    if missing:
        raise InputError(
            f"build(widths) returned a module with other tensors than the model: {missing[:5]}."
        )
    for name, shape in shapes.items():
        if tuple(own[name].shape) != shape:
            raise InputError(
                f"build(widths) made '{name}' of shape {tuple(own[name].shape)} where {shape} is "
                f"needed for the widths {widths}."
            )
    return module
