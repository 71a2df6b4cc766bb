"""Carries the state of any optimizer through a growth, or refuses by name what it does not understand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from growthring.core.axes import Layout
from growthring.core.widen import formatted, place_old, widen_constant
from growthring.errors import GrowthStepError
from growthring.optim.ages import born
from growthring.optim.newborn import CannotTell, Newborn, newborn_state
from growthring.optim.options import option


@dataclass(frozen=True)
class Grown:
    """How one parameter grew.

    Attributes:
        name: its name in the model.
        shape: its shape before.
        layouts: the layout of each of its axes.
        factor: what its old entries were multiplied by (variance transfer): a number, or a tensor that
            broadcasts over the old parameter.
    """

    name: str
    shape: tuple[int, ...]
    layouts: Sequence[Layout]
    factor: float | Tensor

    @property
    def is_rescaled(self) -> bool:
        """Whether variance transfer changed it."""
        return not isinstance(self.factor, float) or self.factor != 1.0


def grow_state(
    optimizer: Optimizer,
    grown: Mapping[Tensor, Grown],
    num_rings: int,
    unknown: str = "refuse",
) -> list[str]:
    """Grows the state of an optimizer with its parameters; nothing is changed if it raises.

    Args:
        optimizer: any torch optimizer.
        grown: the parameters that changed, which have their new values already.
        num_rings: rings after the growth.
        unknown: "refuse" what nobody knows how to grow, or "reset" the parameter's state.

    Returns:
        Notes for the report.
    """
    before = {p: dict(values) for p, values in optimizer.state.items()}
    after: dict[Tensor, dict[str, Any] | None] = {}
    reset: list[str] = []
    for group in optimizer.param_groups:
        newborns = _Newborns(optimizer, group)
        for p in group["params"]:
            state, how = before.get(p), grown.get(p)
            if not state:
                continue
            if option(group, "state_at_growth") == "reset":
                after[p] = None
                continue
            try:
                if how is not None or _is_shared(optimizer):
                    after[p] = _grow(optimizer, state, p, how, newborns)
            except GrowthStepError as error:
                if unknown != "reset":
                    raise
                after[p] = None
                reset.append(str(error))
                continue
            if getattr(optimizer, "_rings_have_state", False):
                after[p] = {**(after.get(p) or state), "births": born(state, num_rings)}
    for p, values in after.items():
        if values is None:
            del optimizer.state[p]
        else:
            optimizer.state[p] = values
    if _is_shared(optimizer):
        optimizer._numel_cache = None  # type: ignore[attr-defined]
    name = type(optimizer).__name__
    return [f"{name}: state of {len(reset)} parameters reset; {reset[0]}"] if reset else []


def drop_state(optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
    """Drops state whose tensors do not fit their parameters any more."""
    for p in parameters:
        values = optimizer.state.get(p, {}).values() if p in optimizer.state else ()
        if any(isinstance(v, Tensor) and v.dim() and v.shape != p.shape for v in values):
            del optimizer.state[p]


def _is_shared(optimizer: Optimizer) -> bool:
    """Whether the state of one parameter is about all of them, as LBFGS keeps it."""
    return hasattr(optimizer, "_numel_cache")


class _Newborns:
    """What the optimizer gives to new parameters of a group, asked once for each number of axes."""

    def __init__(self, optimizer: Optimizer, group: dict[str, Any]) -> None:
        self.optimizer, self.group = optimizer, group
        self._known: dict[tuple[int, torch.dtype], dict[str, Newborn] | CannotTell] = {}

    def __call__(self, parameter: Tensor) -> dict[str, Newborn] | CannotTell:
        key = (parameter.dim(), parameter.dtype)
        if key not in self._known:
            try:
                self._known[key] = newborn_state(self.optimizer, self.group, parameter)
            except CannotTell as error:
                self._known[key] = error
        return self._known[key]

    @property
    def rescales(self) -> bool:
        """Whether state follows what variance transfer did to the gradients."""
        return bool(option(self.group, "state_at_growth") == "rescale")


def _grow(
    optimizer: Optimizer,
    state: Mapping[str, Any],
    parameter: Tensor,
    how: Grown | None,
    newborns: _Newborns,
) -> dict[str, Any]:
    """The state of one parameter after the growth."""
    result = dict(state)
    old_shape = tuple(parameter.shape) if how is None else how.shape
    for key, value in state.items():
        if not isinstance(value, Tensor):
            if _holds_tensors(value):
                raise _unknown(optimizer, key, how, f"is a {type(value).__name__} of tensors")
            continue
        if value.dim() == 0:
            continue
        known = newborns(parameter)
        if isinstance(known, CannotTell):
            raise _unknown(optimizer, key, how, f"cannot be asked of a new parameter ({known})")
        newborn = known.get(key)
        if newborn is None and value.numel() == 1:
            continue
        if newborn is None or tuple(value.shape) != _shape(newborn, old_shape):
            found = f"has shape {tuple(value.shape)}, the parameter {old_shape}"
            raise _unknown(optimizer, key, how, found)
        if how is not None:
            result[key] = _widen(value, parameter, how, newborn, newborns.rescales)
    return result


def _shape(newborn: Newborn, shape: tuple[int, ...]) -> tuple[int, ...]:
    if newborn.is_flat:
        return (math.prod(shape),)
    return tuple(1 if axis is None else shape[axis] for axis in newborn.axes)


def _widen(value: Tensor, parameter: Tensor, how: Grown, newborn: Newborn, rescale: bool) -> Tensor:
    """One state tensor, widened along the axes that it shares with the parameter."""
    if newborn.is_flat:
        shaped = replace(newborn, is_flat=False)
        return _widen(value.view(how.shape), parameter, how, shaped, rescale).flatten()
    if newborn.fill is None:  # a copy of the weights: follows them in scale, and starts as they do
        new = parameter.detach().clone().to(value)
        place_old(value, new, how.layouts, how.factor)
        return new
    if rescale and newborn.degree and how.is_rescaled:
        # W' = cW with the same function: the gradient with respect to W' is 1/c of the old one
        value = value / _along(how.factor, newborn, value, how.shape) ** newborn.degree
    one = Layout(torch.zeros(1, dtype=torch.int64), *(torch.ones(1, dtype=torch.int64),) * 2)
    layouts = [one if axis is None else how.layouts[axis] for axis in newborn.axes]
    if not any(lay.grows for lay in layouts):
        return value
    return formatted(widen_constant(value, layouts, newborn.fill), value)


def _along(
    factor: float | Tensor, newborn: Newborn, value: Tensor, shape: tuple[int, ...]
) -> float | Tensor:
    """The factor on the axes of a state tensor; the mean over those that it has not."""
    if isinstance(factor, float):
        return factor
    full = factor.to(value).expand(shape)
    kept = [axis for axis in newborn.axes if axis is not None]
    gone = [axis for axis in range(len(shape)) if axis not in kept]
    full = full.mean(dim=gone) if gone else full
    return full.permute([sorted(kept).index(a) for a in kept]).reshape(value.shape)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_tensors(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_tensors(v) for v in value)
    return isinstance(value, Tensor) and value.numel() > 1


def _unknown(optimizer: Optimizer, key: str, how: Grown | None, found: str) -> GrowthStepError:
    where = f" of '{how.name}'" if how is not None else ""
    return GrowthStepError(
        f"state '{key}'{where} in {type(optimizer).__name__} {found}, so nobody knows how it grows. "
        "Grower(..., unknown_state='reset') starts the state of such parameters afresh."
    )
