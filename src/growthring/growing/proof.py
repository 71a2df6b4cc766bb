"""The proof of a plan: a thin twin of the model takes the first step in 64 bits, before anything is trained.

What `grow` measures on the user's model is blurred by that model's own rounding, and by parameters that are
still zero. The twin has the seed's widths, random values everywhere and 64-bit arithmetic (also where the
model's code casts to fewer), and runs in both modes on the example inputs and on fresh ones. There a wrong
rule, factor or attribute cannot hide.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils._pytree import tree_map

from growthring.errors import GrowthStepError
from growthring.graph.arithmetic import Arithmetic, widened
from growthring.graph.magnitudes import effective
from growthring.graph.resize import copy_with, named_tensors
from growthring.growing.module import GrowingModule
from growthring.growing.trials import (
    Trial,
    explanation,
    make_trials,
    rounding_limit,
    run,
    runs,
    worst,
)
from growthring.methods.base import GrowthMethod, Job, Step
from growthring.methods.magnitudes import following_magnitudes
from growthring.methods.paired import Paired
from growthring.planning.plan import Plan

_LIFTED = Arithmetic(lifted=True)
_WITHOUT_EPS = Arithmetic(lifted=True, without_eps=True)


def prove(plan: Plan, method: GrowthMethod) -> None:
    """Raises if a thin 64-bit twin of the model changes its outputs when it grows; once for each plan.

    Args:
        plan: its first growth that widens anything is tried.
        method: how to grow; one that searches on data, or changes the function anyway, is replaced by pairs.
    """
    stage = next((t for t in range(1, plan.num_stages) if _differs(plan, t)), None)
    proven: set[tuple[str, str]] = plan.__dict__.setdefault("_proven", set())
    if stage is None:
        return
    exact: list[tuple[GrowthMethod, Arithmetic]] = [(Paired("off"), _LIFTED)]
    has_eps = any(record.kind == "norm" for record in plan.groups.records)
    if isinstance(method, Paired) and method.mode == "preserving" and not has_eps:
        exact.append((method, _WITHOUT_EPS))
    elif not isinstance(method, Paired) and not method.searches:
        exact.append((method, _LIFTED))
    exact = [pair for pair in exact if (pair[0].name, pair[0].mode) not in proven]
    if not exact:
        return
    asked = {(tried.name, tried.mode) for tried, _ in exact}
    example = plan.inputs_for(_twin(plan, False)) if plan.is_meta else plan.example_inputs
    inputs = tree_map(widened, example)
    lifts = runs(_twin(plan, True), inputs, plan.outputs, False, _LIFTED)
    if not lifts:  # some kernels take no 64 bits, some code no other arithmetic
        inputs, plain = example, Arithmetic()
        exact = [(tried, plain) for tried, _ in exact if tried == Paired("off")]
        if not runs(_twin(plan, False), inputs, plan.outputs, False, plain):
            return  # the plan's model has changed since (a table was filled): `grow` measures the seed
    trials: list[Trial] | None = None
    for tried, arithmetic in exact:
        twin = _twin(plan, lifts)
        if trials is None:
            trials, _ = make_trials(twin, inputs, plan.outputs, arithmetic)
        _try(plan, tried, arithmetic, twin, trials, stage)
    proven |= asked  # what cannot be tried here is not tried again by the next Grower either


def _differs(plan: Plan, stage: int) -> bool:
    return plan.stage_widths[stage] != plan.stage_widths[0]


def _twin(plan: Plan, lifts: bool) -> nn.Module:
    """The seed, in 64 bits if it `lifts`, all of its values moved at random: what is zero hides mistakes."""
    generator = torch.Generator().manual_seed(0)
    seed = plan.build_seed(generator=generator)
    statistics = {n: s.kind for n, s in plan.groups.specs.items() if s.kind in ("mean", "variance")}
    tensors = {}
    for name, tensor in named_tensors(seed).items():
        wide = widened(tensor.detach().clone()) if lifts else tensor.detach().clone()
        is_number = wide.is_floating_point() or wide.is_complex()
        if is_number and (isinstance(tensor, nn.Parameter) or name in statistics):
            drawn = torch.randn(wide.shape, generator=generator, dtype=torch.float64)
            drawn = drawn.to(wide.device, wide.real.dtype if wide.is_complex() else wide.dtype)
            if statistics.get(name) == "variance":
                wide = wide * (1 + 0.3 * drawn.tanh())
            else:
                fan_in = max(1, wide.numel() // max(1, wide.shape[0])) if wide.dim() > 1 else 1
                wide = wide * (1 + 0.2 * drawn.tanh()) + 0.1 * fan_in**-0.5 * drawn
        tensors[name] = wide
    return copy_with(seed, tensors)


def _try(
    plan: Plan,
    method: GrowthMethod,
    arithmetic: Arithmetic,
    twin: nn.Module,
    trials: list[Trial],
    stage: int,
) -> None:
    step = Step(plan, plan.stage_widths[0], plan.stage_widths[stage], method.mode)
    grown, generator = GrowingModule(twin, plan), torch.Generator().manual_seed(1)
    before = run(twin, trials, plan.outputs, arithmetic)
    if any(bool(torch.isnan(t).any()) for outputs in before for t in outputs.returned):
        return  # random values are none that this model takes; `grow` measures the model's own
    tensors = effective(plan.groups.specs, grown.tensors)
    growth = following_magnitudes(method.grow(Job(step, twin, tensors, generator)), step)
    if growth.change is not None:
        return
    grown.install(step, growth.tensors(grown.tensors, generator), {})
    after = run(twin, trials, plan.outputs, arithmetic)
    for training in (False, True):
        change = worst(trials, before, after, training, bool(step.classes))
        if change is None:
            continue
        chosen = [t for t in trials if t.training is training]
        relative = change.relative
        limit = rounding_limit(twin, chosen, plan.outputs, relative, arithmetic.lifted)
        if not relative <= limit:
            mode, bits = (
                "train" if training else "eval",
                ", in 64 bits" if arithmetic.lifted else "",
            )
            raise GrowthStepError(
                f"a trial growth of {plan.groups.model_type} to the widths of stage {stage}{bits}, changes the "
                f"outputs in {mode} mode by {relative:.1e} (relative; rounding explains {limit:.0e})"
                f"{explanation(plan.groups, training)} Nothing was changed."
            )
