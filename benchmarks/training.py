"""What a Trainer costs beside the training itself: its steps, its data, checkpoints, growths; and what growing saves.

    python -m benchmarks.training [--repeats 5] [--steps 40] [--json]

Steps: the trainer's own batch stream lets a bare torch loop take its turn on every batch, so that `fit`
itself is measured, step by step beside its peer. Seconds are given by the wall clock, and the overhead by
the processor's as well, which a busy machine disturbs less.

Resuming: in processes of their own, as users do it; what torch loads at first use then counts.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import growthring as gr
from benchmarks.measure import ROOT, Result, Sample, Table, main, parser, ratio, seconds
from benchmarks.measure import show, verdict
from growthring import train, zoo
from growthring.checkpoint import JsonLines
from growthring.data import Augmentation, Batches, ImageData
from growthring.train import trainer as trainer_module

TARGET_STEP, TARGET_DATA, TARGET_RESUME, TARGET_CHECKPOINTS, TARGET_GROWTH = 0.03, 0.05, 5, 0.01, 2
BATCH, LOG_RATES, MINUTES = 128, 50, 10  # the last two are the trainer's defaults


class EnoughError(Exception):
    """Ends a run that has shown what it was for."""


def _stop(*_: Any) -> None:
    raise EnoughError


def fit_until_enough(trainer: train.Trainer) -> None:
    """Runs until `EnoughError`."""
    try:
        trainer.fit()
    except EnoughError:
        return
    raise AssertionError("the run came to its end")


def images(count: int, classes: int, seed: int) -> ImageData:
    """Random images of CIFAR's shape."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return ImageData(
        pixels, torch.randint(classes, (count,), generator=generator), classes, "noise"
    )


def grow_to_the_end(trainer: train.Trainer) -> None:
    """Puts a trainer to the start of its last stage, momentum included."""
    assert trainer.grower is not None
    while not trainer.grower.is_full:
        trainer.grower.finish()
        trainer.grower.grow(measure=False)
    trainer.totals.stage = trainer.plan.num_stages - 1
    for p in trainer.model.parameters():
        p.grad = torch.full_like(p, 1e-6)
    trainer.optimizer.step()


def torch_step(model: nn.Module, optimizer: Any, batch: tuple[Tensor, Tensor]) -> None:
    """What a step is in a loop of one's own."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


class Step(NamedTuple):
    """Processor seconds of the parts of a step, and wall-clock seconds of all but the record."""

    load: float
    passes: float
    rest: float
    record: float
    wall: float


class Turns(Batches):
    """A trainer's batches, on each of which a bare loop trains as well; `rows` has both steps."""

    def start(self, trainer: train.Trainer, steps: int) -> None:
        self.trainer, self.steps = trainer, steps
        self.rows: list[tuple[Step, Step]] = []
        self._passes = self._record = 0.0
        self._bare = copy.deepcopy(trainer.model).train()
        options = trainer.recipe.optimizer_options
        self._optimizer = torch.optim.SGD(self._bare.parameters(), lr=0.01, **options)
        forward, backward = (
            self._counted(type(trainer.model).forward),
            self._counted(Tensor.backward),
        )
        with (
            mock.patch.object(type(trainer.model), "forward", forward),
            mock.patch.object(Tensor, "backward", backward),
            mock.patch.object(trainer, "_watch", self._watch),
        ):
            fit_until_enough(trainer)

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.process_time()
            result = function(*args, **kwargs)
            self._passes += time.process_time() - started
            return result

        return call

    def _watch(self) -> None:
        """The trainer's, once as after most steps, and once with the record of rates that some write."""
        trainer = self.trainer
        trainer._log_rates = 0
        train.Trainer._watch(trainer)
        trainer._log_rates = 1
        started = time.process_time()
        train.Trainer._watch(trainer)
        self._record = time.process_time() - started

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        batches = super().__iter__()
        for i in range(self.steps + 2):
            started = time.process_time()
            batch = next(batches)
            load = time.process_time() - started
            found: dict[bool, Step] = {}
            for is_ours in (True, False) if i % 2 else (False, True):
                gc.collect()
                self._passes = self._record = 0.0
                wall, started = time.perf_counter(), time.process_time()
                if is_ours:
                    yield batch
                else:
                    torch_step(self._bare, self._optimizer, batch)
                spent, wall = time.process_time() - started, time.perf_counter() - wall
                rest = spent - self._passes - self._record
                wall += load - self._record
                found[is_ours] = Step(load, self._passes, rest, self._record, wall)
            self.rows.append((found[True], found[False]))
        raise EnoughError


