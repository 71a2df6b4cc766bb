"""Seconds of a training step at the widths of the study: python -m scripts.pays.seconds --data DIR.

All widths of a task take turns in one process, so that a busy machine slows each of them alike; the median of CPU
seconds over many turns is kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

import growthring as gr
from scripts.pays.cells import MAP, SETTINGS, TEXTS
from scripts.pays.run import by_number, make_optimizer
from scripts.pays.tasks import TASKS, Task

TURNS, WARM = 40, 5


def models_of(task: Task, name: str, width: int) -> dict[str, nn.Module]:
    """Full size and the seed of half the width."""
    full = task.build(width, torch.Generator().manual_seed(0))
    kinds = {"seed, heads by number": by_number(name, width)} if name in TEXTS else {}
    if not isinstance(full, PreTrainedModel):  # of rotary positions, head sizes cannot grow
        kinds = {"seed": {"heads": "size"}, **kinds}
    seeds = {
        name: gr.plan(full, task.example, total_steps=100, start=0.5, **kind).build_seed()
        for name, kind in kinds.items()
    }
    return {"full": full, **seeds}


def time_steps(task: Task, models: dict[str, nn.Module]) -> dict[str, float]:
    """Median CPU seconds of a step of each."""
    draws = torch.Generator().manual_seed(0)
    taken: dict[str, list[float]] = {name: [] for name in models}
    optimizers = {
        name: make_optimizer(task, model.parameters(), 1e-4) for name, model in models.items()
    }
    for _ in range(WARM + TURNS):
        for name, model in models.items():
            began = time.process_time()
            task.loss(model, task.batch(task.batch_size, draws, False)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizers[name].step()
            optimizers[name].zero_grad()
            taken[name].append(time.process_time() - began)
    return {name: round(statistics.median(times[WARM:]), 6) for name, times in taken.items()}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/pays"))
    parser.add_argument(
        "--tasks", nargs="+", default=list(SETTINGS), choices=list(SETTINGS), help="the rest stays"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    path = args.out / "seconds.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for name in args.tasks:
        main_setting = SETTINGS[name]
        others = [replace(main_setting, width=width) for width, _ in MAP.get(name, [])]
        for width in sorted({setting.width for setting in [main_setting, *others]}):
            task = TASKS[name](args.data)
            found[f"{name} {width}"] = time_steps(task, models_of(task, name, width))
            print(name, width, found[f"{name} {width}"], flush=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
