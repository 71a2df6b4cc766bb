"""Optimizers that know nine rings against torch's: their step, a training step, diagnostics, growth with state.

    python -m benchmarks.optim [--repeats 15] [--json] [--pairs fused]

Both of a pair hold the same parameters and gradients (random ones, and a learning rate so small that
nothing drifts), and their order changes from repeat to repeat. Memory is left to the C library, as users
leave it: what torch's foreach step allocates for a moment is new each time, and its pages cost.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import growthring as gr
from benchmarks.growth import STEPS, keep_freed_memory
from benchmarks.measure import (
    Result,
    Sample,
    Table,
    main,
    parser,
    ratio,
    seconds,
    show,
    verdict,
)
from growthring import zoo

TARGET_SGD, TARGET_ADAM, TARGET_OFF, TARGET_TRAINING = 1.5, 1.2, 1.05, 0.02
RATE = 1e-7
MOMENTUM = {"momentum": 0.9, "weight_decay": 5e-4}
# What is not said is the paper's, as the plan's preset is.
DEFAULTS = {"ages": "shared", "output_rate": False}
DIAGNOSTICS = ("rate_factors", "weight_norms", "gradient_norms")

Make = Callable[[list[nn.Parameter]], Optimizer]


class Pair(NamedTuple):
    """An optimizer, what it is compared with, and the target of the ratio if there is one."""

    name: str
    ours: Make
    other_name: str
    other: Make
    target: float | None = None


def _torch(name: str, **options: Any) -> tuple[str, Make]:
    make = getattr(torch.optim, name)
    return f"torch {name}", lambda params: make(params, lr=RATE, foreach=True, **options)


def _ours(name: str, **options: Any) -> Make:
    make = getattr(gr.optim, name)
    return lambda params: make(params, lr=RATE, foreach=True, **options)


def _wrapped(params: list[nn.Parameter]) -> Optimizer:
    return gr.optim.with_rings(torch.optim.AdamW(params, lr=RATE, foreach=True))


def _family(label: str, name: str, target: float | None, **options: Any) -> list[Pair]:
    """An optimizer with rate adaptation, with schedules of the rings' own on top, without both, and by default."""
    kinds: list[tuple[str, dict[str, Any], float | None]] = [
        ("", {}, target),
        (", ring_schedule='own'", {"ring_schedule": "own", "total_steps": 1000}, target),
        (", rate_adaptation=None", {"rate_adaptation": None}, TARGET_OFF),
        (", the default preset", {"rate_adaptation": None, **DEFAULTS}, TARGET_OFF),
    ]
    other = _torch(name, **options)
    return [Pair(label + kind, _ours(name, **options, **o), *other, t) for kind, o, t in kinds]


def _fused(name: str, **options: Any) -> list[Pair]:
    """The fused kernel with rates per ring and with none, against torch's; and against our foreach path."""
    rings = {"ages": "shared"} if name.startswith("Adam") else {}

    def theirs(params: list[nn.Parameter]) -> Optimizer:
        optimizer: Optimizer = getattr(torch.optim, name)(params, lr=RATE, fused=True, **options)
        return optimizer

    def ours(params: list[nn.Parameter], **more: Any) -> Optimizer:
        make = getattr(gr.optim, name)
        optimizer: Optimizer = make(params, lr=RATE, fused=True, **{**options, **rings, **more})
        return optimizer

    plain = partial(ours, rate_adaptation=None, output_rate=False)
    label, foreach = f"{name}, fused", _ours(name, **options, **rings)
    return [
        Pair(label, ours, f"torch {name}, fused", theirs),
        Pair(f"{label}, the default preset", plain, f"torch {name}, fused", theirs, TARGET_OFF),
        Pair(label, ours, f"{name} of ours, not fused", foreach),
    ]


PAIRS = [
    *_family("SGD, momentum, weight decay", "SGD", TARGET_SGD, **MOMENTUM),
    *_family("SGD, plain", "SGD", None),
    *_family("Adam", "Adam", TARGET_ADAM),
    *_family("AdamW", "AdamW", TARGET_ADAM),
    Pair("with_rings(torch AdamW)", _wrapped, *_torch("AdamW")),
    Pair("LARS, momentum, weight decay", _ours("LARS", **MOMENTUM), *_torch("SGD", **MOMENTUM)),
    Pair("AvaGrad", _ours("AvaGrad"), *_torch("Adam")),
    Pair("AvaGrad", _ours("AvaGrad"), "AvaGrad, no Grower", _ours("AvaGrad")),
    *_fused("SGD", **MOMENTUM),
    *_fused("AdamW"),
]
# Of a pair whose other one is ours, too, that one has the rings as well.
RINGED = tuple(f"{name} of ours, not fused" for name in ("SGD", "AdamW"))


