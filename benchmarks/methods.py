"""One growth of ResNet-18 by each method: seconds and memory relative to `paired`, and what searching costs.

    python -m benchmarks.methods [--repeats 16] [--steps 8] [--json]

Seconds: each repeat brings fresh seeds to the stage by paired growth, makes momentum, and times the methods one
after the other, in warm memory (see `benchmarks.growth`). Those that search do so on few batches, in an eighth of
the repeats; on each batch a training step of the same model takes its turn, whose time is taken out. It is the
processor's time: a busy machine interrupts a search, which is long, more than a growth, which is short.

Memory: in processes of their own, the peak of resident memory above what was there before. Searches take two
batches per phase: by the second, all that a search keeps is there.
"""

from __future__ import annotations

import argparse
import copy
import cProfile
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import growthring as gr
from benchmarks import measure as bench
from benchmarks.growth import copies, keep_freed_memory
from benchmarks.measure import ROOT, Sample, Table, ratio, seconds, shares
from benchmarks.turns import torch_step
from growthring import zoo
from growthring.methods import METHODS, GrowthMethod, make_method
from growthring.train.memory import PeakMemory

TARGETS = {"net2net": 1.2}
STAGES = (4, 7)  # a growth in the middle of the nine stages, and the last
BATCH, CLASSES, EXAMPLES, SCORE_STEPS = 128, 100, 512, 2
OURS, TRAINING = "paired", "a training step"  # the latter only where memory is compared
QUICK = tuple(name for name, kind in METHODS.items() if not kind.searches)

_PARTS = {
    "checks": [("graph/check.py", "check_finite"), ("growing/matching.py", "check_shapes")],
    "new tensors": [(f"methods/{file}.py", "tensors") for file in ("paired", "copies", "random")],
    "divisors": [(f"methods/{file}.py", "gradient_divisors") for file in ("paired", "copies")],
    "noise": [(f"methods/{file}.py", "add_noise") for file in ("paired", "copies", "random")],
    "installing": [("growing/module.py", "install")],
    "optimizer": [("growing/followers.py", "grow_optimizers")],
}
Batch = tuple[Tensor, Tensor]
Start = tuple[nn.Module, torch.optim.SGD]


def make_optimizer(model: nn.Module) -> torch.optim.SGD:
    """SGD whose momentum grows along; those of `gr.optim` drop it by default."""
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


def make_methods(steps: int, examples: int) -> dict[str, GrowthMethod]:
    """Every method, with so much to search on."""
    options: dict[str, dict[str, Any]] = {name: {} for name in QUICK}
    options["gradmax"] = {"examples": examples}
    few = {"steps": steps, "score_steps": SCORE_STEPS}
    return {name: make_method(name, options.get(name, few)) for name in METHODS}


class Turns:
    """Batches to search on; on each a training step takes its turn first. `lost`: seconds of all turns."""

    def __init__(self, batches: Sequence[Batch], model: nn.Module) -> None:
        self._batches, peer = batches, copy.deepcopy(model).train()
        self._step = partial(torch_step, peer, make_optimizer(peer))
        self._step(*batches[0])  # warm-up
        self.phases: list[list[tuple[float, float]]] = []  # seconds of (a search step, a turn)
        self.lost = 0.0

    def __iter__(self) -> Iterator[Batch]:
        self.phases.append([])
        turn = given = 0.0
        for batch in self._batches:
            asked = time.process_time()
            if turn:
                self.phases[-1].append((asked - given, turn))
            self._step(*batch)
            given = time.process_time()
            turn = given - asked
            self.lost += turn
            yield batch

    @property
    def searching(self) -> list[tuple[float, float]]:
        """The longest phase without its first step, in which torch counts FLOPs."""
        return max(self.phases, key=len)[1:]


