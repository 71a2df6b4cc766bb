"""Adam and AdamW with an age and a rate for each ring (paper, appendix)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.optimizer import ParamsT

from growthring.optim.ages import corrections, differ, settled_age
from growthring.optim.base import RingOptimizer
from growthring.optim.options import RingOptions
from growthring.optim.rescaling import in_layout
from growthring.optim.ringbatch import CACHE_ENTRIES
from growthring.optim.shards import parts

# Of parameters whose ring steps share their calls; portions that a cache holds are cut from it.
BATCH_ENTRIES = 1 << 22

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
            decoupled_weight_decay: as in torch (capturable and differentiable without a
            Grower only; fused with `ages="shared"`). Decoupled weight decay goes with the ring's rate.
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
        if group["fused"]:
            self._align_state(group)
        lists: list[list[Any]] = [[] for _ in range(6)]
        has_complex = self._init_group(group, *lists)
        if not group["amsgrad"]:
            lists[4] = [None] * len(lists[0])
        if group["fused"]:
            lists[1] = list(map(in_layout, *lists[:2]))
        split = self._split(group, lists, CACHE_ENTRIES if group["fused"] else BATCH_ENTRIES)
        self._torch_step(group, split.plain, has_complex)
        for part in split.ringed:
            if group["fused"]:
                with self._rescaled(group, part[0]):
                    self._torch_step(group, part, has_complex)
            else:
                self._ring_step(group, part[0], *parts(*part))

    def _torch_step(
        self, group: dict[str, Any], lists: Sequence[list[Any]], has_complex: bool
    ) -> None:
        """Torch's own step."""
        params, grads, means, squares, largest, steps = parts(*lists)
        beta1, beta2 = group["betas"]
        adam(
            params,
            grads,
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

    def _is_ringed_now(self, group: Mapping[str, Any], parameter: Tensor) -> bool:
        """Whether rates differ, or bias corrections do: those of old rings are 1, as torch's for the whole."""
        if self._ring_rates.has_factors(group, parameter):
            return True
        if not self._is_ringed(group, parameter):
            return False
        settled = max(settled_age(float(beta), parameter.dtype) for beta in group["betas"])
        return differ(self.state[parameter], self._ring_rates.num_rings, settled)

    def _ring_step(
        self,
        group: dict[str, Any],
        owners: list[Tensor],
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
        batch, decay, lr = self._batch(owners), group["weight_decay"], group["lr"]
        rates = self._factors(group, owners) * lr
        torch._foreach_add_(steps, torch.tensor(1.0))
        table = self._ages(group, owners)
        first = corrections(beta1, table, rates)
        second = corrections(beta2, table, rates).sqrt_()
        scales = first / (rates * second)
        offsets = scales * second * group["eps"]
        still = rates == 0  # divided by infinity: no update
        tables = [scales.masked_fill(still, 0), offsets.masked_fill(still, math.inf)]
        decays = bool(decay != 0 and group["decoupled_weight_decay"])
        if decays and any(self._ring_rates.has_factors(group, p) for p in owners):
            tables.append(1 - rates * decay)
        lists: list[list[Any]] = [params, grads, means, squares]
        if group["amsgrad"]:
            lists.append(largest)
        for chosen, (w, g, m, v, *tops), (scale, offset, *kept) in batch.portions(lists, tables):
            if group["maximize"]:
                g = list(torch._foreach_neg(g))
            if kept:
                torch._foreach_mul_(w, kept[0])
            elif decays:
                torch._foreach_mul_(w, 1 - lr * decay)
            elif decay != 0:
                g = list(torch._foreach_add(g, w, alpha=decay))
            torch._foreach_lerp_(m, g, 1 - beta1)
            torch._foreach_mul_(v, beta2)
            torch._foreach_addcmul_(v, g, g, value=1 - beta2)
            for top in tops:
                torch._foreach_maximum_(top, v)
                v = top
            batch.divide_by_(chosen, w, m, v, scale, offset)


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
