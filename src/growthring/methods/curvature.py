"""Activations with a second derivative where they have a kink, for splitting.

Value and first derivative stay those of the activation; only the derivative of the step function at a
kink, which torch takes for 0, becomes β s (1 - s) with s = sigmoid(β z).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class _Step(torch.autograd.Function):
    """1 where z > 0, else 0; its derivative is β s (1 - s)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, beta: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.beta = beta
        return (z > 0).to(z.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        s = torch.sigmoid(ctx.beta * z)
        return gradient * ctx.beta * s * (1 - s), None


class _Relu(torch.autograd.Function):
    """max(z, 0), whose backward pass goes through `_Step` and so has a derivative itself."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, beta: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.beta = beta
        return z.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        return gradient * _Step.apply(z, ctx.beta), None


def smoothed(beta: float) -> Mapping[Any, Callable[..., Tensor]]:
    """Operator -> what to run instead, for the activations with kinks.

    >>> z = torch.tensor([0.0, 1.0], requires_grad=True)
    >>> relu = smoothed(3.0)[torch.relu]
    >>> (first,) = torch.autograd.grad(relu(z).sum(), z, create_graph=True)
    >>> torch.autograd.grad(first.sum(), z)[0][0].item()
    0.75
    """

    def ramp(z: Tensor) -> Tensor:
        value: Tensor = _Relu.apply(z, beta)
        return value

    def relu(z: Tensor, inplace: bool = False) -> Tensor:
        return ramp(z)

    def relu6(z: Tensor, inplace: bool = False) -> Tensor:
        return ramp(z) - ramp(z - 6.0)

    def hardtanh(
        z: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
    ) -> Tensor:
        return ramp(z - min_val) - ramp(z - max_val) + min_val

    def leaky_relu(z: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
        return negative_slope * z + (1 - negative_slope) * ramp(z)

    ramps = (
        torch.relu,
        torch.relu_,
        torch.Tensor.relu,
        torch.Tensor.relu_,
        functional.relu,
        functional.relu_,
    )
    replacements: dict[Any, Callable[..., Tensor]] = dict.fromkeys(ramps, relu)
    replacements |= {functional.relu6: relu6}
    replacements |= dict.fromkeys((functional.hardtanh, functional.hardtanh_), hardtanh)
    replacements |= dict.fromkeys((functional.leaky_relu, functional.leaky_relu_), leaky_relu)
    return replacements