class Network:
    """A full model with random gradients, and the paper's plan of nine stages."""

    def __init__(self, model: nn.Module, inputs: Tensor, seed: int) -> None:
        self.model, self.plan = model, gr.plan(model, inputs, preset="paper")
        generator = torch.Generator().manual_seed(seed)
        for p in model.parameters():
            p.grad = 1e-3 * torch.randn(p.shape, generator=generator)

    def optimizer(self, make: Make, has_rings: bool) -> Optimizer:
        """An optimizer of the full model; each ring 100 steps younger than the one before it."""
        optimizer = make(list(self.model.parameters()))
        if has_rings:
            num_rings = gr.Grower(self.model, self.plan, optimizer=optimizer).rings.num_rings
            births, steps = [100 * k for k in range(num_rings)], 100 * num_rings
            record = {"births": births, "steps": steps, "history": [[RATE] * steps]}
            optimizer.load_state_dict({**optimizer.state_dict(), "rings": record})
        optimizer.step()  # makes the state
        for state in [s for s in optimizer.state.values() if has_rings and "step" in s]:
            state |= {"step": torch.tensor(float(steps)), "births": tuple(births)}
        return optimizer


def measure_steps(
    name: str, network: Network, repeats: int, table: Table, only: str = ""
) -> dict[str, Any]:
    """Times the step of every pair on one network, or of those whose names contain `only`."""
    data: dict[str, Any] = {}
    for pair in [pair for pair in PAIRS if only in pair.name]:
        has_rings = pair.other_name in RINGED
        optimizers = [network.optimizer(pair.other, has_rings), network.optimizer(pair.ours, True)]
        found: list[list[float]] = [[], []]
        for i in range(repeats + 1):
            for j in (0, 1) if i % 2 else (1, 0):
                found[j].append(seconds(optimizers[j].step))
        base, time = (Sample(tuple(values[1:])) for values in found)
        factor = ratio(time, base)
        row = [name, pair.name, pair.other_name, show(base, 1e3, 1), show(time, 1e3, 1)]
        table.rows.append([*row, f"**{factor.show(2)}**", *verdict(factor, pair.target)])
        samples = {"other": base, "ours": time, "ratio": factor}
        numbers = {key: sample.as_dict() for key, sample in samples.items()}
        data[f"{name}: {pair.name} / {pair.other_name}"] = {**numbers, "target": pair.target}
    return data


