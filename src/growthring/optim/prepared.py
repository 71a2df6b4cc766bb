"""Optimizers that only stand for another one: trainers wrap them so, and what grows is the one inside."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from growthring.errors import InputError

# By library and class, so that none of them is imported: the attribute that has the optimizer.
_VIEWS = {("accelerate", "AcceleratedOptimizer"): "optimizer"}
_SPREAD = {
    "ZeroRedundancyOptimizer": "spreads its state over processes",
    "DeepSpeedOptimizerWrapper": "stands for DeepSpeed's engine, which spreads state over processes",
    "MegatronLMOptimizerWrapper": "stands for Megatron-LM's, which cuts parameters into pieces",
}
_OWN = ("param_groups", "state")


def plain_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimizer that has the parameters and their state: of a prepared one that inside of it.

    Raises:
        InputError: it spreads its state over processes, or stands for another one in a way that is not known.

    >>> import torch
    >>> adam = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    >>> plain_optimizer(adam) is adam
    True
    """
    while True:
        kind = type(optimizer)
        _check_whole(kind)
        foreign = [name for name in _OWN if _is_foreign(optimizer, name)]
        if not foreign:
            return optimizer
        views = [_VIEWS.get((c.__module__.partition(".")[0], c.__name__)) for c in kind.__mro__]
        inside: Any = next((getattr(optimizer, name, None) for name in views if name), None)
        if not isinstance(inside, Optimizer) or any(
            getattr(inside, name) is not getattr(optimizer, name) for name in _OWN
        ):
            raise InputError(
                f"{kind.__name__} has no '{foreign[0]}' of its own: it stands for another optimizer. Pass that one."
            )
        optimizer = inside


def _is_foreign(optimizer: Optimizer, name: str) -> bool:
    """Whether to set it would write into something else: a property, or nothing of that name."""
    return name not in vars(optimizer) or hasattr(getattr(type(optimizer), name, None), "__set__")


def _check_whole(kind: type) -> None:
    """Refuses classes that hold a share of the parameters or of their state only."""
    for name in (c.__name__ for c in kind.__mro__):
        if name in _SPREAD:
            raise InputError(
                f"{kind.__name__} {_SPREAD[name]}, and growing that is not supported. Use a plain torch optimizer "
                "on every process."
            )
