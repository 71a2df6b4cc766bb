"""Idle: a process whose slice of a batch has nothing to learn from takes part in its step with a loss of nothing.

Where gradients are averaged all processes have to come, also to a batch that is smaller than their number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from growthring.graph.results import output_tensors
from growthring.train.measure import apply

_ROWS = 2  # a norm over a batch of one is an error


def nothing(model: Callable[..., Any], inputs: Any) -> tuple[Tensor, Tensor]:
    """A loss of 0 through the whole model, whose gradients are 0, and the sums of no examples.

    Args:
        model: is run on the inputs or, where there is none, on zeros.
        inputs: of the slice.

    >>> net = torch.nn.Linear(3, 1)
    >>> loss, sums = nothing(net, torch.ones(0, 3))
    >>> loss.backward()
    >>> net.weight.grad.tolist(), sums.tolist()
    ([[0.0, 0.0, 0.0]], [0.0, 0.0, 0.0])
    """

    def rows(tensor: Tensor) -> Tensor:
        is_empty = tensor.dim() > 0 and len(tensor) == 0
        return tensor.new_zeros(_ROWS, *tensor.shape[1:]) if is_empty else tensor

    outputs = apply(model, pytree.tree_map_only(Tensor, rows, inputs))
    tensors = [t for t in output_tensors(outputs) if t.requires_grad]
    loss = torch.stack([(0 * t).sum() for t in tensors]).sum()
    return loss, torch.zeros(3, dtype=torch.float64, device=loss.device)