def measure_training(seed: int, repeats: int, table: Table) -> dict[str, Any]:
    """What rings and diagnostics add to a training step of ResNet-20, as shares of it."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(128, 3, 32, 32, generator=generator)
    labels = torch.randint(0, 10, (128,), generator=generator)
    network = Network(zoo.resnet20(generator=generator), images[:2], seed)
    theirs = network.optimizer(_torch("SGD", **MOMENTUM)[1], False)
    ours, recorded, asked = (network.optimizer(_ours("SGD", **MOMENTUM), True) for _ in "123")
    gr.optim.RingRecorder(recorded)
    actions: list[Callable[[], Any]] = [theirs.step, ours.step, recorded.step]
    actions += [getattr(asked, name) for name in DIAGNOSTICS]

    def backward() -> None:
        network.model.zero_grad()
        nn.functional.cross_entropy(network.model(images), labels).backward()

    # Each is timed alone, behind passes of its own: those leave the caches as training does.
    passes: list[float] = []
    found: list[list[float]] = [[] for _ in actions]
    for i in range(repeats + 1):
        spent = []
        for k in range(len(actions)):
            spent.append(seconds(backward))
            found[(i + k) % len(actions)].append(seconds(actions[(i + k) % len(actions)]))
        passes.append(Sample(tuple(spent)).median)
    base, step, recording, *calls = (Sample(tuple(values[1:])) for values in found)
    whole = Sample(tuple(a + b for a, b in zip(passes[1:], base.values, strict=True)))
    zero = Sample((0.0,) * repeats)
    extras: list[tuple[str, Sample, Sample, float | None]] = [
        ("gr.optim.SGD instead of torch's", step, base, TARGET_TRAINING),
        ("a RingRecorder", recording, step, None),
        *((f"{n}()", call, zero, None) for n, call in zip(DIAGNOSTICS, calls, strict=True)),
    ]
    data: dict[str, Any] = {"training step": whole.as_dict()}
    for name, more, less, target in extras:
        extra = Sample(tuple(a - b for a, b in zip(more.values, less.values, strict=True)))
        share = ratio(extra, whole)
        row = [name, show(whole, 1e3, 1), show(extra, 1e3, 2), f"**{share.show(4)}**"]
        table.rows.append([*row, *verdict(share, target)])
        data[name] = {"extra": extra.as_dict(), "share": share.as_dict(), "target": target}
    return data


def measure_growth(network: Network, repeats: int, seed: int, table: Table) -> dict[str, Any]:
    """A growth step with an optimizer that has state against one without."""
    keep_freed_memory()  # from here on memory is warm, for all alike
    makes = {
        "gr.optim.SGD, momentum, reset": _ours("SGD", **MOMENTUM),
        "gr.optim.SGD, momentum, keep": _ours("SGD", **MOMENTUM, state_at_growth="keep"),
        "gr.optim.Adam, keep": _ours("Adam"),
        "torch Adam": _torch("Adam")[1],
    }

    def grower(model: nn.Module, make: Make | None) -> gr.Grower:
        model, optimizer = copy.deepcopy(model), None
        if make is not None:
            optimizer = make(list(model.parameters()))
            for p in model.parameters():
                p.grad = torch.full_like(p, 1e-3)
            optimizer.step()
            optimizer.zero_grad()
        generator = torch.Generator().manual_seed(seed)
        return gr.Grower(model, network.plan, optimizer=optimizer, generator=generator)

    first = gr.Grower(network.plan.build_seed(), network.plan)
    data: dict[str, Any] = {}
    for stage in STEPS:
        while first.stage < stage:
            first.grow(measure=False)
        first.finish()
        for name, make in makes.items():
            times: dict[Make | None, list[float]] = {None: [], make: []}
            for i in range(repeats + 1):
                for maker in (None, make) if i % 2 else (make, None):
                    grow = partial(grower(first.model, maker).grow, measure=False)
                    times[maker].append(seconds(grow))
            base, time = (Sample(tuple(values[1:])) for values in times.values())
            factor = ratio(time, base)
            row = [f"{stage} → {stage + 1}", name, show(base, 1e3, 1), show(time, 1e3, 1)]
            table.rows.append([*row, f"**{factor.show(2)}**"])
            data[f"{row[0]}, {name}"] = {"ratio": factor.as_dict(), "with": time.as_dict()}
    return data


def run(args: argparse.Namespace) -> Result:
    """Times all of it."""
    steps = Table(
        "One optimizer step, nine rings",
        ["network", "optimizer", "against", "that, ms", "this, ms", "ratio", "target", "verdict"],
    )
    training = Table(
        "What is added to a training step of ResNet-20, batch 128, nine rings",
        ["what", "step with torch's SGD, ms", "adds, ms", "share", "target", "verdict"],
    )
    growth = Table(
        "A growth step of ResNet-18 with an optimizer's state against one without",
        ["step", "optimizer", "without, ms", "with, ms", "ratio"],
    )
    generator = torch.Generator().manual_seed(args.seed)
    images = torch.randn(2, 3, 32, 32, generator=generator)
    resnet = Network(zoo.resnet18(generator=generator), images, args.seed)
    data = measure_steps("ResNet-18", resnet, args.repeats, steps, args.pairs)
    tokens = torch.randint(0, 50257, (2, 64), generator=generator)
    gpt = Network(zoo.gpt2_124m(generator=generator), tokens, args.seed)
    data |= measure_steps("GPT-2 124M", gpt, max(args.repeats // 3, 3), steps, args.pairs)
    about = (
        "`gr.Grower(full_model, plan, optimizer=...)` tells the optimizers of `gr.optim` nine rings; torch's "
        "have `foreach=True` or `fused=True`. In turns, after a warm-up of each; on GPT-2 a third of the repeats."
    )
    if args.pairs:
        return Result("Optimizers", about, [steps], data)
    data["training"] = measure_training(args.seed, args.repeats, training)
    data["growth"] = measure_growth(resnet, args.repeats, args.seed, growth)
    return Result("Optimizers", about, [steps, training, growth], data)


if __name__ == "__main__":
    options = parser("Times the optimizers of gr.optim against torch's.", repeats=15)
    options.add_argument("--pairs", default="", help="steps of those whose names contain this")
    main(run, options)
