"""Carries an optimizer's state through a growth: tensors of a parameter's shape widen with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from growthring.core.axes import Layout
from growthring.core.widen import widen_constant
from growthring.errors import GrowthStepError


def widen_state(
    optimizer: torch.optim.Optimizer,
    parameter: torch.Tensor,
    name: str,
    old_shape: tuple[int, ...],
    layouts: Sequence[Layout],
) -> list[Callable[[], None]]:
    """Widens the state of one parameter with zeros, scalars stay; returns what undoes it.

    Args:
        optimizer: any torch optimizer.
        parameter: the grown parameter.
        name: its name, for messages.
        old_shape: its shape before.
        layouts: the layout of each of its axes.

    Raises:
        GrowthStepError: a state tensor has another shape than the parameter had.
    """
    state = optimizer.state.get(parameter) or {}
    undo: list[Callable[[], None]] = []
    for key, value in list(state.items()):
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            continue
        if tuple(value.shape) != old_shape:
            for action in reversed(undo):
                action()
            raise GrowthStepError(
                f"state '{key}' of '{name}' in {type(optimizer).__name__} has shape "
                f"{tuple(value.shape)}, not the parameter's {old_shape}, so nobody knows how it "
                "grows. Clear that state (optimizer.state.pop(parameter)) or grow without it."
            )
        undo.append(lambda s=state, k=key, v=value: s.__setitem__(k, v))  # type: ignore[misc]
        state[key] = widen_constant(value, layouts, 0.0)
    return undo
