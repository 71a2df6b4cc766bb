"""Adam and AdamW with an age and a rate for each ring (paper, appendix)."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.optimizer import ParamsT

from growthring.optim.ages import corrections
from growthring.optim.base import RingOptimizer
from growthring.optim.geometry import as_real
from growthring.optim.options import RingOptions

Betas = tuple[float | Tensor, float | Tensor]


class Adam(RingOptimizer, torch.optim.Adam):
    """`torch.optim.Adam`; with a Grower, each ring can have its own age and rate.

    With `ages="ring"` (the paper's rate adaptation for Adam) bias correction uses the steps that a ring has seen,
    so a new ring does not start with the huge or tiny steps of moments that were corrected for an older one.
    `rate_adaptation="norm"` multiplies each ring's rate by ‖W_k‖ / ‖W_0‖. Neither helped in our trials
    (docs/rates.md), so by default this is torch's Adam.

    Args:
        params: parameters or parameter groups; groups may have ring options of their own.
        lr, betas, eps, weight_decay, amsgrad, foreach, maximize, capturable, differentiable, fused,
            decoupled_weight_decay: as in torch (capturable, differentiable and fused without a
            Grower only). Decoupled weight decay goes with the ring's rate.
        rings: see `RingOptions`.

    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> w.grad = torch.tensor([1.0, -3.0])
    >>> Adam([w], lr=0.5).step()
    >>> w.round(decimals=3).tolist()
    [-0.5, 0.5]
    """

    num_state_tensors: ClassVar[int] = 2
    _rings_have_state = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        **rings: Unpack[RingOptions],
    ) -> None:
        torch.optim.Adam.__init__(  # by name: what follows in an AdamW is torch's AdamW
            self,
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=decoupled_weight_decay,
        )
        self._init_rings(rings)

    def _step_group(self, group: dict[str, Any]) -> None:
        lists: list[list[Any]] = [[] for _ in range(6)]
        has_complex = self._init_group(group, *lists)
        if not group["amsgrad"]:
            lists[4] = [None] * len(lists[0])
        split = self._split(group, lists)
        beta1, beta2 = group["betas"]
        plain, their_grads, means, squares, largest, steps = split.plain
        adam(
            plain,
            their_grads,
            means,
            squares,
            largest if group["amsgrad"] else [],
            steps,
            amsgrad=group["amsgrad"],
            has_complex=has_complex,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
            foreach=group["foreach"],
            capturable=group["capturable"],
            differentiable=group["differentiable"],
            fused=group["fused"],
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=getattr(self, "found_inf", None),
            decoupled_weight_decay=group["decoupled_weight_decay"],
        )
        for part in split.ringed:
            self._ring_step(group, *part)

    def _ring_step(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        means: list[Tensor],
        squares: list[Tensor],
        largest: list[Tensor | None],
        steps: list[Tensor],
    ) -> None:
        """The step of parameters that have rings.

        w −= lr·f_k·m̂ / (√v̂ + ε) with m̂ = m / b₁, v̂ = v / b₂, b = 1 − β^age of the ring. Written as
        m / ((√v + ε√b₂) · b₁ / (lr·f_k·√b₂)), it takes as many passes over memory as torch's.
        """
        beta1, beta2 = (float(beta) for beta in group["betas"])
        batch, decay = self._batch(params), group["weight_decay"]
        rates = self._factors(group, params) * group["lr"]
        torch._foreach_add_(steps, torch.tensor(1.0))
        table = self._ages(group, params)
        first = corrections(beta1, table, rates)
        second = corrections(beta2, table, rates).sqrt_()
        originals, params = params, list(map(as_real, params))
        grads = list(map(as_real, grads))
        means, squares = list(map(as_real, means)), list(map(as_real, squares))
        if group["maximize"]:
            grads = list(torch._foreach_neg(grads))
        if decay != 0 and group["decoupled_weight_decay"]:
            if any(self._ring_rates.has_factors(group, p) for p in originals):
                batch.mul_(params, 1 - rates * decay)
            else:
                torch._foreach_mul_(params, 1 - group["lr"] * decay)
        elif decay != 0:
            grads = list(torch._foreach_add(grads, params, alpha=decay))
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)
        del grads  # a copy where there is weight decay
        if group["amsgrad"]:
            tops = [as_real(t) for t in largest if t is not None]
            torch._foreach_maximum_(tops, squares)
            squares = tops
        roots = [root.to(batch.dtype) for root in torch._foreach_sqrt(squares)]
        scales = first / (rates * second)
        offsets = scales * second * group["eps"]
        still = rates == 0  # divided by infinity: no update
        scales, offsets = scales.masked_fill(still, 0), offsets.masked_fill(still, math.inf)
        batch.divide_by_(params, means, roots, scales, offsets)


class AdamW(Adam, torch.optim.AdamW):
    """`torch.optim.AdamW`; see `Adam`.

    >>> w = torch.nn.Parameter(torch.ones(1))
    >>> w.grad = torch.ones(1)
    >>> AdamW([w], lr=0.1, weight_decay=0.5).step()
    >>> round(w.item(), 3)
    0.85
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        **rings: Unpack[RingOptions],
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
            **rings,
        )
