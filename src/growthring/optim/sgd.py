"""SGD with a rate for each ring (paper, eq. 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from torch.optim.sgd import sgd

from growthring.optim.base import RingOptimizer
from growthring.optim.options import RingOptions
from growthring.optim.shards import keep, parts


class SGD(RingOptimizer, torch.optim.SGD):
    """`torch.optim.SGD`; with a Grower, ring k of a weight moves at lr · ‖W_k‖ / ‖W_0‖.

    Args:
        params: parameters or parameter groups; groups may have ring options of their own.
        lr: η_0, which any scheduler may change.
        momentum, dampening, weight_decay, nesterov, maximize, foreach, differentiable, fused: as in
            torch (differentiable and fused without a Grower only). Weight decay is part of the
            gradient, so its rate is the ring's too.
        rings: see `RingOptions`.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> w.grad = torch.ones(2)
    >>> SGD([w], lr=0.5).step()
    >>> w.tolist()
    [0.5, 0.5]
    """

    _preset_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"output_rate": None, "state_at_growth": "reset"}
    }

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        **rings: Unpack[RingOptions],
    ) -> None:
        super().__init__(
            params,
            lr,
            momentum,
            dampening,
            weight_decay,
            nesterov,
            maximize=maximize,
            foreach=foreach,
            differentiable=differentiable,
            fused=fused,
        )
        self._init_rings(rings)

    def _step_group(self, group: dict[str, Any]) -> None:
        params: list[Tensor] = []
        grads: list[Tensor] = []
        buffers: list[Tensor | None] = []
        has_sparse = self._init_group(group, params, grads, buffers)
        if group["momentum"] == 0:
            buffers = [None] * len(params)
        split = self._split(group, [params, grads, buffers])
        here = [parts(*lists) for lists in (split.plain, *split.ringed)]
        params, grads, buffers = here[0]
        sgd(
            params,
            grads,
            buffers,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            has_sparse_grad=has_sparse,
            foreach=group["foreach"],
            fused=group["fused"],
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=getattr(self, "found_inf", None),
        )
        for (owners, *_), part in zip(split.ringed, here[1:], strict=True):
            self._ring_step(group, owners, *part)
        if group["momentum"] != 0:
            for (ps, *_), (_, _, bs) in zip((split.plain, *split.ringed), here, strict=True):
                for p, buffer in zip(ps, bs, strict=True):
                    keep(self.state[p], "momentum_buffer", buffer, p)

    def _ring_step(
        self,
        group: dict[str, Any],
        owners: list[Tensor],
        params: list[Tensor],
        grads: list[Tensor],
        buffers: list[Tensor | None],
    ) -> None:
        """The step of parameters that have rings; `buffers` is filled where it holds None."""
        rates = self._factors(group, owners) * group["lr"]
        updates = momentum_updates(group, params, grads, buffers)
        self._batch(owners).addcmul_(params, updates, rates)


def momentum_updates(
    group: dict[str, Any],
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor | None],
) -> list[Tensor]:
    """Torch's SGD up to the rate: weight decay, momentum, Nesterov. `buffers` is filled in place.

    b ← μ b + (1 − dampening)(g + λ w); the update is b, or g + λ w + μ b with Nesterov.
    """
    momentum, scale = group["momentum"], 1 - group["dampening"]
    decay = float(group["weight_decay"])
    if group["maximize"]:
        grads = list(torch._foreach_neg(grads))
    old = [i for i, b in enumerate(buffers) if b is not None] if momentum != 0 else []
    if len(old) == len(params) and not group["nesterov"]:
        # g + λ w is needed nowhere but in b, so it gets no memory of its own
        kept = [b for b in buffers if b is not None]
        torch._foreach_mul_(kept, momentum)
        torch._foreach_add_(kept, grads, alpha=scale)
        if decay != 0:
            torch._foreach_add_(kept, params, alpha=scale * decay)
        return kept
    if decay != 0:
        grads = list(torch._foreach_add(grads, params, alpha=decay))
    if momentum == 0:
        return grads
    for i, b in enumerate(buffers):
        if b is None:
            buffers[i] = grads[i].detach().clone()
        else:
            b.mul_(momentum).add_(grads[i], alpha=scale)
    full = [b for b in buffers if b is not None]
    return list(torch._foreach_add(grads, full, alpha=momentum)) if group["nesterov"] else full