class Case:
    """ResNet-18 for images of CIFAR's size, with the plan that users get by default."""

    def __init__(self, seed: int, steps: int) -> None:
        self.seed, generator = seed, torch.Generator().manual_seed(seed)
        count = max(steps, EXAMPLES // BATCH)
        images = torch.randn(count, BATCH, 3, 32, 32, generator=generator)
        labels = torch.randint(CLASSES, (count, BATCH), generator=generator)
        self.batches = list(zip(images, labels, strict=True))
        self.plan = gr.plan(zoo.resnet18(CLASSES, generator=generator), images[0, :2])

    def start(self, stage: int) -> Start:
        """A model that was grown to a stage, and its optimizer with momentum."""
        generator = torch.Generator().manual_seed(self.seed)
        grower = gr.Grower(self.plan.build_seed(), self.plan, generator=generator)
        while grower.stage < stage:
            grower.grow(measure=False)
        optimizer = make_optimizer(grower.model)
        torch_step(grower.model.train(), optimizer, *(t[:8] for t in self.batches[0]))
        optimizer.zero_grad()
        return grower.model, optimizer

    def grower(
        self, start: Start, method: GrowthMethod, batches: Iterable[Batch] | None = None
    ) -> gr.Grower:
        """A grower on such a model."""
        generator = torch.Generator().manual_seed(self.seed)
        options: dict[str, Any] = {"batches": batches, "loss": nn.functional.cross_entropy}
        return gr.Grower(start[0], self.plan, start[1], method, generator=generator, **options)


@dataclass
class Found:
    """Of one method at one stage: seconds of (a growth, a paired one), of (a search step, a training step)."""

    growths: list[tuple[float, float]] = field(default_factory=list)
    steps: list[tuple[float, float]] = field(default_factory=list)
    flops: float = 0.0
    examples: int = 0


def time_methods(
    case: Case, stage: int, methods: dict[str, GrowthMethod], repeats: int
) -> dict[str, Found]:
    """Seconds of all methods in turns; the first repeat, of those that do not search, is a warm-up."""
    found = {name: Found() for name in methods}
    for i in range(repeats + 1):
        once: dict[str, float] = {}
        for name in methods if 1 <= i <= max(1, repeats // 8) else QUICK:
            start = case.start(stage)
            turns = None if name in QUICK else Turns(case.batches, start[0])
            grower = case.grower(start, methods[name], turns)
            seconds(lambda: [copies(case.plan.model) for _ in range(4)])  # frees warm memory
            started = time.process_time()
            report = grower.grow(measure=False)
            once[name] = time.process_time() - started - (turns.lost if turns else 0.0)
            found[name].flops, found[name].examples = report.search_flops, report.search_examples
            found[name].steps += turns.searching if turns else []
        for name, value in once.items() if i else ():
            found[name].growths.append((value, once[OURS]))
    return found


def measure_memory(name: str, stage: int, seed: int) -> int | None:
    """Bytes at the peak of a growth, or of a training step, above what there was before."""
    case, methods = Case(seed, 2), make_methods(2, 2 * BATCH)
    start = case.start(stage)
    grower = case.grower(start, methods.get(name, methods[OURS]), case.batches)
    peak = PeakMemory(torch.device("cpu"))
    if name == TRAINING:
        torch_step(start[0], start[1], *case.batches[0])
    else:
        grower.grow(measure=False)
    return peak.read()


def memory_in_a_process(name: str, stage: int, args: argparse.Namespace) -> float:
    """The same, in a process of its own; nan where the system does not tell."""
    command = [sys.executable, "-m", "benchmarks.methods", "--memory", name, str(stage)]
    command += ["--seed", str(args.seed), "--threads", str(args.threads)]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return float(json.loads(output.stdout) or "nan")


def run(args: argparse.Namespace) -> bench.Result:
    """Times and weighs every method."""
    keep_freed_memory()
    case, methods = Case(args.seed, args.steps), make_methods(args.steps, EXAMPLES)
    heads = ["method", "step", "grow, ms", f"relative to {OURS}", "target", "verdict"]
    times = Table("Seconds of one growth of ResNet-18", heads)
    heads = ["method", "step", "examples", "FLOPs", "seconds", "seconds of one search step"]
    costs = Table("What searching costs, in training steps of the model before the growth", heads)
    heads = ["method", "step", "MB", f"relative to {OURS}", f"relative to {TRAINING}"]
    weights = Table("Memory at the peak of one growth, above what was there before", heads)
    where = Table("Where the time goes, by cProfile", ["method", "step", *_PARTS, "the rest"])
    data: dict[str, Any] = {}
    for stage in STAGES:
        step = f"{stage} → {stage + 1}"
        peaks = {n: memory_in_a_process(n, stage, args) for n in (*methods, TRAINING)}
        for name, peak in peaks.items():
            to_ours, to_training = (f"{peak / peaks[k]:.2f}" for k in (OURS, TRAINING))
            weights.rows.append([name, step, f"{peak / 1e6:.0f}", f"**{to_ours}**", to_training])
        for name, found in time_methods(case, stage, methods, args.repeats).items():
            grow, ours = (Sample(values) for values in zip(*found.growths, strict=True))
            factor, target = ratio(grow, ours), TARGETS.get(name)
            shown = bench.show(grow, 1e3, 0), f"**{factor.show(2 if name in QUICK else 0)}**"
            times.rows.append([name, step, *shown, *bench.verdict(factor, target)])
            entry = {"ratio": factor.as_dict(), "target": target, "bytes": peaks[name]}
            data[f"{name}, {step}"] = entry | vars(found)
            if name in QUICK:
                profiler, grower = cProfile.Profile(), case.grower(case.start(stage), methods[name])
                profiler.runcall(grower.grow, measure=False)
                parts = shares(profiler, _PARTS).values()
                where.rows.append([name, step, *(f"{100 * share:.0f} %" for share, _ in parts)])
                continue
            search, train = (Sample(values) for values in zip(*found.steps, strict=True))
            flops = found.flops / (3 * BATCH * case.plan.footprints[stage].flops)
            shown = bench.show(grow, 1 / train.median, 1), f"**{ratio(search, train).show(1)}**"
            costs.rows.append([name, step, f"{found.examples}", f"{flops:.1f}", *shown])
    times.notes += [
        f"splitting and firefly: {args.steps} steps of {BATCH} examples, {SCORE_STEPS} to score; the default is a "
        f"pass over the data, and a quarter of one to score. gradmax: {EXAMPLES} examples, its default."
    ]
    costs.notes += [
        f"FLOPs of the search over 3 × the forward pass of {BATCH} examples; seconds of the whole growth; a search "
        "step, without what comes after them, beside a training step on the same batch.",
    ]
    about = (
        "The default plan of `zoo.resnet18` on 32 × 32 images: nine stages. `Grower.grow(measure=False)` with "
        "momentum of torch's SGD growing along, all methods from the same weights; the first repeat is dropped."
    )
    return bench.Result("Methods", about, [times, costs, weights, where], data)


def _options() -> argparse.ArgumentParser:
    options = bench.parser("Times and weighs one growth by each method.", repeats=16)
    options.add_argument(
        "--steps", type=int, default=8, help="of searches (≥ 3), default %(default)s"
    )
    options.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    return options


if __name__ == "__main__":
    given = _options().parse_args()
    if given.memory:
        torch.set_num_threads(given.threads)
        print(json.dumps(measure_memory(given.memory[0], int(given.memory[1]), given.seed)))
    else:
        bench.main(run, _options())
