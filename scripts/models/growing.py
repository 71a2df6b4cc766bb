"""Grows a model through all its stages and measures the worst change of its outputs."""

import contextlib
import copy
from dataclasses import dataclass

import torch
from torch import nn

import growthring as gr
from growthring.core.variance import Mode
from growthring.graph.arithmetic import Arithmetic
from growthring.graph.trace import ExampleInputs, split_inputs
from growthring.growing.trials import Trial, run, worst
from growthring.growing.verify import Outputs, outputs_of
from growthring.methods import Paired
from scripts.models.entry import Entry, converted

STAGES = 4
START = 0.25
SEED = 0

# Largest relative change that counts as exact: float32, float64, and rescaling in front of norms with an ε.
FLOAT32_BOUND, FLOAT64_BOUND, PRESERVING_BOUND = 1e-5, 1e-12, 1e-3

# Outputs must differ at least this much between two inputs.
LEAST_SENSITIVITY = 1e-2


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
    """Moves every parameter off its initial value.

    Zero biases, unit gains and layer scales of 1e-6 would hide much of what could go wrong.
    """
    with torch.no_grad():
        for p in model.parameters():
            # Weights keep their order of magnitude: a deep network would amplify rounding otherwise.
            size = 0.5 * float(p.std(correction=0)) if p.dim() > 1 else 0.0
            p.add_(torch.randn(p.shape, generator=generator).to(p), alpha=size or 0.05)


def calibrate(model: nn.Module, inputs: ExampleInputs) -> None:
    """Sets running statistics to those of the inputs.

    With those of a fresh model, the signal of a deep network dies out in eval mode: its outputs hardly depend on
    the inputs, and a wrongly grown layer would not show. Variances of channels that are nearly silent on so few
    inputs are raised to a tenth of their norm's mean: dividing by them would amplify rounding.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [m.momentum for m in norms]
    args, kwargs = split_inputs(inputs)
    for m in norms:
        m.momentum = 1.0
    try:
        with torch.no_grad():
            model.train()(*args, **kwargs)
    finally:
        model.eval()
        for m, momentum in zip(norms, momenta, strict=True):
            m.momentum = momentum
            if m.running_var is not None:
                m.running_var.clamp_(min=0.1 * float(m.running_var.mean()))


def perturbed_seed(plan: gr.Plan) -> nn.Module:
    """The seed of a plan, moved off its initial values, with running statistics that suit its inputs."""
    seed = plan.build_seed().eval()
    generator = torch.Generator().manual_seed(SEED + 1)
    perturb(seed, generator)
    torch.manual_seed(SEED)  # dropout
    calibrate(seed, plan.example_inputs)
    return seed


@dataclass(frozen=True)
class GrownModel:
    """A model grown to full size.

    Attributes:
        model: the grown model, with plain norms.
        worst: the largest relative change of any output at any step in eval mode, on the plan's inputs and on
            fresh ones.
        worst_training: the same in train mode; None where train mode does not take the inputs.
        rounding_training: what one unit in the last place of noise on every operator does in train mode, where
            the change is more than exact: the statistics of a small batch divide by little, layer after layer.
        rounding: how far the ungrown seed is from itself in float64, 0 if it cannot be; in float64 what that noise
            does in eval mode, where it is needed.
        sensitivity: how much the outputs differ between those two inputs. Were it tiny, `worst` would mean nothing.
    """

    model: nn.Module
    worst: float
    worst_training: float | None
    rounding_training: float
    rounding: float
    sensitivity: float


def grow_through(
    plan: gr.Plan, fresh_inputs: ExampleInputs, mode: Mode, method: str = "paired"
) -> GrownModel:
    """Grows a perturbed seed to full size without noise; one in float64 computes in 64 bits throughout."""
    model = perturbed_seed(plan)
    generator = torch.Generator().manual_seed(SEED + 2)
    grower = gr.Grower(
        model,
        plan,
        method=Paired(mode) if method == Paired.name else method,
        noise=0.0,
        generator=generator,
    )
    is_double = any(p.dtype == torch.float64 for p in model.parameters())
    arithmetic = Arithmetic(lifted=is_double)
    trials = _trials(model, plan, fresh_inputs, arithmetic)
    first = run(model, trials, plan.outputs, arithmetic)
    sensitivity = first[0].change_to(first[1]).relative
    rounding = 0.0 if is_double else _rounding(model, plan, first[0])
    changes: dict[bool, list[float]] = {False: [], True: []}
    while not grower.is_full:
        before = run(model, trials, plan.outputs, arithmetic)
        grower.grow()
        after = run(model, trials, plan.outputs, arithmetic)
        for training, found in changes.items():
            change = worst(trials, before, after, training)
            found += [] if change is None else [change.relative]
    grower.finish()
    training = max(changes[True], default=None)
    if is_double and max(changes[False]) > FLOAT64_BOUND:
        rounding = _disturbed(model, trials, plan, arithmetic, training=False)
    return GrownModel(
        model,
        max(changes[False]),
        training,
        _disturbed(model, trials, plan, arithmetic, training=True)
        if (training or 0) > FLOAT64_BOUND
        else 0.0,
        rounding,
        sensitivity,
    )


def _disturbed(
    model: nn.Module, trials: list[Trial], plan: gr.Plan, arithmetic: Arithmetic, training: bool
) -> float:
    """How far the model in a mode is from itself when every operator rounds at random."""
    chosen = [t for t in trials if t.training == training]
    noisy = Arithmetic(lifted=arithmetic.lifted, rounded=SEED)
    runs = [run(model, chosen, plan.outputs, how) for how in (arithmetic, noisy)]
    return max(a.change_to(b).relative for a, b in zip(*runs, strict=True))


def _trials(
    model: nn.Module, plan: gr.Plan, fresh_inputs: ExampleInputs, arithmetic: Arithmetic
) -> list[Trial]:
    """Both inputs in eval mode, and in train mode as far as it takes them."""
    both = (plan.example_inputs, fresh_inputs)
    result = [Trial(inputs, training=False) for inputs in both]
    for inputs in both:
        with contextlib.suppress(Exception):
            outputs_of(model, inputs, plan.outputs, True, arithmetic)
            result.append(Trial(inputs, training=True))
    return result


def _rounding(model: nn.Module, plan: gr.Plan, outputs: Outputs) -> float:
    """What float32 alone does to the outputs: no growth can be closer than that."""
    try:
        twin = copy.deepcopy(model).double()
        wide = outputs_of(twin, converted(plan.example_inputs, torch.float64), plan.outputs)
    except RuntimeError:  # a kernel without float64
        return 0.0
    return wide.change_to(outputs).relative


def bound(dtype: torch.dtype, mode: Mode, training: bool = False, rounding: float = 0.0) -> float:
    """What counts as exact.

    Deep networks amplify rounding: a model need not be closer to itself than its arithmetic lets it be.
    In train mode, and behind rescaled weights, norms may show their ε.
    """
    if mode != "off":
        return PRESERVING_BOUND
    least = FLOAT64_BOUND if dtype == torch.float64 else FLOAT32_BOUND
    return max(least, (4 if training else 2) * rounding)
