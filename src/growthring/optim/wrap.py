"""with_rings: a rate for each ring in any torch optimizer, without knowing its formula."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar, Unpack

import torch
from torch import Tensor
from torch.optim import Optimizer

from growthring.errors import InputError
from growthring.optim.base import RingOptimizer
from growthring.optim.firststate import CannotTell, first_state_of
from growthring.optim.geometry import as_real
from growthring.optim.options import (
    RingOptions,
    check_options,
    complete,
    loaded_groups,
    saved_groups,
)
from growthring.optim.prepared import plain_optimizer
from growthring.optim.ringrates import RingRates, buckets

AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)


def with_rings(optimizer: AnyOptimizer, **rings: Unpack[RingOptions]) -> AnyOptimizer:
    """Gives any torch optimizer (Muon, Adafactor, one from PyPI) rate adaptation and ring schedules.

    The optimizer takes its own step; what that moved in ring k is then multiplied by the ring's factor:
    w ← w_before + f_k (w_after − w_before). This is its formula with lr · f_k for every one whose step
    is proportional to `lr`. It costs a copy of the ringed parameters and one more pass over them;
    the optimizers of `gr.optim` have the factors built in.

    Args:
        optimizer: any torch optimizer; it is changed in place.
        rings: see `RingOptions`; groups may have options of their own.

    Returns:
        The same optimizer, with `rate_factors`, `weight_norms` and `gradient_norms` as in `gr.optim`; of one that
        `accelerator.prepare` returned, the optimizer inside has them.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = with_rings(torch.optim.RMSprop([w], lr=0.1), rate_adaptation="norm")
    >>> optimizer.rate_factors()  # no Grower yet
    {}
    """
    _add_rings(plain_optimizer(optimizer), rings)
    return optimizer


def _add_rings(optimizer: Optimizer, rings: RingOptions) -> None:
    if isinstance(optimizer, RingOptimizer):
        raise InputError(
            f"{type(optimizer).__name__} of gr.optim knows rings; pass it the options."
        )
    if ring_rates_of(optimizer) is not None:
        raise InputError(f"this {type(optimizer).__name__} has rings already.")
    options = complete(rings)
    for group in optimizer.param_groups:
        check_options({**options, **group})
        _check_formula(optimizer, group)
    optimizer.defaults |= options
    for group in optimizer.param_groups:
        for name, value in options.items():
            group.setdefault(name, value)
    _Rescaler(optimizer)


def _check_formula(optimizer: Optimizer, group: dict[str, Any]) -> None:
    """Refuses an optimizer that keeps weights elsewhere: scaling what it moves here would not reach those."""
    for p in group["params"][:1]:
        try:
            known = first_state_of(optimizer, group, p)
        except CannotTell:
            continue
        copies = [key for key, first in known.items() if first.fill is None]
        if copies:
            raise InputError(
                f"{type(optimizer).__name__} keeps a copy of the weights ('{copies[0]}') that moves by a rule "
                "of its own, so rates per ring cannot be added from outside. The Grower carries its "
                "state all the same: pass it the optimizer as it is."
            )


def ring_rates_of(optimizer: Optimizer) -> RingRates | None:
    """The ring rates of an optimizer that has some."""
    ring_rates = getattr(optimizer, "_ring_rates", None)
    return ring_rates if isinstance(ring_rates, RingRates) else None


class _Rescaler:
    """Hooks around `step`, `state_dict` and `load_state_dict` of an optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._ring_rates = RingRates(optimizer)
        self._before: list[tuple[dict[str, Any], list[Tensor], list[Tensor], Tensor]] = []
        self._loaded: Mapping[str, Any] | None = None
        self._optimizer, self._add = optimizer, optimizer.add_param_group
        optimizer.add_param_group = self._add_group  # type: ignore[method-assign]
        optimizer.__deepcopy__ = self._copy  # type: ignore[attr-defined]
        optimizer._ring_rates = self._ring_rates  # type: ignore[attr-defined]
        optimizer.rate_factors = self._ring_rates.rate_factors  # type: ignore[attr-defined]
        optimizer.weight_norms = self._ring_rates.weight_norms  # type: ignore[attr-defined]
        optimizer.gradient_norms = self._ring_rates.gradient_norms  # type: ignore[attr-defined]
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._end)
        optimizer.register_state_dict_post_hook(self._save)
        optimizer.register_load_state_dict_pre_hook(self._check)
        optimizer.register_load_state_dict_post_hook(self._load)

    @torch.no_grad()
    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Keeps the ringed parameters and the factors that their values give."""
        self._before = []
        if not self._ring_rates:
            return
        self._ring_rates.begin_step()
        for group in optimizer.param_groups:
            ringed = [p for p in group["params"] if self._ring_rates.has_factors(group, p)]
            for params in buckets(ringed):
                factors = self._ring_rates.factors(group, params)
                self._before.append((group, params, [p.detach().clone() for p in params], factors))

    @torch.no_grad()
    def _end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._ring_rates:
            return
        for _, params, before, factors in self._before:
            values, old = list(map(as_real, params)), list(map(as_real, before))
            moved = list(torch._foreach_sub(old, values))
            torch._foreach_copy_(values, old)
            self._ring_rates.batch(params).addcmul_(values, moved, factors)
        self._before = []
        self._ring_rates.end_step()

    def _add_group(self, param_group: dict[str, Any]) -> None:
        check_options({**self._optimizer.defaults, **param_group})
        self._add(param_group)

    def _save(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        saved_groups(state["param_groups"])
        return {**state, "rings": self._ring_rates.state_dict()}

    def _check(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        self._ring_rates.check_state(state)
        self._loaded = state.get("rings")
        groups = loaded_groups(optimizer.param_groups, list(state["param_groups"]))
        return {"state": state["state"], "param_groups": groups}

    def _load(self, optimizer: Optimizer) -> None:
        if self._loaded is not None:
            self._ring_rates.load_state_dict(self._loaded)

    def _copy(self, memo: dict[int, Any]) -> Optimizer:
        """copy.deepcopy of the optimizer: torch's leaves hooks out, so the copy gets its own."""
        hidden = self._optimizer.__dict__.pop("__deepcopy__")
        try:
            twin = copy.deepcopy(self._optimizer, memo)
        finally:
            self._optimizer.__dict__["__deepcopy__"] = hidden
        _Rescaler(twin)._ring_rates.take(self._ring_rates, memo)
        return twin