def measure_steps(seed: int, steps: int, over: Table, loading: Table) -> dict[str, Any]:
    """The trainer's step against a bare loop's, and the share of the data in it, at both ends of the growth."""
    data, found = images(50_000, 10, seed), {}
    augmentation = Augmentation.of(data, shift=4, mirror=True)
    recipe = replace(train.RECIPES["cifar10-resnet20"](), lr=0.01)
    for name in ("width 4 (the seed)", "width 16 (full, nine rings)"):
        is_full = "full" in name
        with tempfile.TemporaryDirectory() as folder:
            stream = Turns(data, BATCH, augmentation, torch.Generator().manual_seed(seed))
            trainer = train.Trainer(recipe, folder, train=stream, progress=train.Silence())
            if is_full:
                grow_to_the_end(trainer)
            stream.start(trainer, steps if is_full else 2 * steps)
        rows = stream.rows[2:]
        bare = Sample(tuple(b.load + b.passes + b.rest for _, b in rows))
        extra = Sample(tuple(a.rest + a.record / LOG_RATES - b.rest for a, b in rows))
        load = Sample(tuple(a.load for a, _ in rows))
        # Noise of the passes would drown both: they are the same, so each is set against their median.
        over_share, load_share = (
            Sample(tuple(v / bare.median for v in s.values)) for s in (extra, load)
        )
        whole = Sample(tuple(a.wall / b.wall - 1 for a, b in rows))
        row = [name, show(bare, 1e3, 0), show(extra, 1e3, 2), f"**{over_share.show(4)}**"]
        over.rows.append([*row, *verdict(over_share, TARGET_STEP), whole.show(3)])
        row = [name, show(bare, 1e3, 0), show(load, 1e3, 2), f"**{load_share.show(4)}**"]
        loading.rows.append([*row, *verdict(load_share, TARGET_DATA)])
        samples = {"bare": bare, "extra": extra, "overhead": over_share, "whole": whole}
        samples |= {"load": load, "load share": load_share}
        found[name] = {key: sample.as_dict() for key, sample in samples.items()}
    return found


def resnet18_run(folder: Path) -> train.Trainer:
    """A run of ResNet-18 whose data is in the same folder."""
    recipe = replace(train.RECIPES["cifar100-resnet18"](), data="npz")
    return train.Trainer(recipe, folder, data=folder / "data.npz", progress=train.Silence())


def time_resume(folder: Path) -> dict[str, float]:
    """Seconds until a run that was left is about to take its next step, in parts."""
    reading: list[float] = []
    make_streams = trainer_module.make_streams

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        result = make_streams(*args, **kwargs)
        reading.append(time.perf_counter() - began)
        return result

    started = time.perf_counter()
    with mock.patch.object(trainer_module, "make_streams", timed):
        trainer = resnet18_run(folder)
    built = time.perf_counter()
    trainer.resume()
    resumed = time.perf_counter()
    trainer._step = _stop  # type: ignore[method-assign]
    fit_until_enough(trainer)
    ready = time.perf_counter()
    parts = {"data": reading[0], "planning": built - started - reading[0]}
    return parts | {"reading": resumed - built, "beginning": ready - resumed}


