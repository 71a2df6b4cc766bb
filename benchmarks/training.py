"""What a Trainer costs beside training itself, and what growing saves.

    python -m benchmarks.training [--repeats 3] [--steps 16] [--json]

Steps are measured as `benchmarks.turns` says. Resuming is measured in processes of
its own, as users do it: what torch loads at first use counts.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import growthring as gr
from benchmarks import measure as bench
from benchmarks.measure import ROOT, Sample, Table, seconds
from benchmarks.turns import Turns, fit_until_enough, grow_to_the_end, make_images, torch_step
from growthring import train, zoo
from growthring.data import Augmentation
from growthring.train import setup

TARGETS = {"trainer": 0.03, "loading": 0.05, "resume": 5.0, "checkpoints": 0.01, "growth": 2.0}
BATCH, CADENCE = 128, 600  # seconds between checkpoints, the trainer's default


class Costs:
    """The table of what costs how much of what, and its numbers."""

    def __init__(self) -> None:
        header = ["what", "seconds", "against", "seconds", "ratio", "target", "verdict"]
        self.table, self.data = Table("What a trainer costs", header), dict[str, Any]()

    def add(self, what: str, cost: Sample, against: str, base: Sample, target: str = "") -> None:
        shown = [f"{s.median:.3g} ± {s.deviation:.1g}" for s in (cost, base)]
        found, goal = bench.ratio(cost, base), TARGETS.get(target)
        row = [what, shown[0], against, shown[1], f"**{found.show(4)}**"]
        self.table.rows.append([*row, *bench.verdict(found, goal)])
        samples = {"cost": cost, "base": base, "ratio": found}
        self.data[what] = {key: s.as_dict() for key, s in samples.items()} | {"target": goal}


def measure_steps(seed: int, steps: int, costs: Costs) -> None:
    """The trainer's steps and their data, at both ends of the growth of ResNet-20."""
    data = make_images(50_000, 10, seed)
    augmentation = Augmentation.of(data, shift=4, mirror=True)
    recipe = replace(train.RECIPES["cifar10-resnet20"](), lr=0.01)
    for name, count in (("w4", 2 * steps), ("w16, nine rings", steps)):
        with tempfile.TemporaryDirectory() as folder:
            stream = Turns(data, BATCH, augmentation, torch.Generator().manual_seed(seed))
            trainer = train.Trainer(recipe, folder, train=stream, progress=train.Silence())
            if count == steps:
                grow_to_the_end(trainer)
            stream.race(trainer, count)
        base, found = f"bare step, ResNet-20 {name}", stream.sample
        costs.add(f"trainer, {name}", found("adds"), base, found("step"), "trainer")
        walls = found("adds, whole"), found("bare, whole")
        costs.add(f"the same, whole steps by wall clock, {name}", walls[0], base, walls[1])
        costs.add(f"loading, {name}", found("load"), base, found("step"), "loading")


def resnet18_run(folder: Path) -> train.Trainer:
    """A run of ResNet-18 whose data is in the same folder."""
    recipe = replace(train.RECIPES["cifar100-resnet18"](), data="npz")
    return train.Trainer(recipe, folder, data=folder / "data.npz", progress=train.Silence())


def time_resume(folder: Path) -> dict[str, float]:
    """Seconds until a run that was left is about to take its next step, in parts."""
    marks = [(time.perf_counter(), time.process_time())]

    def make_streams(*args: Any, **kwargs: Any) -> Any:
        marks.append((time.perf_counter(), time.process_time()))
        result = setup.make_streams(*args, **kwargs)
        marks.append((time.perf_counter(), time.process_time()))
        return result

    with mock.patch("growthring.train.parts.make_streams", make_streams):
        trainer = resnet18_run(folder)
    marks.append((time.perf_counter(), time.process_time()))
    trainer.resume()
    fit_until_enough(trainer, at_first_step=True)
    marks.append((time.perf_counter(), time.process_time()))
    start, model, data, plan, end = (mark[0] for mark in marks)
    parts = {"data": data - model, "model, plan": plan - data + model - start, "state": end - plan}
    return parts | {"ready": end - start, "processor": marks[-1][1] - marks[0][1]}


def measure_resume(folder: Path, args: argparse.Namespace) -> tuple[Table, dict[str, Any]]:
    """A resume in processes of its own."""
    command = [sys.executable, "-m", "benchmarks.training", "--resume", str(folder)]
    command += ["--threads", str(args.threads)]
    found: list[dict[str, float]] = []
    for _ in range(args.repeats):
        started = time.perf_counter()
        output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        found.append(json.loads(output) | {"process": time.perf_counter() - started})
    samples = {key: Sample(tuple(f[key] for f in found)) for key in found[0]}
    heads = ["reading data", "model and plan", "reading the state", "**ready**"]
    heads += ["ready, processor time", "whole process, imports included", "target", "verdict"]
    row = [
        *(s.show(2) for s in samples.values()),
        *bench.verdict(samples["ready"], TARGETS["resume"]),
    ]
    title = "Seconds until a resumed run of ResNet-18, last stage, is ready for its next step"
    return Table(title, heads, [row]), {key: s.as_dict() for key, s in samples.items()}


