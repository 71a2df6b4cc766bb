"""AvaGrad (Savarese et al., 2021) with η, d and m for each ring (paper, appendix)."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from growthring.distributed.shards import is_shard, local_of
from growthring.errors import InputError
from growthring.optim.ages import ages, corrections
from growthring.optim.base import RingOptimizer, no_kernel
from growthring.optim.geometry import as_real
from growthring.optim.options import RingOptions, option
from growthring.optim.ringbatch import RingBatch, buckets
from growthring.optim.shards import Sums, parts


class AvaGrad(RingOptimizer, Optimizer):
    """AvaGrad: Adam's step sizes from *before* the present gradient, normalised to mean square 1.

        m = β₁m + (1−β₁)g;  η = 1/(√v̂ + ε);  w −= lr · η/‖η/√d‖₂ ⊙ m̂;  then v = β₂v + (1−β₂)g²

    with d the number of entries, so the first step only fills v and moves nothing. With a Grower the
    norm, d and the age are those of the ring; the first step of a new ring moves nothing of it.

    Args:
        params: parameters or parameter groups; groups may have ring options of their own.
        lr: learning rate.
        betas: decay of m and v.
        eps: ε; large ones (0.1 to 10) move it towards SGD.
        weight_decay: λ, added to the gradient as λw.
        maximize: climb instead of descend.
        foreach: accepted as in torch; all devices use the foreach form.
        fused: not True, as torch has no kernel for it.
        rings: see `RingOptions`.

    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> w.grad = torch.tensor([1.0, 1.0])
    >>> optimizer = AvaGrad([w], lr=0.5)
    >>> optimizer.step(), w.tolist()
    (None, [0.0, 0.0])
    >>> optimizer.step(), w.round(decimals=3).tolist()
    (None, [-0.5, -0.5])
    """

    num_state_tensors: ClassVar[int] = 2
    _rings_have_state = True
    _takes_sparse = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 0.1,
        weight_decay: float = 0,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        **rings: Unpack[RingOptions],
    ) -> None:
        if fused:
            raise no_kernel("AvaGrad")
        if not lr >= 0 or not eps >= 0 or not weight_decay >= 0:
            raise InputError(
                f"lr={lr!r}, eps={eps!r}, weight_decay={weight_decay!r}: none is below 0."
            )
        if not all(0 <= beta < 1 for beta in betas):
            raise InputError(f"betas={betas!r}: both are from 0 to below 1.")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
        }
        super().__init__(params, defaults)
        self._init_rings(rings)

    def _step_group(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        for p in params:
            if not self.state[p]:
                self.state[p]["step"] = torch.tensor(0.0)
                self.state[p]["exp_avg"] = torch.zeros_like(p)
                self.state[p]["exp_avg_sq"] = torch.zeros_like(p)
        for part in buckets(params):
            self._step(group, part)

    def _step(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Parameters of one device and type. Without rings each is one ring: the same formula."""
        beta1, beta2 = group["betas"]
        batch, factors = self._ring_rates.batch(params), self._ring_rates.factors(group, params)
        here = parts(params, [p.grad for p in params])
        values, grads = (list(map(as_real, each)) for each in here)
        states = [self.state[p] for p in params]
        torch._foreach_add_([s["step"] for s in states], torch.tensor(1.0))
        table = self._ages(group, params)
        means = [as_real(local_of(s["exp_avg"])) for s in states]
        squares = [as_real(local_of(s["exp_avg_sq"])) for s in states]
        if group["maximize"]:
            grads = list(torch._foreach_neg(grads))
        if group["weight_decay"] != 0:
            grads = list(torch._foreach_add(grads, values, alpha=group["weight_decay"]))
        torch._foreach_lerp_(means, grads, 1 - beta1)
        first = corrections(beta1, table, factors)
        etas, second = _etas(group, batch, table, squares)
        mean_square = self._ring_rates.squares("etas", params, etas) / batch.counts
        rates = factors * group["lr"] / (mean_square.sqrt() * first)  # √b₂ cancels
        torch._foreach_mul_(etas, means)
        batch.addcmul_(values, etas, torch.where(second > 0, rates, 0.0))
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)

    def _sums(self) -> Sums:
        """Σ η² of every ring: η does not depend on the gradient, so it is known before the step."""
        sums: list[tuple[str, Tensor, Tensor]] = []
        for group in self.param_groups:
            cut = [p for p in group["params"] if is_shard(p)]
            moving = [p for p in cut if p.grad is not None and self.state.get(p)]
            found: dict[int, Tensor] = {}
            for params in buckets(moving):
                batch, states = self._ring_rates.batch(params), [self.state[p] for p in params]
                # the ages that they will have
                later = [{**state, "step": state["step"] + 1} for state in states]
                is_own, count = option(group, "ages") == "ring", self._ring_rates.num_rings
                table = [ages(state, count, is_own) for state in later]
                squares = [as_real(local_of(state["exp_avg_sq"])) for state in states]
                etas, _ = _etas(group, batch, table, squares)
                found |= zip(map(id, params), batch.squares(etas), strict=True)
            for p in cut:  # the same of every process, whatever has gradients there
                nothing = torch.zeros(
                    self._ring_rates.num_rings, device=local_of(p.detach()).device
                )
                sums.append(("etas", p, found.get(id(p), nothing)))
        return sums


def _etas(
    group: dict[str, Any], batch: RingBatch, table: list[tuple[float, ...]], squares: list[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """η/√b₂ of every entry, and √b₂ of every ring.

    η = 1/(√v/√b₂ + ε) = √b₂/(√v + ε√b₂); b₂ = 0 at the first step, where the rate is 0.
    """
    before = [tuple(age - 1 for age in row) for row in table]  # steps that v has seen
    like = torch.empty(0, dtype=batch.dtype, device=batch.device)
    second = corrections(group["betas"][1], before, like).sqrt_()
    etas = [root.to(batch.dtype).contiguous() for root in torch._foreach_sqrt(squares)]
    batch.add_(etas, torch.where(second > 0, second * group["eps"], 1.0))
    torch._foreach_reciprocal_(etas)
    return etas, second