def measure_resume(folder: Path, repeats: int, threads: int, table: Table) -> dict[str, Any]:
    """A resume in processes of its own."""
    found: list[dict[str, float]] = []
    command = [sys.executable, "-m", "benchmarks.training", "--resume", str(folder)]
    for _ in range(repeats):
        started = time.perf_counter()
        run = subprocess.run(
            [*command, "--threads", str(threads)], cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
        whole, parts = time.perf_counter() - started, json.loads(run.stdout)
        found.append(parts | {"ready": sum(parts.values()), "process": whole})
    samples = {key: Sample(tuple(f[key] for f in found)) for key in found[0]}
    shown = [f"**{s.show(2)}**" if key == "ready" else s.show(2) for key, s in samples.items()]
    table.rows.append([*shown, *verdict(samples["ready"], TARGET_RESUME)])
    return {key: sample.as_dict() for key, sample in samples.items()}


def measure_checkpoints(
    name: str, trainer: train.Trainer, run: float, repeats: int, table: Table
) -> dict[str, Any]:
    """Writing the state of the last stage, and what that comes to in a run of so many seconds."""
    times = []
    with JsonLines(trainer.out / "metrics.jsonl") as trainer._log:
        for _ in range(repeats + 1):
            trainer.totals.step += 1
            times.append(seconds(trainer._save))
    once, count = Sample(tuple(times[1:])), run / (60 * MINUTES) + trainer.plan.num_stages + 1
    share = ratio(Sample(tuple(count * s for s in once.values)), Sample((run,) * repeats))
    folder = max((trainer.out / "checkpoints").iterdir())
    megabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    row = [name, f"{megabytes:.1f}", once.show(3), f"{run / 60:.0f}", f"{count:.0f}"]
    table.rows.append([*row, f"**{share.show(5)}**", *verdict(share, TARGET_CHECKPOINTS)])
    return {"seconds": once.as_dict(), "share": share.as_dict(), "run": run}


def measure_growth(
    trainer: train.Trainer, repeats: int, seed: int, table: Table
) -> tuple[float, dict[str, Any]]:
    """Growths as the trainer does them against a step of the grown model; also seconds of the full one's step."""
    data: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(BATCH, 3, 32, 32, generator=generator), torch.arange(BATCH) % 100
    plan, options = trainer.plan, trainer.recipe.optimizer_options
    first = gr.Grower(plan.build_seed(), plan, generator=generator)
    for stage in (0, plan.num_stages - 2):
        while first.stage < stage:
            first.grow(measure=False)
            first.finish()
        growing, stepping = [], []
        for _ in range(repeats):
            model = copy.deepcopy(first.model).train()
            optimizer = gr.optim.SGD(model.parameters(), lr=1e-4, **options)
            torch_step(model, optimizer, (batch[0][:2], batch[1][:2]))
            grower = gr.Grower(model, plan, optimizer=optimizer, generator=generator)
            growing.append(seconds(lambda g=grower: (g.finish(), g.grow())))  # type: ignore[misc]
            torch_step(model, optimizer, (batch[0][:2], batch[1][:2]))
            stepping.append(seconds(lambda m=model, o=optimizer: torch_step(m, o, batch)))  # type: ignore[misc]
        grown, step = Sample(tuple(growing)), Sample(tuple(stepping))
        steps = ratio(grown, step)
        row = [f"{stage} → {stage + 1}", step.show(2), grown.show(3), f"**{steps.show(3)}**"]
        table.rows.append([*row, *verdict(steps, TARGET_GROWTH)])
        data[row[0]] = {"grow": grown.as_dict(), "step": step.as_dict(), "steps": steps.as_dict()}
    return step.median, data


def measure_runs(repeats: int, batch: int, table: Table) -> dict[str, Any]:
    """Shares of fixed-size training that the measured steps of each stage come to."""
    data: dict[str, Any] = {}
    for name, model in (("ResNet-20", zoo.resnet20()), ("VGG-11", zoo.vgg11())):
        for growth in (0.0, 0.2):
            plan = gr.plan(
                *(model, torch.randn(2, 3, 32, 32)),
                epochs=160,
                batch_size=batch,
                batch_growth=growth,
            )
            shares = Sample(tuple(plan.measure(1).seconds_share or 0.0 for _ in range(repeats)))
            sizes = f"{plan.batch_sizes[0]} → {batch}" if growth else f"{batch}"
            table.rows.append([name, sizes, f"{plan.flops_share:.3f}", f"**{shares.show(3)}**"])
            data[f"{name}, {sizes}"] = {"flops": plan.flops_share, "seconds": shares.as_dict()}
    return data


def run(args: argparse.Namespace) -> Result:
    """Times all of it."""
    goal = ["target", "verdict"]
    over = Table(
        "A trainer's step of ResNet-20 against a bare torch loop's, batch 128",
        ["network", "bare step, ms", "trainer adds, ms", "share", *goal, "whole steps, wall clock"],
    )
    over.notes.append(
        "Processor time. Added is all that the trainer does outside of the forward and backward passes, less what the "
        "bare loop does there (torch's SGD); records of the rates count by their share of the steps. The last "
        "column compares whole steps pair by pair, and is mostly noise of the passes."
    )
    loading = Table(
        "Loading as a share of that step: 128 of 50,000 images, shifted, mirrored, normalised",
        ["network", "bare step, ms", "loading, ms", "share", *goal],
    )
    resume = Table(
        "Seconds until a resumed run of ResNet-18 (last stage) is ready for its next step",
        ["data", "planning", "reading", "beginning", "ready", "whole process", *goal],
    )
    resume.notes.append(
        "In fresh processes; the whole process adds Python's start and imports. Data: a .npz of CIFAR's size."
    )
    growth = Table(
        "A growth of ResNet-18 in mid-run, momentum included, against a step of the grown model, batch 128",
        ["growth", "step, s", "growth, s", "in steps", *goal],
    )
    written = Table(
        "Checkpoints of a whole run: at the start, every 10 minutes, at 9 (demo: 5) stage ends",
        ["run", "MB", "seconds each", "run, minutes", "checkpoints", "share", *goal],
    )
    written.notes.append(
        "Minutes of the run are computed from measured steps and FLOPs; all checkpoints count as the largest."
    )
    runs = Table(
        "Training seconds of a grown run as a share of fixed-size training",
        ["network", "batch size", "FLOPs share", "seconds share"],
    )
    runs.notes.append(
        "Computed from measured steps of each stage's model and the epochs of the plan; no run was trained."
    )
    data: dict[str, Any] = {"steps": measure_steps(args.seed, args.steps, over, loading)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train_data, test_data = images(50_000, 100, args.seed), images(10_000, 100, args.seed + 1)
        arrays = {"train_images": train_data.images, "train_labels": train_data.labels}
        arrays |= {"test_images": test_data.images, "test_labels": test_data.labels}
        np.savez(folder / "data.npz", **{key: t.numpy() for key, t in arrays.items()})
        trainer = resnet18_run(folder)
        step, data["growth"] = measure_growth(trainer, args.repeats, args.seed, growth)
        grow_to_the_end(trainer)
        with mock.patch.object(trainer, "_step", _stop):
            fit_until_enough(trainer)
        data["resume"] = measure_resume(folder, args.repeats, args.threads, resume)
        length = step * trainer.total_steps * trainer.plan.flops_share
        data["checkpoints"] = measure_checkpoints(
            "ResNet-18, CIFAR-100", trainer, length, args.repeats, written
        )
        demo = train.Trainer(train.RECIPES["demo"](), folder / "demo", progress=train.Silence())
        measured = demo.plan.measure().seconds or ()
        steps = demo.plan.steps(demo.train.num_examples)
        length = sum(n * s for n, s in zip(steps, measured, strict=True))
        grow_to_the_end(demo)
        (folder / "demo").mkdir()
        data["demo"] = measure_checkpoints("demo", demo, length, args.repeats, written)
    data["runs"] = measure_runs(args.repeats, args.batch, runs)
    about = (
        "`train.Trainer` on random images of CIFAR's shape, SGD with momentum. Times are medians over repeats in "
        "turns, after a warm-up."
    )
    tables = [over, loading, resume, written, growth, runs]
    return Result("Training", about, tables, data)


def _options() -> argparse.ArgumentParser:
    options = parser("Times what a Trainer costs beside the training itself.", repeats=3)
    options.add_argument(
        "--steps", type=int, default=16, help="of the full model, default %(default)s"
    )
    options.add_argument("--batch", type=int, default=16, help="of grown runs, default %(default)s")
    options.add_argument("--resume", type=Path, help=argparse.SUPPRESS)
    return options


if __name__ == "__main__":
    given = _options().parse_args()
    if given.resume:
        torch.set_num_threads(given.threads)
        print(json.dumps(time_resume(given.resume)))
    else:
        main(run, _options())
