"""The growth contract, checked on one model: what every row of the operator table has to fulfil."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

import growthring as gr
from growthring.core.axes import layout, size
from growthring.graph.results import output_tensors
from growthring.graph.trace import split_inputs

PLAIN = (int, float, str, tuple, torch.Size)


def factor_of(plan, name, report, stage, like):
    """The factor on the old entries of a tensor: one number, or one per segment of a fused one."""
    pieces = plan.groups.specs[name].pieces if name in plan.groups.specs else None
    if pieces is None:
        return report.factors.get(name, 1.0)
    axis, parts = pieces
    numbers = [report.factors.get(f"{name}#{k}", 1.0) for k in range(len(parts))]
    sizes = torch.tensor([size(part, plan.stage_widths[stage]) for part in parts])
    line = torch.repeat_interleave(like.new_tensor(numbers), sizes)
    return line.reshape([-1] + [1] * (like.dim() - 1 - axis))


def perturb(model: nn.Module, seed: int = 1) -> None:
    """Gives every parameter and running statistic a value of its own, as training would."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn(p.shape, generator=g, dtype=torch.float64).to(p.dtype)
        for name, b in model.named_buffers():
            if name.endswith("running_mean"):
                b.copy_(0.2 * torch.randn(b.shape, generator=g, dtype=torch.float64))
            elif name.endswith("running_var"):
                b.copy_(0.5 + torch.rand(b.shape, generator=g, dtype=torch.float64))


def cast(inputs: Any, dtype: torch.dtype) -> Any:
    """Example inputs with their floating-point tensors in another type."""
    if isinstance(inputs, torch.Tensor):
        return inputs.to(dtype) if inputs.is_floating_point() else inputs
    if isinstance(inputs, Mapping):
        return {k: cast(v, dtype) for k, v in inputs.items()}
    return tuple(cast(v, dtype) for v in inputs)


def call(model: nn.Module, inputs: Any) -> list[torch.Tensor]:
    args, kwargs = split_inputs(inputs)
    return output_tensors(model(*args, **kwargs))


def run(model: nn.Module, inputs: Any, training: bool) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Outputs and gradients of a copy of the model, in the given mode."""
    twin = copy.deepcopy(model)
    twin.train(training)
    outputs = call(twin, inputs)
    g = torch.Generator().manual_seed(7)
    loss = torch.zeros((), dtype=torch.float64)
    for out in outputs:
        if out.requires_grad:
            direction = torch.randn(out.shape, generator=g, dtype=torch.float64)
            finite = torch.isfinite(out)
            loss = loss + (out.double().masked_fill(~finite, 0) * direction).sum()
    if loss.requires_grad:
        loss.backward()
    return [o.detach() for o in outputs], {n: p.grad for n, p in twin.named_parameters()}


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference relative to the largest entry of a."""
    assert a.shape == b.shape, (a.shape, b.shape)
    if a.dtype in (torch.bool, torch.int64, torch.int32) or not a.numel():
        return 0.0 if bool((a == b).all()) else float("inf")
    a, b = a.double(), b.double()
    same_infinity = torch.isinf(a) & (a == b)
    a, b = a.masked_fill(same_infinity, 0), b.masked_fill(same_infinity, 0)
    difference = (a - b).abs().max()
    if not bool(torch.isfinite(difference)):
        return float("inf")
    return float(difference / a.abs().max().clamp_min(1e-30))


def old_entries(plan: gr.Plan, name: str, tensor: torch.Tensor, stage: int) -> torch.Tensor:
    """The entries of a tensor of stage `stage + 1` that stage `stage` had."""
    before, after = plan.stage_widths[stage], plan.stage_widths[stage + 1]
    spec = plan.groups.specs.get(name)
    if spec is None:
        return tensor
    for i, axis in enumerate(spec.axes):
        tensor = tensor.index_select(i, layout(axis, before, after).old)
    return tensor


