"""LARS (You, Gitman, Ginsburg, 2017): layer-wise rates, which the paper compares its ring-wise ones with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from growthring.errors import InputError
from growthring.optim.base import RingOptimizer, no_kernel
from growthring.optim.options import RingOptions
from growthring.optim.ringrates import buckets
from growthring.optim.sgd import momentum_updates


class LARS(RingOptimizer, Optimizer):
    """SGD whose gradient is scaled, for each parameter as a whole, by the ratio of norms r.

        r = τ‖w‖ / (‖g‖ + λ‖w‖ + 1e-8), 1 where either norm is 0
        m = μm + r(g + λw);  w −= lr · m

    It knows no rings by default (`rate_adaptation=None`): it is what the paper compares rate adaptation
    with. The ring options work all the same.

    Args:
        params: parameters or parameter groups.
        lr: learning rate.
        momentum, dampening, weight_decay, nesterov, maximize: as in `torch.optim.SGD`.
        trust_coefficient: τ; None in a group leaves r at 1 there (biases and norms, say).
        foreach: accepted as in torch; all devices use the foreach form.
        fused: not True, as torch has no kernel for it.
        rings: see `RingOptions`.

    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> w.grad = torch.tensor([0.0, 10.0])
    >>> LARS([w], lr=1.0, trust_coefficient=0.1).step()
    >>> w.round(decimals=3).tolist()
    [3.0, 3.5]
    """

    _takes_sparse = False
    _preset_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"rate_adaptation": None, "state_at_growth": "reset"}
    }

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        momentum: float = 0.9,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        trust_coefficient: float | None = 0.001,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        **rings: Unpack[RingOptions],
    ) -> None:
        if fused:
            raise no_kernel("LARS")
        if not lr >= 0 or not momentum >= 0 or not weight_decay >= 0:
            raise InputError(
                f"lr={lr!r}, momentum={momentum!r}, weight_decay={weight_decay!r}: none is below 0."
            )
        if nesterov and (momentum <= 0 or dampening != 0):
            raise InputError("Nesterov momentum requires a momentum and zero dampening.")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "trust_coefficient": trust_coefficient,
            "maximize": maximize,
            "foreach": foreach,
        }
        super().__init__(params, defaults)
        self._init_rings(rings)

    def _step_group(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        for part in buckets(params):
            self._step(group, part)

    def _step(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Parameters of one device and type."""
        grads = [p.grad for p in params if p.grad is not None]
        decay, trust = group["weight_decay"], group["trust_coefficient"]
        if group["maximize"]:
            grads = list(torch._foreach_neg(grads))
        scaled = list(torch._foreach_add(grads, params, alpha=decay)) if decay else list(grads)
        if trust is not None:
            weights = torch.stack(torch._foreach_norm(params))
            norms = torch.stack(torch._foreach_norm(grads))
            ratios = trust * weights / (norms + decay * weights + 1e-8)
            ratios = torch.where((weights > 0) & (norms > 0), ratios, 1.0)
            scaled = list(torch._foreach_mul(scaled, list(ratios.unbind())))
        buffers = [self.state[p].get("momentum_buffer") for p in params]
        plain = {**group, "maximize": False, "weight_decay": 0}
        updates = momentum_updates(plain, params, scaled, buffers)
        if group["momentum"] != 0:
            for p, buffer in zip(params, buffers, strict=True):
                self.state[p]["momentum_buffer"] = buffer
        split = self._split(group, [params, updates])
        plain_params, plain_updates = split.plain
        if plain_params:
            torch._foreach_add_(plain_params, torch._foreach_mul(plain_updates, -group["lr"]))
        for ringed, theirs in split.ringed:
            rates = self._factors(group, ringed) * group["lr"]
            self._batch(ringed).addcmul_(ringed, theirs, rates)
