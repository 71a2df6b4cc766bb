"""Carries the state of any optimizer through a growth, or refuses by name what it does not understand.

Two kinds of state follow the old entries of a parameter, by different rules. What is made of gradients
(moments, accumulators) follows the gradients, which a growth may divide. What is made of the weights
(the z of schedule-free methods, averages, slow weights, anchors) takes the very step that the weights
took, new entries included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from growthring.core.axes import Layout
from growthring.core.widen import formatted, widen_constant
from growthring.core.wording import counted
from growthring.distributed.shards import gathered, is_shard, shard_like
from growthring.errors import GrowthStepError
from growthring.optim.ages import born
from growthring.optim.firststate import CannotTell, FirstState, first_state_of, is_shared
from growthring.optim.held import held_optimizers, refuse_hidden, tensors_in
from growthring.optim.options import option
from growthring.optim.packed import Packing
from growthring.optim.wrap import ring_rates_of

Regrow = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True)
class Grown:
    """How one parameter grew.

    Attributes:
        name: its name in the model.
        shape: its shape before.
        layouts: the layout of each of its axes.
        divisor: what the gradient of its old entries is divided by: a number, or a tensor that
            broadcasts over the old parameter.
    """

    name: str
    shape: tuple[int, ...]
    layouts: Sequence[Layout]
    divisor: float | Tensor

    @property
    def is_divided(self) -> bool:
        """Whether its gradient changes."""
        return not isinstance(self.divisor, float) or self.divisor != 1.0


def grow_state(
    optimizer: Optimizer,
    grown: Mapping[Tensor, Grown],
    regrow: Regrow,
    num_rings: int,
    unknown: str = "refuse",
) -> list[str]:
    """Grows the state of an optimizer with its parameters; nothing is changed if it raises.

    Args:
        optimizer: any torch optimizer.
        grown: the parameters that changed, which have their new values already.
        regrow: from copies of some of the weights, by name and at their old shapes, to what the growth
            that the model took makes of them.
        num_rings: rings after the growth.
        unknown: "refuse" what nobody knows how to grow, or "reset" the parameter's state.

    Returns:
        Notes for the report.
    """
    refuse_hidden(optimizer, {p: (how.name, how.shape) for p, how in grown.items()})
    for one in (optimizer, *held_optimizers(optimizer)):
        ring_rates = ring_rates_of(one)
        if ring_rates is not None:
            ring_rates.forget_initial()
    sharing = [o for o in (optimizer, *held_optimizers(optimizer)) if o.state is optimizer.state]
    before = {p: dict(values) for p, values in optimizer.state.items()}
    after: dict[Tensor, dict[str, Any] | None] = {}
    copies: dict[str, dict[Tensor, Tensor]] = {}
    reset: list[str] = []
    packing = Packing(optimizer)
    for group in optimizer.param_groups:
        first_states = _FirstStates(optimizer, group)
        for p in group["params"]:
            state, how = before.get(p), grown.get(p)
            if not state:
                continue
            if option(group, "state_at_growth") == "reset":
                after[p] = None
                continue
            try:
                if how is not None or is_shared(optimizer):
                    plain = packing.unpacked(state)
                    after[p], own_copies = _grow(optimizer, plain, p, how, first_states)
                    for key, value in own_copies.items():
                        copies.setdefault(key, {})[p] = value
            except GrowthStepError as error:
                if unknown != "reset":
                    raise
                after[p] = None
                reset.append(str(error))
                continue
            if any(getattr(one, "_rings_have_state", False) for one in sharing):
                after[p] = {**(after.get(p) or state), "births": born(state, num_rings)}
    for key, values in copies.items():
        _take_the_same_step(key, values, grown, regrow, after)
    _pack(optimizer, packing, before, after, grown)
    for p, entries in after.items():
        if entries is None:
            del optimizer.state[p]
        else:
            optimizer.state[p] = entries
    if is_shared(optimizer):
        optimizer._numel_cache = None  # type: ignore[attr-defined]
    name = type(optimizer).__name__
    told = (
        [f"{name}: state of {counted(len(reset), 'parameter')} reset; {reset[0]}"] if reset else []
    )
    return [*packing.notes, *told]


def _pack(
    optimizer: Optimizer,
    packing: Packing,
    before: Mapping[Tensor, Mapping[str, Any]],
    after: dict[Tensor, dict[str, Any] | None],
    grown: Mapping[Tensor, Grown],
) -> None:
    """Packs what grew again, where the optimizer keeps its state in fewer bits."""
    for group in packing.groups:
        for p in group["params"]:
            entries, how = after.get(p), grown.get(p)
            if entries is not None and how is not None:
                try:
                    after[p] = packing.packed(group, p, entries, (before[p], how.shape))
                except CannotTell as error:
                    key, problem = next(iter(entries)), f"cannot be packed again ({error})"
                    raise _unknown(optimizer, key, how, problem) from error


def _take_the_same_step(
    key: str,
    copies: Mapping[Tensor, Tensor],
    grown: Mapping[Tensor, Grown],
    regrow: Regrow,
    after: Mapping[Tensor, dict[str, Any] | None],
) -> None:
    """Grows the copies of the weights that an optimizer keeps under one name, all of them at once."""
    own = {p: v if v.dim() == p.dim() else v.reshape(grown[p].shape) for p, v in copies.items()}
    results = regrow({grown[p].name: value for p, value in own.items()})
    for p, value in copies.items():
        new = formatted(results[grown[p].name].to(value.device, value.dtype), value)
        entries = after[p]
        assert entries is not None
        entries[key] = new.flatten() if value.dim() != p.dim() else new


def drop_state(optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
    """Drops state whose tensors do not fit their parameters any more."""
    for p in parameters:
        values = optimizer.state.get(p, {}).values() if p in optimizer.state else ()
        if any(isinstance(v, Tensor) and v.dim() and v.shape != p.shape for v in values):
            del optimizer.state[p]


class _FirstStates:
    """What the optimizer gives to new parameters of a group, asked once for each number of axes."""

    def __init__(self, optimizer: Optimizer, group: dict[str, Any]) -> None:
        self.optimizer, self.group = optimizer, group
        self._known: dict[tuple[int, torch.dtype], dict[str, FirstState] | CannotTell] = {}

    def __call__(self, parameter: Tensor) -> dict[str, FirstState] | CannotTell:
        if not parameter.dim():  # of a vector it shows which numbers are one for each entry
            parameter = parameter.detach()[None]
        key = (parameter.dim(), parameter.dtype)
        if key not in self._known:
            try:
                self._known[key] = first_state_of(self.optimizer, self.group, parameter)
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
    first_states: _FirstStates,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The state of one parameter after the growth, and what of it are copies of the weights, as they were."""
    result, copies = dict(state), {}
    old_shape = tuple(parameter.shape) if how is None else how.shape
    for key, value in state.items():
        if not isinstance(value, Tensor):
            if any(t.numel() > 1 for t in tensors_in(value)):
                raise _unknown(optimizer, key, how, f"is a {type(value).__name__} of tensors")
            continue
        if value.dim() == 0 and (old_shape or how is None):
            continue
        known = first_states(parameter)
        if isinstance(known, CannotTell):
            raise _unknown(optimizer, key, how, f"cannot be asked of a new parameter ({known})")
        first = known.get(key)
        if first is None and value.numel() == 1:
            continue
        if first is None or tuple(value.shape) != _shape(first, old_shape):
            problem = f"has shape {tuple(value.shape)}, the parameter {old_shape}"
            if type(value) is not Tensor and first is None:
                problem = f"is a {type(value).__name__}, a tensor of its own kind"
            elif tuple(value.shape) == old_shape:
                problem = (
                    "is no constant and no copy of the weights in a new parameter's first step"
                )
            raise _unknown(optimizer, key, how, problem)
        if how is None:
            continue
        if first.fill is None:
            copies[key] = value
        else:
            result[key] = _widen(value, how, first, first_states.rescales)
    return result, copies


