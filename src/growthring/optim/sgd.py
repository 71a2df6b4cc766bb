"""SGD with a rate for each ring (paper, eq. 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from torch.optim.sgd import sgd

from growthring.errors import InputError
from growthring.optim.base import RingOptimizer
from growthring.optim.options import RingOptions
from growthring.optim.rescaling import in_layout
from growthring.optim.shards import keep, parts


class SGD(RingOptimizer, torch.optim.SGD):
    """`torch.optim.SGD`; with a Grower, ring k of a weight moves at lr · ‖W_k‖ / ‖W_0‖.

    Args:
        params: parameters or parameter groups; groups may have ring options of their own.
        lr: η_0, which any scheduler may change.
        momentum, dampening, weight_decay, nesterov, maximize, foreach, differentiable, fused: as in
            torch (differentiable without a Grower only). Weight decay is part of the
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

    def _check_kernels(self, group: Mapping[str, Any]) -> None:
        super()._check_kernels(group)
        small = [p for p in group["params"] if p.dtype.itemsize < 4 and p.device.type == "cpu"]
        if group["fused"] and small:
            raise InputError(
                f"SGD(fused=True) with weights of {small[0].dtype} on a CPU: the kernel of torch leaves most "
                "of them as they are, without an error (seen in 2.13). Leave fused out, or keep the weights in "
                "float32 and use autocast."
            )

    def _step_group(self, group: dict[str, Any]) -> None:
        if group["fused"]:
            self._align_state(group)
        params: list[Tensor] = []
        grads: list[Tensor] = []
        buffers: list[Tensor | None] = []
        has_sparse = self._init_group(group, params, grads, buffers)
        if group["momentum"] == 0:
            buffers = [None] * len(params)
        lists: list[list[Any]] = [params, grads, buffers]
        if group["fused"]:
            lists[1] = list(map(in_layout, params, grads))
        split = self._split(group, lists)
        here = [parts(*some) for some in (split.plain, *split.ringed)]
        self._torch_step(group, here[0], has_sparse)
        for (owners, *_), part in zip(split.ringed, here[1:], strict=True):
            if group["fused"]:
                with self._rescaled(group, owners):
                    self._torch_step(group, part, has_sparse)
            else:
                self._ring_step(group, owners, *part)
        if group["momentum"] != 0:
            for (ps, *_), (_, _, bs) in zip((split.plain, *split.ringed), here, strict=True):
                for p, buffer in zip(ps, bs, strict=True):
                    keep(self.state[p], "momentum_buffer", buffer, p)

    def _torch_step(
        self, group: dict[str, Any], lists: Sequence[list[Any]], has_sparse: bool
    ) -> None:
        """Torch's own step; buffers are filled where they hold None."""
        params, grads, buffers = lists
        firsts = [buffer is None for buffer in buffers]
        if group["fused"] and any(firsts) and not all(firsts):  # a fused call takes one kind
            for kind in (True, False):
                chosen = [i for i, is_first in enumerate(firsts) if is_first is kind]
                some = [[values[i] for i in chosen] for values in lists]
                self._torch_step(group, some, has_sparse)
                for i, buffer in zip(chosen, some[2], strict=True):
                    buffers[i] = buffer
            return
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
