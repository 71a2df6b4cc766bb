"""What advice was worth: pilots before runs whose end is known.

    python -m scripts.pays.advice --data DIR [--out results/pays]

For every setting that the study has run to its end, `gr.advise` is asked first, at the rate that was best for full
size. Its answers are stored beside the runs; `scripts.pays.page` puts both into a table.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import growthring as gr
from growthring.train.advice import Pilot, share_closed
from growthring.train.tasks.tokens import TokenCrossEntropy
from scripts.pays.cells import MAIN, MAP, Results, Setting
from scripts.pays.curves import arm, closed
from scripts.pays.run import make_optimizer
from scripts.pays.tasks import TASKS, Batch, Task

SHARE, SEEDS = (
    0.3,
    2,
)  # runs of 1,000 steps are short: a smaller share would be pilots of a few steps


@dataclass(frozen=True)
class Drawn:
    """Batches of a task without end, drawn by torch's generator."""

    task: Task

    def __iter__(self) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
        while True:
            yield self.task.batch(self.task.batch_size, generator, False)


def settings() -> list[Setting]:
    """All that the study knows the end of."""
    found = list(MAIN.values())
    for task, others in MAP.items():
        found += [replace(MAIN[task], width=width, steps=steps) for width, steps in others]
    return found


def path_of(setting: Setting, out: Path) -> Path:
    """Where the answer is kept."""
    return out / "advice" / f"{setting.task}-{setting.width}-{setting.steps}.json"


def ask(setting: Setting, lr: float, root: Path) -> dict[str, Any]:
    """What `gr.advise` says about one doubling at the time of the setting."""
    task = TASKS[setting.task](root)
    model = task.build(setting.width, torch.Generator().manual_seed(0))
    advice = gr.advise(
        model,
        task.example,
        batches=Drawn(task),
        held_out=task.held_out,
        loss=TokenCrossEntropy(),
        optimizer=lambda parameters: make_optimizer(task, parameters, lr),
        total_steps=setting.steps,
        share=SHARE,
        seeds=SEEDS,
        warmup=task.warmup,
        clip_norm=1.0,
        start=0.5,
        grown_at=setting.grown_at,
        batch_size=task.batch_size,
    )
    told = advice.as_dict()
    del told["plan"]
    return {"setting": asdict(setting), "lr": lr, **told}


def pilots_of(setting: Setting, out: Path) -> list[Pilot]:
    """The pilots that were run before a setting."""
    stored = json.loads(path_of(setting, out).read_text())
    return [Pilot(**pilot) for pilot in stored["pilots"]]


def fall(results: Results) -> tuple[float, float]:
    """How much γ falls for each doubling from the longest pilots to the run, mean and deviation: the main settings.

    Where `growthring.train.advice` has its `FALL` and `FALL_ERROR` from.
    """
    falls = []
    for setting in MAIN.values():
        pilots = pilots_of(setting, results.out)
        longest = max(pilot.steps for pilot in pilots)
        foretold = share_closed(pilots, longest)  # of a run as long as they: nothing falls
        came = closed(results, setting, arm(results, setting, "grown"))
        assert foretold is not None
        doublings = math.log2(setting.steps / longest)
        falls.append((foretold.mean - statistics.fmean(came)) / doublings)
    return statistics.fmean(falls), statistics.stdev(falls)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/pays"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", gr.GrowthWarning)
    results = Results(args.out, args.data)
    for setting in settings():
        path, full = path_of(setting, args.out), results.best(setting, "full")
        if path.exists() or full is None:
            continue
        try:
            told = ask(setting, full.lr, args.data)
        except gr.GrowthError as error:  # too short for pilots
            print(setting, error)
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(told, indent=1) + "\n")
        print(setting, told["closed"], told["flops_saving"], flush=True)


if __name__ == "__main__":
    main()