def attributes(model: nn.Module) -> dict[tuple[str, str], Any]:
    """Every plain attribute of every module, and of the settings objects they hold."""
    found: dict[tuple[str, str], Any] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name.startswith("_") or name == "training":
                continue
            if isinstance(value, PLAIN) or value is None:
                found[path, name] = value
            elif isinstance(value, list):
                found[path, name] = tuple(value)
            elif (
                hasattr(value, "__dict__")
                and not callable(value)
                and not isinstance(value, nn.Module)
            ):
                for k, v in vars(value).items():
                    if isinstance(v, PLAIN):
                        found[path, f"{name}.{k}"] = v
    return found


def in_dtype(plan: gr.Plan, dtype: torch.dtype) -> gr.Plan:
    """The same plan for the same model in another precision (saves tracing it anew)."""
    return dataclasses.replace(
        plan,
        model=copy.deepcopy(plan.model).to(dtype),
        example_inputs=cast(plan.example_inputs, dtype),
    )


def check_contract(
    plan: gr.Plan,
    mode: str = "off",
    tolerance: float = 1e-12,
    training: bool = True,
    gradients: bool = True,
    changes: Callable[[gr.GrowthReport], float] | None = None,
) -> list[gr.GrowthReport]:
    """Grows a perturbed seed through all stages without noise and asserts the whole contract."""
    original, inputs = plan.model, plan.example_inputs
    keys = list(original.state_dict())
    model = plan.build_seed()
    perturb(model)
    grower = gr.Grower(
        model, plan, variance_transfer=mode, noise=0.0, generator=torch.Generator().manual_seed(3)
    )
    identities = {n: id(p) for n, p in model.named_parameters()}
    reports = []
    for stage in range(plan.num_stages - 1):
        modes = (False, True) if training else (False,)
        if stage:
            perturb(model, seed=10 + stage)  # training parts the pairs of the last growth
        before = {t: run(model, inputs, t) for t in modes}
        report = grower.grow()
        reports.append(report)
        limit = tolerance if changes is None else changes(report)
        for t in modes:
            outputs, gradient = run(model, inputs, t)
            for a, b in zip(before[t][0], outputs, strict=True):
                found = distance(a, b)
                assert found <= limit, (
                    f"stage {stage + 1} training={t}: outputs differ by {found:.1e}"
                )
            if not gradients:
                continue
            scale = max(
                (float(g.abs().max()) for g in before[t][1].values() if g is not None), default=0.0
            )
            for name, old in before[t][1].items():
                if old is None:
                    continue
                new = old_entries(plan, name, gradient[name], stage)
                new = new * factor_of(plan, name, report, stage, new)
                error = float((new - old).double().abs().max()) if old.numel() else 0.0
                error /= max(scale, 1e-30)
                assert error <= 20 * limit, (
                    f"stage {stage + 1} training={t}: gradient of '{name}' differs by {error:.1e}"
                )
        assert list(model.state_dict()) == keys
        assert {n: id(p) for n, p in model.named_parameters()} == identities
    grower.finish()
    assert grower.is_full
    shapes = {n: tuple(t.shape) for n, t in model.state_dict().items()}
    assert shapes == {n: tuple(t.shape) for n, t in original.state_dict().items()}
    assert attributes(model) == attributes(original)
    assert not any("forward" in vars(m) for m in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    twin = copy.deepcopy(original)
    twin.load_state_dict(model.state_dict(), strict=True)
    for a, b in zip(run(twin, inputs, False)[0], run(model, inputs, False)[0], strict=True):
        assert distance(a, b) <= 1e-6 if a.dtype == torch.float32 else distance(a, b) <= 1e-12
    return reports


def make_plan(model: nn.Module, inputs: Any, stages: int = 4, **options: Any) -> gr.Plan:
    options = {"start": 0.25, "growth": None, "round_to": 1} | options  # large steps
    return gr.plan(model.double(), cast(inputs, torch.float64), stages=stages, **options)


def widths(plan: gr.Plan) -> dict[str, int]:
    return {g.name: g.width for g in plan.groups.growable}


def randn(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(*shape: int, high: int = 10) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(5))


class Net(nn.Module):
    """A model made of named parts and a function `forward(self, *inputs)`."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self._function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self._function(self, *inputs)


def parameter(*shape: int, std: float = 0.3, seed: int = 11) -> nn.Parameter:
    return nn.Parameter(std * randn(*shape, seed=seed))
