"""Steps that are none: torch.distributed.checkpoint takes one to learn what state an optimizer keeps."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from growthring.distributed.shards import local_of
from growthring.optim.shards import summed


def is_initialising(optimizer: Optimizer) -> bool:
    """Whether the step at hand only makes room for state that is about to be loaded.

    `get_optimizer_state_dict` and `set_optimizer_state_dict` call `step` on an optimizer without any state, with a
    rate of 0 and zeros for gradients. Such a step moves no weight, and there is nothing yet that it could age: all
    that it leaves are counts (and moments of weight decay) that a run which was never saved would not have. So it
    is no step, whoever takes it, and what it leaves is dropped by the next one (`RingRates.forget_initial`).

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = torch.optim.Adam([w], lr=0.0)
    >>> w.grad = torch.zeros(2)
    >>> is_initialising(optimizer)
    True
    >>> w.grad = torch.ones(2)
    >>> is_initialising(optimizer)
    False
    """
    groups = optimizer.param_groups
    if optimizer.state or any(float(group.get("lr", 1.0)) != 0 for group in groups):
        return False
    trained = [p for group in groups for p in group["params"] if p.requires_grad]
    grads = [p.grad for p in trained if p.grad is not None]
    if len(grads) < len(trained) or any(grad.is_sparse for grad in grads):
        return False
    counts = [torch.count_nonzero(local_of(grad)).reshape(1) for grad in grads]
    return not any(bool(count) for count in summed(trained, counts))


def initialise(optimizer: Optimizer) -> None:
    """Takes such a step, where torch would not because there are gradients; they and the rates stay as they are."""
    groups = optimizer.param_groups
    parameters = [p for group in groups for p in group["params"]]
    grads, rates = [p.grad for p in parameters], [group.get("lr") for group in groups]
    try:
        for p in parameters:
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        for group in groups:
            group["lr"] = 0.0
        optimizer.step()
    finally:
        for p, grad in zip(parameters, grads, strict=True):
            p.grad = grad
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
