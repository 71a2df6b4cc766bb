"""One run: a network trained at full size, or grown into it, with everything that it cost."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import growthring as gr
from growthring.planning.costs import footprint
from growthring.train.lr_schedules import lr_schedule
from scripts.pays.tasks import TASKS, Task

_POINTS = 10  # of the validation curve
FADE = (
    0.25  # share of the stage that norms fade in over: the default when the first runs were stored
)


@dataclass(frozen=True)
class Run:
    """What decides a run.

    Attributes:
        task: by name.
        width: of the full network.
        steps: optimizer steps.
        lr: at its peak.
        schedule: of the learning rate.
        decay: share of the run over which "wsd" decays.
        batch: examples in a step; 0 for the task's own.
        start: the seed's share of the width; 1 trains at full size.
        grown_at: share of the run at which the full size is reached.
        options: of the Grower, and of the ring optimizer under "rings" (torch's own optimizer without).
        seed: of all random numbers.
        plan: more options of `gr.plan`.
        narrow: regularisation before the full size is reached, as shares of its strength: "weight_decay" and
            "augmentation" (0 or 1).
    """

    task: str
    width: int
    steps: int
    lr: float
    schedule: str = "wsd"
    decay: float = 0.2
    batch: int = 0
    start: float = 1.0
    grown_at: float = 0.5
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    plan: dict[str, Any] = field(default_factory=dict)
    narrow: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Names its file."""
        values = dataclasses.asdict(self)
        for later in ("plan", "narrow"):  # runs were stored before there were these
            if not values[later]:
                del values[later]
        text = json.dumps(values, sort_keys=True)
        return f"{self.task}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def by_number(task: str, width: int) -> dict[str, Any]:
    """Options of a plan whose heads grow by number; of a GPT so narrow that it has two, these stay."""
    few = {"widths": {"blocks.*.attention.qkv": (2, 2)}} if task == "gpt" and width <= 32 else {}
    return {"heads": "count", **few}


def plan_of(run: Run, task: Task, model: torch.nn.Module) -> gr.Plan:
    """How a run grows."""
    options = {"heads": "size", **run.plan}  # what "auto" was when the first runs were stored
    if options["heads"] == "count":
        options |= by_number(run.task, run.width)
    return gr.plan(
        model,
        task.example,
        total_steps=run.steps,
        start=run.start,
        grown_at=run.grown_at,
        batch_size=run.batch or task.batch_size,
        **options,
    )


def cost_share(run: Run, root: Path) -> float:
    """FLOPs of a run, as a share of full-size training for as many steps."""
    task = TASKS[run.task](root)
    return plan_of(run, task, task.build(run.width, torch.Generator().manual_seed(0))).flops_share


def flops_ratio(name: str, width: int, other: int, root: Path) -> float:
    """FLOPs of a step at one width over those at another."""
    task = TASKS[name](root)
    models = (task.build(w, torch.Generator().manual_seed(0)) for w in (width, other))
    first, second = (footprint(model, task.example).flops for model in models)
    return first / second


def train(run: Run, root: Path) -> dict[str, Any]:
    """Trains, and returns what came out and what it cost."""
    task = TASKS[run.task](root)
    data, weights = (torch.Generator().manual_seed(2 * run.seed + i) for i in (0, 1))
    torch.manual_seed(run.seed)
    full = task.build(run.width, weights)
    is_grown = run.start < 1
    plan = plan_of(run, task, full) if is_grown else None
    model = full if plan is None else plan.build_seed()
    options = {"fade": FADE, **run.options}
    rings = options.pop("rings", None)
    optimizer = make_optimizer(task, model.parameters(), run.lr, rings)
    schedule = lr_schedule(
        run.schedule, run.steps, warmup_steps=math.ceil(task.warmup * run.steps), decay=run.decay
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    grower = None
    if plan is not None:
        noise = torch.Generator().manual_seed(run.seed)
        grower = gr.Grower(model, plan, optimizer=optimizer, generator=noise, **options)
    size = run.batch or task.batch_size
    flops_of = _flops(plan, task, full)
    every = max(1, run.steps // _POINTS)
    curve, flops, seconds = [], 0.0, 0.0
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    for step in range(run.steps):
        began = time.process_time()
        is_narrow = grower is not None and not grower.is_full
        if run.narrow:
            share = run.narrow.get("weight_decay", 1.0) if is_narrow else 1.0
            for group, decay in zip(optimizer.param_groups, decays, strict=True):
                group["weight_decay"] = share * decay
        is_plain = is_narrow and run.narrow.get("augmentation", 1.0) == 0
        loss = task.loss(model, task.batch(size, data, is_plain))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        flops += 3 * size * flops_of[grower.stage if grower is not None else 0]
        if grower is not None:
            grower.step()
        seconds += time.process_time() - began
        if (step + 1) % every == 0 and step + 1 < run.steps:
            curve.append([step + 1, *task.validate(model, quickly=True)])
    if grower is not None:
        grower.finish()
    loss, accuracy = task.validate(model)
    curve.append([run.steps, *task.validate(model, quickly=True)])
    return {
        "run": dataclasses.asdict(run),
        "loss": loss,
        "accuracy": accuracy,
        "curve": [[step, round(a, 5), round(b, 5)] for step, a, b in curve],
        "flops": flops,
        "cpu_seconds": round(seconds, 2),
        "machine": f"{platform.machine()}, one thread, torch {torch.__version__}",
    }


def run_once(run: Run, root: Path, out: Path) -> dict[str, Any]:
    """The result of a run, trained if there is none yet; one process at a time works on it."""
    path = out / f"{run.key}.json"
    if path.exists():
        return json.loads(path.read_text())
    claim = path.with_suffix(".claimed")
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gr.GrowthWarning)
            result = train(run, root)
        path.with_suffix(".tmp").write_text(json.dumps(result) + "\n")
        path.with_suffix(".tmp").rename(path)
    finally:
        claim.unlink(missing_ok=True)
    return result


def make_optimizer(
    task: Task,
    parameters: Iterable[torch.nn.Parameter],
    lr: float,
    rings: dict[str, Any] | None = None,
) -> torch.optim.Optimizer:
    """torch's own, or one that knows rings."""
    kinds = torch.optim if rings is None else gr.optim
    if task.optimizer == "adamw":
        return kinds.AdamW(parameters, lr=lr, betas=(0.9, 0.99), weight_decay=0.01, **(rings or {}))
    return kinds.SGD(parameters, lr=lr, momentum=0.9, weight_decay=5e-4, **(rings or {}))


def _flops(plan: gr.Plan | None, task: Task, full: torch.nn.Module) -> list[float]:
    """Of a forward pass of one example, at each stage."""
    if plan is None:
        plan = gr.plan(full, task.example, total_steps=2, start=0.5)
        return [plan.footprints[-1].flops]
    return [footprint.flops for footprint in plan.footprints]
