"""with_rings: a rate for each ring in any torch optimizer, without knowing its formula."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar, Unpack

import torch
from torch.optim import Optimizer

from growthring.errors import InputError
from growthring.optim.base import RingOptimizer
from growthring.optim.firststate import CannotTell, first_state_of
from growthring.optim.initial import is_initialising
from growthring.optim.options import (
    RingOptions,
    check_options,
    complete,
    keep_rate_tensors,
    loaded_groups,
)
from growthring.optim.prepared import plain_optimizer
from growthring.optim.rescaling import Rescaling
from growthring.optim.ringrates import RingRates
from growthring.optim.saving import PLACE, check_saved, packed, unpacked

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
    options = {**complete(rings), PLACE: None}
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


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if isinstance(value, (int, float))}


class _Rescaler:
    """Hooks around `step`, `state_dict` and `load_state_dict` of an optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._ring_rates = RingRates(optimizer)
        self._rescaling = Rescaling(self._ring_rates)
        self._loaded: Mapping[str, Any] | None = None
        self._rates: list[Any] = []
        # the groups before a step that is none (`is_initialising`), which may count in them
        self._untouched: list[dict[str, Any]] | None = None
        self._optimizer, self._add = optimizer, optimizer.add_param_group
        optimizer.add_param_group = self._add_group  # type: ignore[method-assign]
        optimizer.__deepcopy__ = self._copy  # type: ignore[attr-defined]
        optimizer._ring_rates = self._ring_rates  # type: ignore[attr-defined]
        optimizer.rate_factors = self._ring_rates.rate_factors  # type: ignore[attr-defined]
        optimizer.weight_norms = self._ring_rates.weight_norms  # type: ignore[attr-defined]
        optimizer.gradient_norms = self._ring_rates.gradient_norms  # type: ignore[attr-defined]
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._end)
        optimizer.register_state_dict_pre_hook(lambda _: self._ring_rates.before_saving())
        optimizer.register_state_dict_post_hook(self._save)
        self._plain_load = optimizer.load_state_dict
        if type(optimizer).load_state_dict is Optimizer.load_state_dict:
            optimizer.register_load_state_dict_pre_hook(self._check)
            optimizer.register_load_state_dict_post_hook(self._load)
        else:  # one of its own, which may call no hooks: bitsandbytes'
            optimizer.load_state_dict = self._load_around  # type: ignore[method-assign]

    @torch.no_grad()
    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Keeps the ringed parameters and the factors that their values give."""
        self._rescaling.forget()
        self._untouched = None
        self._ring_rates.forget_initial()
        if is_initialising(optimizer):
            self._untouched = [_numbers(group) for group in optimizer.param_groups]
            return
        if not self._ring_rates:
            return
        self._ring_rates.begin_step()
        with self._ring_rates.totals():
            for group in optimizer.param_groups:
                self._rescaling.begin(group, group["params"])

    @torch.no_grad()
    def _end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._rescaling.end()
        if self._untouched is not None:
            self._ring_rates.note_initial()
            for group, numbers in zip(optimizer.param_groups, self._untouched, strict=True):
                group |= numbers
        elif self._ring_rates:
            self._ring_rates.end_step()

    def _add_group(self, param_group: dict[str, Any]) -> None:
        check_options({**self._optimizer.defaults, **param_group})
        self._add(param_group)

    def _save(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return packed(state, self._ring_rates.state_dict())

    def _check(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        entries, saved, self._loaded = unpacked(state)
        check_saved(self._ring_rates, optimizer, state, self._loaded)
        self._rates = [group.get("lr") for group in optimizer.param_groups]
        groups = loaded_groups(optimizer.param_groups, saved)
        return {"state": entries, "param_groups": groups}

    def _load(self, optimizer: Optimizer) -> None:
        keep_rate_tensors(optimizer.param_groups, self._rates)
        self._ring_rates.take_up(self._loaded)

    def _load_around(self, state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """`load_state_dict` between what else the two hooks do."""
        self._plain_load(self._check(self._optimizer, state_dict), *args, **kwargs)
        self._load(self._optimizer)

    def _copy(self, memo: dict[int, Any]) -> Optimizer:
        """copy.deepcopy of the optimizer: torch's leaves hooks out, so the copy gets its own."""
        hidden = self._optimizer.__dict__.pop("__deepcopy__")
        try:
            twin = copy.deepcopy(self._optimizer, memo)
        finally:
            self._optimizer.__dict__["__deepcopy__"] = hidden
        _Rescaler(twin)._ring_rates.take(self._ring_rates, memo)
        return twin
