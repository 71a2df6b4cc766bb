"""Cells: the runs that answer one question each, for every task."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scripts.pays.run import Run, cost_share

RATES = (0.5, 1.0, 2.0, 4.0)  # of the task's own, tried for every arm
CHOSEN = RATES[
    :3
]  # at the highest, some arm of the GPT diverges; what is left out there helps the rivals
VARIANTS: dict[str, dict[str, Any]] = {
    "grown": {},
    "grown, fade over a tenth": {"fade": 0.1},
    "grown, fade over the stage": {"fade": 1.0},
    "grown, no noise": {"noise": 0.0},
    "grown, ages of rings": {"rings": {"ages": "ring"}},
    "grown, rates by norm": {"rings": {"rate_adaptation": "norm"}},
    "grown, own schedules": {"rings": {"ring_schedule": "own"}},
    "grown, state dropped": {"rings": {"state_at_growth": "reset"}},
    "grown, new rings 1.3 after a warm-up": {
        "rings": {"new_ring_rate": 1.3, "new_ring_warmup": 50}
    },
    "grown, new rings 2 after a warm-up": {"rings": {"new_ring_rate": 2.0, "new_ring_warmup": 50}},
    "grown, new rings after a warm-up": {"rings": {"new_ring_warmup": 50}},
    "grown, variance transfer off": {"variance_transfer": "off"},
    "grown, variance transfer as in the paper": {"variance_transfer": "paper"},
    "grown, more noise": {"noise": 0.1},
    "copies (Net2Net)": {"method": "net2net"},
    "new units at random": {"method": "random"},
}


@dataclass(frozen=True)
class Setting:
    """A task with a full width and a length, of which every arm is a change."""

    task: str
    width: int
    steps: int
    lr: float

    def run(self, **changes: Any) -> Run:
        """A run at full size, with changes."""
        return replace(Run(self.task, self.width, self.steps, self.lr), **changes)


MAIN = {
    "gpt": Setting("gpt", 64, 1000, 3e-3),
    "resnet": Setting("resnet", 32, 1000, 0.1),
    "mlp": Setting("mlp", 128, 2000, 0.05),
}


# Other widths and lengths, at the rates that were best for the main setting's arms.
MAP = {
    "gpt": [(64, 300), (64, 3000), (128, 500), (32, 1000)],
    "resnet": [(32, 300)],
    "mlp": [(128, 500), (128, 6000), (64, 2000), (256, 2000)],
}


class Results:
    """Finished runs in a folder."""

    def __init__(self, out: Path, data: Path | None) -> None:
        self.out, self.data = out, data

    def find(self, run: Run) -> dict[str, Any] | None:
        """The result of a run, if there is one."""
        path = self.out / f"{run.key}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def share(self, run: Run) -> float:
        """FLOPs of a grown run, as a share of full-size training: from any seed that is done, or from its plan."""
        known = self.out / "shares.json"
        shares = json.loads(known.read_text()) if known.exists() else {}
        key = f"{run.task} {run.width} {run.steps} {run.start} {run.grown_at}"
        if key not in shares:
            assert self.data is not None, f"no share of {key} yet: run the cell first"
            shares[key] = cost_share(run, self.data)
            known.write_text(json.dumps(shares, indent=1) + "\n")
        return shares[key]

    def tuned(self, run: Run) -> Run | None:
        """The run at the best of the rates tried, or None while these are missing."""
        tried = [replace(run, lr=run.lr * rate, seed=0) for rate in CHOSEN]
        losses = [(self.find(one) or {}).get("loss") for one in tried]
        if None in losses:
            return None
        best = min(
            range(len(tried)), key=lambda i: math.inf if math.isnan(losses[i]) else losses[i]
        )
        return replace(run, lr=tried[best].lr)


Arms = dict[str, Run]


def arms_of(setting: Setting, results: Results, grown_at: float = 0.5, start: float = 0.5) -> Arms:
    """Grown, and what it has to beat: full size for all steps, and at its cost."""
    grown = setting.run(start=start, grown_at=grown_at)
    steps = math.ceil(results.share(grown) * setting.steps)  # in the rival's favour
    return {
        "full": setting.run(),
        "fewer steps, wsd": setting.run(steps=steps),
        "fewer steps, linear": setting.run(steps=steps, schedule="linear"),
        "grown": grown,
    }


def tune(setting: Setting, results: Results) -> Iterator[Run]:
    """Each arm at each rate, one seed."""
    for arm in arms_of(setting, results).values():
        for rate in RATES:
            yield replace(arm, lr=arm.lr * rate)


def main(setting: Setting, results: Results, seeds: int = 3) -> Iterator[Run | None]:
    """Each arm at its best rate, all seeds."""
    for seed in range(seeds):
        for arm in arms_of(setting, results).values():
            tuned = results.tuned(arm)
            yield None if tuned is None else replace(tuned, seed=seed)


def parts(setting: Setting, results: Results, seeds: int = 3) -> Iterator[Run | None]:
    """The grown arm with its parts changed one by one, and the rival with smaller batches."""
    arms = arms_of(setting, results)
    grown, full = results.tuned(arms["grown"]), results.tuned(arms["fewer steps, wsd"])
    for seed in range(seeds):
        for options in VARIANTS.values():
            yield (
                None
                if grown is None
                else replace(grown, options=with_steps(options, setting), seed=seed)
            )
        yield None if full is None else smaller_batch(full, setting, results, seed)


def with_steps(options: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """Options with the run's length, where schedules of rings need it."""
    rings = options.get("rings")
    return (
        options if rings is None else {**options, "rings": {**rings, "total_steps": setting.steps}}
    )


def smaller_batch(full: Run, setting: Setting, results: Results, seed: int) -> Run:
    """The rival at equal cost with as many steps: of fewer examples each."""
    own = {"gpt": 16, "resnet": 64, "mlp": 64}[setting.task]
    share = full.steps / setting.steps
    return replace(full, steps=setting.steps, batch=round(own * share), seed=seed)


def gap(setting: Setting, results: Results, seeds: int = 2) -> Iterator[Run | None]:
    """Grown at several times under three schedules: how far from the full-size run at the same step?"""
    arms = arms_of(setting, results)
    tuned = results.tuned(arms["full"])
    for seed in range(seeds):
        for schedule in ("wsd", "linear", "cosine"):
            for grown_at in (None, 0.25, 0.5, 0.7):
                if tuned is None:
                    yield None
                    continue
                base = replace(tuned, schedule=schedule, seed=seed)
                yield base if grown_at is None else replace(base, start=0.5, grown_at=grown_at)


def over_map(setting: Setting, results: Results, seeds: int = 2) -> Iterator[Run | None]:
    """Full size, the better rival and grown, for other widths and lengths."""
    tuned = {name: results.tuned(arm) for name, arm in arms_of(setting, results).items()}
    for seed in range(seeds):
        for width, steps in MAP[setting.task]:
            other = replace(setting, width=width, steps=steps)
            for name, arm in arms_of(other, results).items():
                best = tuned[name]
                yield None if best is None else replace(arm, lr=best.lr, seed=seed)


CELLS: dict[str, Callable[..., Iterator[Run | None]]] = {
    "tune": tune,
    "main": main,
    "parts": parts,
    "gap": gap,
    "map": over_map,
}
