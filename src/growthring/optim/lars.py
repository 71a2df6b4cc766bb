"""LARS (You, Gitman, Ginsburg, 2017): layer-wise rates, which the paper compares its ring-wise ones with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from growthring.distributed.shards import is_shard, local_of
from growthring.errors import InputError
from growthring.optim.base import RingOptimizer, no_kernel
from growthring.optim.options import RingOptions
from growthring.optim.ringbatch import buckets
from growthring.optim.sgd import momentum_updates
from growthring.optim.shards import Sums, keep, locals_of, parts


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
        owners = params
        params, grads = parts(owners, [p.grad for p in owners])
        decay, trust = group["weight_decay"], group["trust_coefficient"]
        if group["maximize"]:
            grads = list(torch._foreach_neg(grads))
        scaled = list(torch._foreach_add(grads, params, alpha=decay)) if decay else list(grads)
        if trust is not None:
            weights, norms = self._norms(owners, params, grads)
            ratios = trust * weights / (norms + decay * weights + 1e-8)
            ratios = torch.where((weights > 0) & (norms > 0), ratios, 1.0)
            scaled = list(torch._foreach_mul(scaled, list(ratios.unbind())))
        buffers = locals_of(self.state[p].get("momentum_buffer") for p in owners)
        plain = {**group, "maximize": False, "weight_decay": 0}
        updates = momentum_updates(plain, params, scaled, buffers)
        if group["momentum"] != 0:
            for p, buffer in zip(owners, buffers, strict=True):
                keep(self.state[p], "momentum_buffer", buffer, p)
        split = self._split(group, [owners, params, updates])
        _, plain_params, plain_updates = split.plain
        if plain_params:
            torch._foreach_add_(plain_params, torch._foreach_mul(plain_updates, -group["lr"]))
        for ringed, here, theirs in split.ringed:
            rates = self._factors(group, ringed) * group["lr"]
            self._batch(ringed).addcmul_(here, theirs, rates)

    def _sums(self) -> Sums:
        return [
            ("norms", p, _squares(p, p.grad))
            for group in self.param_groups
            if group["trust_coefficient"] is not None
            for p in group["params"]
            if is_shard(p)
        ]

    def _norms(
        self, owners: list[Tensor], params: list[Tensor], grads: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Of whole weights and gradients, (parameters,)."""
        if not any(map(is_shard, owners)):
            return torch.stack(torch._foreach_norm(params)), torch.stack(torch._foreach_norm(grads))
        rows = []
        for owner, w, g in zip(owners, params, grads, strict=True):
            total = self._ring_rates.total("norms", owner)
            rows.append(_squares(w, g) if total is None else total)
        weights, norms = torch.stack(rows).sqrt_().unbind(1)
        return weights, norms


def _squares(weight: Tensor, gradient: Tensor | None) -> Tensor:
    """‖w‖² and ‖g‖² of what is here; a gradient that is not there is 0."""
    w = local_of(weight.detach())
    wide = torch.float32 if w.dtype.itemsize < 4 else None
    norms = [torch.linalg.vector_norm(w, dtype=wide)]
    if gradient is None:
        norms.append(torch.zeros_like(norms[0]))
    else:
        _, (g,) = parts([weight], [gradient])
        norms.append(torch.linalg.vector_norm(g, dtype=wide))
    return torch.stack(norms).square_()