def _shape(first: FirstState, shape: tuple[int, ...]) -> tuple[int, ...]:
    if not shape:
        return ()
    if first.is_flat:
        return (math.prod(shape),)
    return tuple(1 if axis is None else shape[axis] for axis in first.axes)


def _widen(value: Tensor, how: Grown, first: FirstState, rescale: bool) -> Tensor:
    """State made of gradients, widened along the axes that it shares with the parameter."""
    if is_shard(value):
        return shard_like(value, _widen(gathered(value), how, first, rescale))
    if first.is_flat:
        shaped = replace(first, is_flat=False)
        return _widen(value.reshape(how.shape), how, shaped, rescale).flatten()
    if rescale and first.degree and how.is_divided:
        value = value / _along(how.divisor, first, value, how.shape) ** first.degree
    if not how.shape:
        return value
    one = Layout(torch.zeros(1, dtype=torch.int64), *(torch.ones(1, dtype=torch.int64),) * 2)
    layouts = [one if axis is None else how.layouts[axis] for axis in first.axes]
    if not any(lay.grows for lay in layouts):
        return value
    assert first.fill is not None
    return formatted(widen_constant(value, layouts, first.fill), value)


def _along(
    divisor: float | Tensor, first: FirstState, value: Tensor, shape: tuple[int, ...]
) -> float | Tensor:
    """The divisor on the axes of a state tensor; the mean over those that it has not."""
    if isinstance(divisor, float):
        return divisor
    full = divisor.to(value).expand(shape)
    kept = [axis for axis in first.axes if axis is not None]
    gone = [axis for axis in range(len(shape)) if axis not in kept]
    full = full.mean(dim=gone) if gone else full
    return full.permute([sorted(kept).index(a) for a in kept]).reshape(value.shape)


def _unknown(optimizer: Optimizer, key: str, how: Grown | None, problem: str) -> GrowthStepError:
    where = f" of '{how.name}'" if how is not None else ""
    return GrowthStepError(
        f"state '{key}'{where} in {type(optimizer).__name__} {problem}, so nobody knows how it grows. "
        "Grower(..., unknown_state='reset') starts the state of such parameters afresh."
    )
