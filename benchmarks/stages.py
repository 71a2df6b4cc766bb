"""Whether a narrow stage costs what its FLOPs promise, where it does not, and what helps.

    python -m benchmarks.stages [--repeats 5] [--compile] [--json]

Steps of all stages take turns in one process, in processor time; what is compared are ratios to a full-size step of
the same turn. A step is a forward pass, a cross entropy, a backward pass and a step of the optimizer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import growthring as gr
from benchmarks import measure as bench
from benchmarks.measure import Sample, Table
from growthring import zoo
from growthring.planning.timing import Step, fit_to_run, turns

POINTS = 8.0  # of fixed-size training, that the share of seconds may be above the share of FLOPs
AT = (0.5, 0.5)  # one doubling at half of the run
MORE = 4  # times the batch, in early stages
BATCHES = (16, 32, 64, 128)


@dataclass(frozen=True)
class Case:
    """A network, what it is trained on, and with what."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Tensor
    batch: int
    optimizer: str

    @property
    def has_heads(self) -> bool:
        return self.name.startswith("GPT")

    def plan(self, **options: Any) -> gr.Plan:
        settings = {"total_steps": 1000, "optimizer": self.optimizer, **options}
        return gr.plan(self.make(), self.inputs, **settings)


def _gpt(width: int, heads: int) -> Case:
    tokens = torch.randint(256, (2, 64), generator=torch.Generator().manual_seed(0))
    name = f"GPT, width {width}, {heads} heads"
    return Case(name, lambda: zoo.GPT(256, 64, 3, heads, width), tokens, 16, "adamw")


def _image(name: str, make: Callable[[], nn.Module], side: int, batch: int) -> Case:
    generator = torch.Generator().manual_seed(0)
    return Case(name, make, torch.randn(2, 3, side, side, generator=generator), batch, "sgd")


CASES = (
    _image("ResNet-8, width 64", lambda: zoo.resnet8(width=64), 16, 16),
    _image("ResNet-18, width 64", zoo.resnet18, 16, 8),
    _image("VGG-11, width 64", zoo.vgg11, 32, 8),
    _gpt(64, 4),
    _gpt(128, 8),
    _gpt(256, 8),
    _image("MLP-8, width 256", lambda: zoo.mlp8(width=256), 32, 64),
    _image("MLP-8, width 512", lambda: zoo.mlp8(width=512), 32, 64),
)


