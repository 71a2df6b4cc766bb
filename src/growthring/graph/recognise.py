"""Recognises modules that compute a layer norm or RMS norm by hand (LlamaRMSNorm, T5LayerNorm, …).

A mean over a growing axis cannot be preserved in general, but a norm's can: its statistics fade in.
Whether a module *is* such a norm is settled by running it on random numbers beside the formula, not
by its name.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import nn

from growthring.graph.trace import Op, Trace, Value

_STATISTICS = (
    "aten.mean",
    "aten.var",
    "aten.var_mean",
    "aten.linalg_vector_norm",
    "aten.sum",
    "aten.norm",
)
_CASTS = (
    "aten.to.",
    "aten._to_copy",
    "aten.alias",
    "aten.contiguous",
    "aten._assert_tensor_metadata",
)


@dataclass(frozen=True)
class NormFormula:
    """y = (x - mean) / sqrt(mean square + eps) · (gain + offset) + bias, the mean only if `centred`."""

    centred: bool
    eps: float
    offset: float

    def __call__(
        self,
        x: torch.Tensor,
        gain: torch.Tensor | None,
        bias: torch.Tensor | None,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Normalises the last axis; `weights` (summing to 1) weigh its entries in the statistics."""
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        if weights is None:
            weights = torch.full((x.shape[-1],), 1 / x.shape[-1], dtype=wide.dtype, device=x.device)
        weights = weights.to(wide)
        if self.centred:
            wide = wide - (wide * weights).sum(-1, keepdim=True)
        square = (wide * wide * weights).sum(-1, keepdim=True)
        out = (wide * torch.rsqrt(square + self.eps)).to(x.dtype)
        if gain is not None:
            out = out * (gain + self.offset if self.offset else gain)
        return out if bias is None else out + bias


def recognise_norms(model: nn.Module, trace: Trace) -> dict[str, NormFormula]:
    """Qualified names of the modules that compute a norm by hand, with their formulas."""
    found: dict[str, NormFormula] = {}
    by_type: dict[tuple[type, tuple[tuple[str, object], ...]], NormFormula | None] = {}
    for op in trace.ops:
        base = ".".join(op.name.split(".")[:2])
        if base not in _STATISTICS or op.module in found:
            continue
        module = model.get_submodule(op.module)
        sizes = [p.numel() for p in module.parameters() if p.dim() == 1]
        if list(module.children()) or len(sizes) not in (1, 2) or len(set(sizes)) != 1:
            continue
        numbers = tuple((k, v) for k, v in vars(module).items() if isinstance(v, (int, float)))
        key = (type(module), numbers)
        if key not in by_type:
            by_type[key] = _formula(module, sizes[0])
        formula = by_type[key]
        if formula is not None:
            found[op.module] = formula
    return found


def _formula(module: nn.Module, width: int) -> NormFormula | None:
    """The formula that a module computes over the last axis, at its own width and at another one."""
    eps_values = [v for v in vars(module).values() if isinstance(v, float) and 0 <= v < 1]
    candidates = [
        NormFormula(centred, eps, offset)
        for eps in [*eps_values, 0.0]
        for centred in (False, True)
        for offset in (0.0, 1.0)
    ]
    for n in (width, max(2, width // 2 + 1)):
        observed = _observe(module, n)
        if observed is None:
            return None
        x, y, gain, bias = observed
        with torch.no_grad():
            candidates = [
                formula
                for formula in candidates
                if torch.allclose(y, formula(x, gain, bias), rtol=1e-4, atol=1e-6)
            ]
    return candidates[0] if candidates else None


def _observe(
    module: nn.Module, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None] | None:
    """Input, output and parameters of a copy of this width with random parameters, or None if it fails."""
    generator = torch.Generator().manual_seed(0)
    try:
        twin = copy.deepcopy(module).to_empty(device="cpu").float()
        for p in twin.parameters():
            p.data = torch.randn(width, generator=generator)
        x = torch.randn(3, 2, width, generator=generator) + 0.5
        x = x * torch.tensor([[1e-3, 1e-2], [0.1, 1.0], [10.0, 100.0]])[:, :, None]
        with torch.no_grad():
            y = twin(x)
    except Exception:  # whatever it is, it is not a norm of one tensor
        return None
    if not isinstance(y, torch.Tensor) or y.shape != x.shape:
        return None
    parameters = list(twin.parameters())
    return x, y, parameters[0], parameters[1] if len(parameters) == 2 else None


def collapse_norms(trace: Trace, norms: dict[str, NormFormula]) -> Trace:
    """Replaces the operators of each recognised norm by one `growthring.norm`."""
    if not norms:
        return trace
    ops: list[Op] = []
    i = 0
    while i < len(trace.ops):
        op = trace.ops[i]
        if op.module not in norms:
            ops.append(op)
            i += 1
            continue
        j = i
        while j < len(trace.ops) and trace.ops[j].call == op.call:
            j += 1
        while trace.ops[i].name.startswith(_CASTS):
            # A cast that changes nothing returns its input, which the residual stream goes on
            # using.
            ops.append(trace.ops[i])
            i += 1
        ops.append(_collapse(trace, trace.ops[i:j]))
        i = j
    return replace(trace, ops=ops)


def _collapse(trace: Trace, body: list[Op]) -> Op:
    inner = {v for op in body for v in op.outputs}
    x = next(v for op in body for v in op.inputs() if v not in trace.parameters and v not in inner)
    params: list[Value] = []
    for op in body:
        params += [v for v in op.inputs() if v in trace.parameters and v not in params]
    members = set(map(id, body))
    ends = [
        v
        for op in body
        for v in op.outputs
        if v in trace.outputs or any(id(c) not in members for c in trace.consumers.get(v, ()))
    ]
    params.sort(key=lambda v: not trace.parameters[v].endswith("weight"))
    gain, bias = params[0], params[1] if len(params) > 1 else None
    op = body[-1]
    return Op("growthring.norm", (x, gain, bias), {}, (ends[-1],), op.module, op.call)
