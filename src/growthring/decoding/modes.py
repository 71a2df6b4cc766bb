"""Eval mode without gradients, for as long as a model is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients, and the mode of every module as it was afterwards.

    Example:
        >>> model = nn.Dropout().train()
        >>> with evaluating(model):
        ...     print(model.training, torch.is_grad_enabled())
        False False
        >>> model.training
        True
    """
    training = [module for module in model.modules() if module.training]
    if training:  # the usual case of a model in eval mode costs nothing at each token
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if training:
            model.train()  # models that keep tensors in eval mode drop them there
            for module, mode in modes:
                module.training = mode


def device_of(model: nn.Module) -> torch.device:
    """Where a model's first tensor is; the CPU for a model without any.

    Example:
        >>> device_of(nn.Linear(2, 2))
        device(type='cpu')
    """
    tensors = [*model.parameters(), *model.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")
