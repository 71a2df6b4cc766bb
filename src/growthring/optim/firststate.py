"""What state an optimizer gives to a parameter that it has never seen: found by asking it.

A new entry should start with what a new parameter starts with: zeros for moments, the accumulator's
initial value for Adagrad, the step size for Rprop, the weight itself where the state is a copy of it
(averages, the z of schedule-free methods). Also which axis of the state is which axis of the parameter
(Adafactor keeps one number per row and per column), and how the state follows the scale of the
gradients. All of this shows when the optimizer steps a small dummy with axes of distinct sizes, so no
list of known optimizers is needed.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

_SIZES = (3, 5, 7, 11, 13, 2)


@dataclass(frozen=True)
class FirstState:
    """One tensor of a parameter's state, as an optimizer creates it.

    Attributes:
        axes: for each of its axes the parameter's axis that it runs along, None for one of size 1.
        is_flat: whether it is the flattened parameter's shape instead (then `axes` are the parameter's).
        fill: the value of every entry, or None if it is a copy of the parameter.
        degree: power of the gradients' scale that it follows: 1 for a mean, 2 for a mean square.
    """

    axes: tuple[int | None, ...]
    fill: float | None
    degree: int
    is_flat: bool = False


def is_shared(optimizer: Optimizer) -> bool:
    """Whether the state of one parameter is about all of them, as LBFGS keeps it."""
    return hasattr(optimizer, "_numel_cache")


class CannotTell(Exception):
    """The optimizer did not step a dummy, or made something of it that nobody knows."""


def first_state_of(
    optimizer: Optimizer, group: dict[str, Any], parameter: Tensor
) -> dict[str, FirstState]:
    """The tensors of more than one entry that `optimizer` gives to a new parameter like this one.

    Raises:
        CannotTell: the optimizer does not take a step with nothing but a parameter and its gradient.

    >>> w = torch.nn.Parameter(torch.ones(2, 2))
    >>> optimizer = torch.optim.Adagrad([w], initial_accumulator_value=0.1)
    >>> first_state_of(optimizer, optimizer.param_groups[0], w)["sum"].degree
    2
    """
    shape = _SIZES[: parameter.dim()]
    generator = torch.Generator().manual_seed(0)
    start, gradient = (
        (0.5 + torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")).to(
            parameter.device, parameter.dtype
        )
        for _ in range(2)
    )
    try:
        (still, moved), (once, _), (twice, _) = (
            _first_state(optimizer, group, start, k * gradient) for k in (0.0, 1.0, 2.0)
        )
    except Exception as error:
        raise CannotTell(f"{type(error).__name__}: {error}") from error
    result = {}
    for key, value in still.items():
        if type(value) not in (Tensor, torch.nn.Parameter) or value.numel() <= 1:
            continue
        is_flat = len(shape) > 1 and tuple(value.shape) == (start.numel(),)
        value = value.view(shape) if is_flat else value
        axes = tuple(shape.index(n) if n in shape else None for n in value.shape)
        is_whole = all(a is not None or n == 1 for a, n in zip(axes, value.shape, strict=True))
        if not is_whole or len({a for a in axes if a is not None}) < sum(
            a is not None for a in axes
        ):
            continue
        constant = value.flatten()[0]
        if bool((value == constant).all()):
            degree = _degree(value.flatten(), once.get(key), twice.get(key))
            result[key] = FirstState(axes, float(constant.real), degree, is_flat)
        elif value.shape == start.shape and any(
            torch.allclose(value.to(start), weights) for weights in (start, moved)
        ):
            result[key] = FirstState(axes, None, 0, is_flat)
    return result


def state_of_new(optimizer: Optimizer, group: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
    """The state that `optimizer` gives to a new parameter of exactly this shape, whose gradient is zero.

    Raises:
        CannotTell: as in `first_state_of`.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    >>> state_of_new(optimizer, optimizer.param_groups[0], w)["momentum_buffer"]
    tensor([0., 0.])
    """
    still = torch.zeros_like(parameter.detach())
    try:
        return _first_state(optimizer, group, still, still.clone())[0]
    except Exception as error:
        raise CannotTell(f"{type(error).__name__}: {error}") from error


def _probe(
    optimizer: Optimizer, group: dict[str, Any], dummy: Tensor, memo: dict[int, Any]
) -> Optimizer:
    """A copy of an optimizer, and of those that it drives, with nothing but a dummy to step.

    Args:
        optimizer: to copy.
        group: the settings that the dummy gets.
        dummy: the parameter.
        memo: what stands in for optimizers, groups, states and parameters, so that what is shared stays
            shared and nothing else is.
    """
    if id(optimizer) in memo:
        return cast(Optimizer, memo[id(optimizer)])
    probe: Optimizer = object.__new__(type(optimizer))
    memo[id(optimizer)] = probe

    def stand_in(value: Any) -> Any:
        if isinstance(value, Optimizer):
            index = {id(p) for p in group["params"]}
            own = [g for g in value.param_groups if any(id(p) in index for p in g["params"])]
            return _probe(value, own[0] if own else {"params": []}, dummy, memo)
        is_container = isinstance(value, (dict, list, tuple))
        held = list(value.values() if isinstance(value, dict) else value) if is_container else []
        if not any(isinstance(v, Optimizer) for v in held):
            return copy.deepcopy(value, memo)
        if isinstance(value, dict):
            return {k: stand_in(v) for k, v in value.items()}
        return type(value)(stand_in(v) for v in value)

    memo |= {id(p): dummy for each in optimizer.param_groups for p in each["params"]}
    options = {k: copy.deepcopy(v, memo) for k, v in group.items() if k != "params"}
    quiet = {"weight_decay": 0.0} if "weight_decay" in group else {}
    groups = [{**options, **quiet, "params": [dummy]}] if group["params"] else []
    probe.param_groups = memo.setdefault(id(optimizer.param_groups), groups)
    probe.state = memo.setdefault(id(optimizer.state), defaultdict(dict))
    for name, value in vars(optimizer).items():
        if name.endswith("_hooks"):
            probe.__dict__[name] = OrderedDict()
        elif name == "_ring_rates":
            probe.__dict__[name] = type(value)(probe)
        elif name not in ("param_groups", "state") and not isinstance(value, MethodType):
            probe.__dict__[name] = stand_in(value)  # methods are what others put there (schedulers)
    # The plain function: torch's wrapper would run everybody's hooks, a scheduler's is bound to the original.
    step: Any = type(optimizer).step
    step = step.__wrapped__ if getattr(step, "hooked", False) else step
    probe.__dict__["step"] = MethodType(step, probe)
    return probe


def _first_state(
    optimizer: Optimizer, group: dict[str, Any], start: Tensor, gradient: Tensor
) -> tuple[dict[str, Any], Tensor]:
    """State and value of a dummy after its first step, by an optimizer that shares nothing it changes."""
    dummy = torch.nn.Parameter(start.clone())
    probe = _probe(optimizer, group, dummy, {})
    if callable(train := getattr(probe, "train", None)):
        train()  # schedule-free optimizers take no step in the other mode, which they begin in
    # an optimizer may compile its step, and a dummy is not worth that
    with torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
        try:
            dummy.grad = gradient
            probe.step()
        except RuntimeError:  # SparseAdam
            dummy.grad = gradient.to_sparse(1) if gradient.dim() > 1 else gradient.to_sparse()
            probe.step()
        except TypeError:  # it wants a closure; LBFGS would make several steps of one
            if is_shared(optimizer):
                raise
            probe.step(lambda: 0.0)
    return dict(probe.state.get(dummy, {})), dummy.detach()


def _degree(still: Tensor, once: Any, twice: Any) -> int:
    """The power of 2 by which state moved further when gradients doubled; 0 where it is none of 1 and 2."""
    if not all(isinstance(t, Tensor) and t.numel() == still.numel() for t in (once, twice)):
        return 0
    small, large = (float((t.flatten() - still).abs().double().norm()) for t in (once, twice))
    power = math.log2(large / small) if small > 0 and large > 0 else 0.0
    return round(power) if abs(power - round(power)) < 0.02 and round(power) in (1, 2) else 0
