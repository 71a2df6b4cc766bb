"""Grows a model through all its stages and measures the worst change of its outputs."""

from dataclasses import dataclass

import torch
from torch import nn

import growthring as gr
from growthring.core.variance import Mode
from growthring.graph.trace import ExampleInputs, split_inputs
from growthring.verify import compare, outputs_of
from scripts.models.entry import Entry, converted

STAGES = 4
START = 0.25
SEED = 0

# Largest relative change that counts as exact (issue 2): float32, float64, and rescaling in front of norms with an ε.
FLOAT32_BOUND, FLOAT64_BOUND, PRESERVING_BOUND = 1e-5, 1e-12, 1e-3


@dataclass(frozen=True)
class Prepared:
    """A built model with inputs to plan on and others to measure on."""

    entry: Entry
    model: nn.Module
    inputs: ExampleInputs
    fresh_inputs: ExampleInputs

    def to(self, dtype: torch.dtype) -> "Prepared":
        """The same in another precision; the model is converted in place."""
        inputs, fresh = (converted(i, dtype) for i in (self.inputs, self.fresh_inputs))
        return Prepared(self.entry, self.model.to(dtype), inputs, fresh)

    def runs(self) -> bool:
        """Whether the model's own code runs (some kernels do not exist in float64)."""
        args, kwargs = split_inputs(self.inputs)
        try:
            with torch.no_grad():
                self.model.eval()(*args, **kwargs)
        except RuntimeError:
            return False
        return True

    def plan(self) -> gr.Plan:
        """Four stages, growing evenly from a quarter of the width."""
        return gr.plan(
            self.model,
            self.inputs,
            stages=STAGES,
            start=START,
            growth=None,
            **self.entry.options,
        )


def prepare(entry: Entry, quick: bool = False) -> Prepared:
    """Builds the model and its inputs from a fixed seed."""
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    build = entry.quick if quick and entry.quick is not None else entry.build
    inputs = entry.inputs
    if quick and entry.quick_inputs is not None:
        inputs = entry.quick_inputs
    return Prepared(entry, build().eval(), inputs(generator), inputs(generator))


def perturb(model: nn.Module, generator: torch.Generator) -> None:
    """Moves every parameter and the running statistics off their initial values.

    Zero biases, unit gains and layer scales of 1e-6 would hide much of what could go wrong.
    """
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator).to(p), alpha=0.05)
        for name, b in model.named_buffers():
            if name.endswith("running_mean"):
                b.add_(torch.randn(b.shape, generator=generator).to(b), alpha=0.1)
            elif name.endswith("running_var"):
                b.mul_(torch.rand(b.shape, generator=generator).to(b) + 0.5)


def perturbed_seed(plan: gr.Plan) -> nn.Module:
    """The seed of a plan, moved off its initial values."""
    seed = plan.build_seed().eval()
    perturb(seed, torch.Generator().manual_seed(SEED + 1))
    return seed


def grow_through(plan: gr.Plan, fresh_inputs: ExampleInputs, mode: Mode) -> tuple[nn.Module, float]:
    """Grows a perturbed seed to full size without noise.

    Returns:
        The grown model with plain norms, and the worst relative change of any step, on either inputs.
    """
    model = perturbed_seed(plan)
    generator = torch.Generator().manual_seed(SEED + 2)
    grower = gr.Grower(model, plan, variance_transfer=mode, noise=0.0, generator=generator)
    worst = 0.0
    while not grower.is_full:
        before = outputs_of(model, fresh_inputs, plan.outputs)
        report = grower.grow()
        after = outputs_of(model, fresh_inputs, plan.outputs)
        assert report.change is not None
        worst = max(worst, report.change.relative, compare(before, after).relative)
    grower.finish()
    return model, worst


def bound(plan: gr.Plan, mode: Mode) -> float:
    """What counts as exact. Code that casts to float32 inside (many norms of transformers do) has its bound."""
    exact = FLOAT64_BOUND if plan.groups.precision < 1e-10 else FLOAT32_BOUND
    return exact if mode == "off" else PRESERVING_BOUND