def make_step(
    case: Case, model: nn.Module, batch: int, fused: bool = False, compiled: bool = False
) -> Step:
    """A training step of a model on a batch."""
    model = fit_to_run(model).train()
    inputs = case.inputs[torch.arange(batch) % len(case.inputs)]
    optimizer: torch.optim.Optimizer
    if case.optimizer == "adamw":
        adam: Any = torch.optim.AdamW if fused else gr.optim.AdamW
        optimizer = adam(model.parameters(), lr=1e-4, **({"fused": True} if fused else {}))
    else:
        sgd: Any = torch.optim.SGD if fused else gr.optim.SGD
        more = {"fused": True} if fused else {}
        optimizer = sgd(model.parameters(), lr=1e-4, momentum=0.9, **more)
    forward: Any = torch.compile(model) if compiled else model
    targets = torch.zeros(model(inputs)[..., 0].numel(), dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(forward(inputs).flatten(0, -2), targets).backward()
        optimizer.step()

    step()
    return step


@dataclass(frozen=True)
class Way:
    """The stages of a network trained in one way: FLOPs and seconds of an example, relative to a full-size one."""

    name: str
    plan: gr.Plan
    seconds: Sequence[Sample]

    @property
    def flops(self) -> list[float]:
        full = self.plan.footprints[-1].flops
        return [f.flops / full for f in self.plan.footprints]

    def share(self, lengths: Sequence[float]) -> tuple[float, Sample]:
        """FLOPs and seconds of a run whose last stages take these shares of it."""
        count = len(lengths)
        flops = sum(n * f for n, f in zip(lengths, self.flops[-count:], strict=True))
        parts = zip(*(s.values for s in self.seconds[-count:]), strict=True)
        return flops, Sample(
            tuple(sum(n * s for n, s in zip(lengths, row, strict=True)) for row in parts)
        )


def time_ways(case: Case, repeats: int, compiled: bool) -> list[Way]:
    """All ways of training a network, in the same turns."""
    plan = case.plan()
    kinds: list[tuple[str, gr.Plan, int, dict[str, bool]]] = [("as it is", plan, 1, {})]
    if case.has_heads:
        kinds.insert(0, ("thin heads (heads='size')", case.plan(heads="size"), 1, {}))
    kinds.append(("torch's fused optimizer", plan, 1, {"fused": True}))
    kinds.append((f"{MORE} × the batch in early stages", plan, MORE, {}))
    if compiled:
        kinds.append(("torch.compile", plan, 1, {"compiled": True}))
    steps: list[Step] = []
    batches: list[int] = []
    for _, its, more, options in kinds:
        last = its.num_stages - 1
        for stage in range(its.num_stages):
            batches.append(case.batch * (more if stage < last else 1))
            steps.append(make_step(case, its.empty_model(stage), batches[-1], **options))
    rows = turns(steps, repeats, time.process_time)
    samples = [Sample(tuple(s / b for s in row)) for row, b in zip(rows, batches, strict=True)]
    ways = []
    for name, its, *_ in kinds:
        own, samples = samples[: its.num_stages], samples[its.num_stages :]
        ways.append(Way(name, its, [bench.ratio(s, own[-1]) for s in own]))
    return ways


def compare(args: argparse.Namespace) -> tuple[Table, dict[str, Any]]:
    """Share of seconds against share of FLOPs."""
    heads = ["network", "way", "½: FLOPs", "seconds", "¼: FLOPs", "seconds"]
    heads += ["one doubling: FLOPs", "seconds", "points above", "target", "verdict"]
    heads += ["default plan: FLOPs", "seconds"]
    table = Table("Shares of fixed-size training: FLOPs and seconds", heads)
    data: dict[str, Any] = {}
    for case in CASES:
        for way in time_ways(case, args.repeats, args.compile):
            once, default = way.share(AT), way.share(way.plan.shares)
            above = Sample(tuple(100 * (s - once[0]) for s in once[1].values))
            row = [case.name, way.name]
            for stage in (-2, -3):
                row += [f"{way.flops[stage]:.2f}", way.seconds[stage].show(2)]
            row += [f"{once[0]:.0%}", f"{once[1].median:.0%}", f"**{above.show(1)}**"]
            row += bench.verdict(above, POINTS)
            table.rows.append([*row, f"{default[0]:.0%}", f"{default[1].median:.0%}"])
            data[f"{case.name}, {way.name}"] = {
                "flops": way.flops,
                "seconds": [s.as_dict() for s in way.seconds],
                "points": above.as_dict(),
            }
    table.notes += [
        "½, ¼: an example at half and at a quarter of the width, relative to full size trained in the same way.",
        "one doubling: from half of the width, at half of the run; default plan: from a quarter of it.",
        "points above: seconds minus FLOPs of one doubling; with larger batches the full size keeps its own.",
    ]
    return table, data


def by_batch(repeats: int) -> tuple[Table, dict[str, Any]]:
    """Seconds of an example by batch size, at half of the width and at all of it."""
    heads = ["network", "width", *(f"batch {size}" for size in BATCHES)]
    title = f"Seconds of an example by batch size, relative to full size at batch {BATCHES[0]}"
    table, data = Table(title, heads), dict[str, Any]()
    for case in (CASES[0], CASES[3], CASES[6]):
        plan = case.plan(stages=2, start=0.5)
        steps = [
            make_step(case, plan.empty_model(stage), size) for stage in (0, 1) for size in BATCHES
        ]
        rows = turns(steps, repeats, time.process_time)
        each = [
            Sample(tuple(s / size for s in row))
            for row, size in zip(rows, BATCHES * 2, strict=True)
        ]
        found = [bench.ratio(sample, each[len(BATCHES)]) for sample in each]
        for name, part in (("½", found[: len(BATCHES)]), ("full", found[len(BATCHES) :])):
            table.rows.append([case.name, name, *(s.show(2) for s in part)])
            data[f"{case.name}, {name}"] = [s.as_dict() for s in part]
    return table, data


PARTS = {
    "attention": ("scaled_dot_product",),
    "optimizer": ("Optimizer.",),
    "products and convolutions": ("mm", "convolution", "mkldnn", "linear"),
    "norms": ("norm",),
    "GELU and ReLU": ("gelu", "relu", "threshold", "clamp_min"),
    "loss": ("softmax", "nll_loss", "cross_entropy"),
}


def parts_of(step: Step, count: int = 10) -> dict[str, float]:
    """Share of a step by what is computed, in percent; the rest is small operators, copies, Python."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(count):
            step()
    parts = dict.fromkeys([*PARTS, "the rest"], 0.0)
    for event in found.events():
        parent, is_optimizer = event, False
        while parent is not None:
            is_optimizer = is_optimizer or parent.name.startswith("Optimizer.")
            parent = parent.cpu_parent
        part = "optimizer" if is_optimizer else None
        for name, marks in PARTS.items():
            if part is None and any(mark in event.name for mark in marks):
                part = name
        parts[part or "the rest"] += event.self_cpu_time_total
    total = sum(parts.values())
    return {name: 100 * spent / total for name, spent in parts.items()}


def where(repeats: int) -> tuple[Table, dict[str, Any]]:
    """Where the steps of a narrow and of the full stage spend their time."""
    table = Table("Where a step spends its time, % (by torch.profiler, which adds some)", [])
    table.header = ["network", "stage", *PARTS, "the rest"]
    data: dict[str, Any] = {}
    for case in (CASES[0], CASES[3], CASES[6]):
        plans = {"½": case.plan(stages=2, start=0.5)}
        if case.has_heads:
            plans["½, thin heads"] = case.plan(stages=2, start=0.5, heads="size")
        stages = {name: plan.empty_model(0) for name, plan in plans.items()}
        stages["full"] = plans["½"].empty_model(1)
        for name, model in stages.items():
            step = make_step(case, model, case.batch)
            found = [parts_of(step) for _ in range(repeats)]
            samples = [Sample(tuple(one[part] for one in found)) for part in table.header[2:]]
            table.rows.append([case.name, name, *(f"{s.median:.0f}" for s in samples)])
            data[f"{case.name}, {name}"] = [s.as_dict() for s in samples]
    return table, data


def run(args: argparse.Namespace) -> bench.Result:
    """Times all of it."""
    if args.compile:  # inductor's channels_last corrupts memory in thin networks
        import torch._inductor.config as inductor

        inductor.layout_optimization = False  # type: ignore[assignment]
    shares, share_data = compare(args)
    batches, batch_data = by_batch(args.repeats)
    places, place_data = where(min(args.repeats, 3))
    about = (
        "Whether a narrow stage costs what its FLOPs promise: training steps of all stages in turns, in processor "
        "time. Images of 16 × 16 (VGG-11, MLP-8: 32 × 32), SGD with momentum; GPT: 3 blocks, 256 tokens, context "
        "64, AdamW. Batches: ResNet-8 and GPT 16, ResNet-18 and VGG-11 8, MLP-8 64."
    )
    data = {"shares": share_data, "batches": batch_data, "parts": place_data}
    return bench.Result("Stages", about, [shares, batches, places], data)


def _options() -> argparse.ArgumentParser:
    options = bench.parser("Compares seconds and FLOPs of narrow stages.", repeats=5)
    options.add_argument("--compile", action="store_true", help="torch.compile, too (minutes)")
    return options


if __name__ == "__main__":
    bench.main(run, _options())