def measure_checkpoints(trainer: train.Trainer, run: float, repeats: int, costs: Costs) -> None:
    """Writing the state of the last stage, as often as a run of so many seconds does."""
    times = []
    with trainer.folder.at_work():
        for _ in range(repeats + 1):
            trainer.totals.step += 1
            times.append(seconds(trainer._save))
    count = round(run / CADENCE + trainer.plan.num_stages + 1)
    once, base = Sample(tuple(times[1:])), f"that run, computed ({run / 60:.1f} minutes)"
    what = f"{count} checkpoints of {trainer.recipe.name}, {once.show(3)} s each"
    total = Sample(tuple(count * s for s in once.values))
    costs.add(what, total, base, Sample((run,) * repeats), "checkpoints")


def measure_growth(trainer: train.Trainer, repeats: int, costs: Costs) -> float:
    """Growths as the trainer does them against a step of the grown model; returns seconds of the largest's."""
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(BATCH, 3, 32, 32, generator=generator), torch.arange(BATCH) % 100
    plan = trainer.plan
    first = gr.Grower(plan.build_seed(), plan, generator=generator)
    for stage in (0, plan.num_stages - 2):
        while first.stage < stage:
            first.grow(measure=False)
            first.finish()
        growing, stepping = [], []
        for _ in range(repeats):
            model = copy.deepcopy(first.model).train()
            optimizer = gr.optim.SGD(model.parameters(), 1e-4, **trainer.recipe.optimizer_options)
            step = partial(torch_step, model, optimizer)
            step(batch[0][:2], batch[1][:2])
            grower = gr.Grower(model, plan, optimizer=optimizer, generator=generator)
            growing.append(seconds(grower.finish) + seconds(grower.grow))
            step(batch[0][:2], batch[1][:2])
            stepping.append(seconds(partial(step, *batch)))
        base = f"step of the grown ResNet-18, batch {BATCH}"
        grown, steps = Sample(tuple(growing)), Sample(tuple(stepping))
        costs.add(f"growth {stage} → {stage + 1}", grown, base, steps, "growth")
    return steps.median


def measure_runs(repeats: int, batch: int) -> tuple[Table, dict[str, Any]]:
    """Shares of fixed-size training that the measured steps of each stage come to."""
    heads = ["network", "batch size", "share of FLOPs", "share of seconds"]
    title = "A grown run of 160 epochs against fixed-size training, computed from measured steps"
    table, data = Table(title, heads), dict[str, Any]()
    for name, model in (("ResNet-20", zoo.resnet20()), ("VGG-11", zoo.vgg11())):
        for rate in (0.0, 0.2):
            sizes = {"epochs": 160, "batch_size": batch, "batch_growth": rate}
            plan = gr.plan(model, torch.randn(2, 3, 32, 32), **sizes)  # type: ignore[arg-type]
            found = Sample(tuple(plan.measure(2).seconds_share or 0.0 for _ in range(repeats)))
            shown = f"{plan.batch_sizes[0]} → {batch}" if rate else f"{batch}"
            table.rows.append([name, shown, f"{plan.flops_share:.3f}", f"**{found.show(3)}**"])
            data[f"{name}, {shown}"] = {"flops": plan.flops_share, "seconds": found.as_dict()}
    return table, data


def run(args: argparse.Namespace) -> bench.Result:
    """Times all of it."""
    costs = Costs()
    costs.table.notes += [
        "trainer: processor time outside of forward and backward passes beyond a bare loop's with torch's SGD.",
        "loading: of 50,000 images, shifted and mirrored. Whole steps vary with the machine: mostly noise.",
        "checkpoints: every 10 minutes and at stage ends, all as large as the last.",
    ]
    measure_steps(args.seed, args.steps, costs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = {"train": make_images(50_000, 100, 0), "test": make_images(10_000, 100, 1)}
        arrays = {f"{k}_images": d.images.numpy() for k, d in parts.items()}
        arrays |= {f"{k}_labels": d.labels.numpy() for k, d in parts.items()}
        np.savez(folder / "data.npz", **arrays)  # type: ignore[arg-type]
        trainer = resnet18_run(folder)
        step = measure_growth(trainer, args.repeats, costs)
        grow_to_the_end(trainer)
        fit_until_enough(trainer, at_first_step=True)
        resume, resumes = measure_resume(folder, args)
        length = step * trainer.total_steps * trainer.plan.flops_share
        measure_checkpoints(trainer, length, args.repeats, costs)
        (folder / "demo").mkdir()
        demo = train.Trainer(train.RECIPES["demo"](), folder / "demo", progress=train.Silence())
        steps, measured = demo.plan.steps(demo.train.num_examples), demo.plan.measure().seconds
        length = sum(n * s for n, s in zip(steps, measured or (), strict=True))
        grow_to_the_end(demo)
        measure_checkpoints(demo, length, args.repeats, costs)
    runs, shares = measure_runs(args.repeats, args.batch)
    about = (
        "`train.Trainer` on random images of CIFAR's shape, SGD with momentum; repeats in turns."
    )
    data = {"costs": costs.data, "resume": resumes, "runs": shares}
    return bench.Result("Training", about, [costs.table, resume, runs], data)


def _options() -> argparse.ArgumentParser:
    options = bench.parser("Times what a Trainer costs beside training itself.", repeats=3)
    options.add_argument("--steps", type=int, default=16, help="steps, default %(default)s")
    options.add_argument("--batch", type=int, default=32, help="grown runs', default %(default)s")
    options.add_argument("--resume", type=Path, help=argparse.SUPPRESS)
    return options


if __name__ == "__main__":
    given = _options().parse_args()
    if given.resume:
        torch.set_num_threads(given.threads)
        print(json.dumps(time_resume(given.resume)))
    else:
        bench.main(run, _options())
