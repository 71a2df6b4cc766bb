"""Cells: the runs that answer one question each, for every task."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scripts.pays.run import FADE, Run, cost_share, flops_ratio

RATES = (0.5, 1.0, 2.0, 4.0)  # of the task's own, tried for every arm
CHOSEN = RATES[
    :3
]  # at the highest, some arm of the GPT diverges; what is left out there helps the rivals
PAPER_RATES = (*RATES, 8.0)  # it divides the output layer's rate, and so bears higher ones
PAPER = {"schedule": "cosine", "start": 0.25, "plan": {"preset": "paper"}, "options": {"rings": {}}}


def _rings(**options: Any) -> dict[str, Any]:
    return {"options": {"rings": options}}


# Changes of the grown arm, one by one.
VARIANTS: dict[str, dict[str, Any]] = {
    "grown": {},
    "grown, heads by number": {"plan": {"heads": "count"}},
    "grown, heads by size": {"plan": {"heads": "size"}},
    "grown, fade over a tenth": {"options": {"fade": 0.1}},
    "grown, fade over the stage": {"options": {"fade": 1.0}},
    "grown, no noise": {"options": {"noise": 0.0}},
    "grown, more noise": {"options": {"noise": 0.1}},
    "grown, ages of rings": _rings(ages="ring"),
    "grown, rates by norm": _rings(rate_adaptation="norm"),
    "grown, own schedules": _rings(ring_schedule="own"),
    "grown, state dropped": _rings(state_at_growth="reset"),
    "grown, new rings 1.3 after a warm-up": _rings(new_ring_rate=1.3, new_ring_warmup=50),
    "grown, new rings 2 after a warm-up": _rings(new_ring_rate=2.0, new_ring_warmup=50),
    "grown, new rings after a warm-up": _rings(new_ring_warmup=50),
    "grown, variance transfer off": {"options": {"variance_transfer": "off"}},
    "grown, variance transfer as in the paper": {"options": {"variance_transfer": "paper"}},
    "grown, no weight decay while narrow": {"narrow": {"weight_decay": 0.0}},
    "grown, no augmentation while narrow": {"narrow": {"augmentation": 0.0}},
    "copies (Net2Net)": {"options": {"method": "net2net"}},
    "new units at random": {"options": {"method": "random"}},
}

# How far and when: other costs than the grown arm's, so these are judged by the saving at equal loss.
TIMES: dict[str, dict[str, Any]] = {
    "half the width until 25 %": {"start": 0.5, "grown_at": 0.25},
    "half the width until 50 %": {"start": 0.5, "grown_at": 0.5},
    "half the width until 70 %": {"start": 0.5, "grown_at": 0.7},
    "half the width until 80 %": {"start": 0.5, "grown_at": 0.8},
    "a quarter, then half, until 25 %": {"start": 0.25, "grown_at": 0.25},
    "a quarter, then half, until 50 %": {"start": 0.25, "grown_at": 0.5},
    "a quarter, then half, until 70 %": {"start": 0.25, "grown_at": 0.7},
    "a quarter until 25 %": {"start": 0.25, "grown_at": 0.25, "plan": {"stages": 2}},
    "a quarter until 50 %": {"start": 0.25, "grown_at": 0.5, "plan": {"stages": 2}},
}


TEXTS = ("gpt", "llama")  # the tasks with heads and fading norms
HALF, LATE = 0.5, 0.7  # shares of the run at which the full size is reached


@dataclass(frozen=True)
class Setting:
    """A task with a full width, a length and a time of growth, of which every arm is a change."""

    task: str
    width: int
    steps: int
    lr: float
    grown_at: float = LATE

    def run(self, **changes: Any) -> Run:
        """A run at full size, with changes."""
        return replace(Run(self.task, self.width, self.steps, self.lr), **changes)

    def grown(self) -> Run:
        """One doubling. The heads of GPTs grow by number; in the first runs, which grew at half, by size."""
        by_number = self.task in TEXTS and self.grown_at == LATE
        plan = VARIANTS["grown, heads by number"]["plan"] if by_number else {}
        return self.run(start=0.5, grown_at=self.grown_at, plan=plan)


MAIN = {
    "gpt": Setting("gpt", 64, 1000, 3e-3),
    "resnet": Setting("resnet", 32, 1000, 0.1),
    "resnet100": Setting("resnet100", 32, 1000, 0.1),
    "vgg": Setting("vgg", 32, 1000, 0.05),
    "mlp": Setting("mlp", 128, 2000, 0.05),
}

# Further settings, for fewer of the questions.
OTHERS = {"llama": Setting("llama", 128, 500, 7.5e-4)}
SETTINGS = {**MAIN, **OTHERS}
LANGUAGE = (MAIN["gpt"], replace(MAIN["gpt"], width=128, steps=500), OTHERS["llama"])

# The same, grown at half of the run.
AT_HALF = {task: replace(setting, grown_at=HALF) for task, setting in MAIN.items()}

# Other widths and lengths: first narrower networks for as many FLOPs as the main setting's full size, which are
# less oversized for them.
MAP = {
    "gpt": [(32, 3290), (64, 300), (128, 500), (64, 3000)],
    "resnet": [(16, 3930), (64, 500)],
    "resnet100": [(16, 3910)],
    "vgg": [(16, 3820), (64, 500)],
    "mlp": [(64, 6760), (32, 20620), (256, 2000), (64, 2000), (128, 500)],
}
UNTUNED = {("gpt", 64, 3000)}  # too long to try rates anew: those of the main setting


class Results:
    """Finished runs in a folder."""

    def __init__(self, out: Path, data: Path | None) -> None:
        self.out, self.data = out, data

    def find(self, run: Run) -> dict[str, Any] | None:
        """The result of a run, if there is one."""
        path = self.out / f"{run.key}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def share(self, run: Run) -> float:
        """FLOPs of a grown run, as a share of full-size training."""
        plan = f" {json.dumps(run.plan, sort_keys=True)}" if run.plan else ""
        key = f"{run.task} {run.width} {run.steps} {run.start} {run.grown_at}{plan}"
        return self._known("shares", key, lambda: cost_share(run, self._root(key)))

    def flops_ratio(self, task: str, width: int, other: int) -> float:
        """FLOPs of a step at one width over those at another."""
        key = f"{task} {width} {other}"
        return self._known("widths", key, lambda: flops_ratio(task, width, other, self._root(key)))

    def seconds_share(self, run: Run, setting: Setting) -> float | None:
        """CPU seconds of a run, as a share of the setting's full-size training; None where no step was timed.

        From the seconds of a step at each width, which `scripts.pays.seconds` takes in turns in one process:
        those of whole runs were taken while other work ran.
        """
        path = self.out / "seconds.json"
        timed = json.loads(path.read_text()) if path.exists() else {}
        own = timed.get(f"{run.task} {setting.width}")
        if own is None or run.width != setting.width:
            return None
        if run.start == 1:
            return run.steps / setting.steps if not run.batch else None
        if run.start != 0.5:
            return None
        seed = own["seed, heads by number" if run.plan.get("heads") == "count" else "seed"]
        return 1 - run.grown_at * (1 - seed / own["full"])

    def _known(self, name: str, key: str, count: Callable[[], float]) -> float:
        path = self.out / f"{name}.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        if key not in known:
            known[key] = count()
            path.write_text(json.dumps(known, indent=1) + "\n")
        return known[key]

    def _root(self, key: str) -> Path:
        if self.data is None:
            raise LookupError(f"no share of {key} yet: run the cell first")
        return self.data

    def tuned(self, run: Run, rates: Sequence[float] = CHOSEN) -> Run | None:
        """The run at the best of the rates tried, or None while these are missing."""
        tried = [replace(run, lr=run.lr * rate, seed=0) for rate in rates]
        losses = [(self.find(one) or {}).get("loss") for one in tried]
        if None in losses:
            return None
        best = min(
            range(len(tried)), key=lambda i: math.inf if math.isnan(losses[i]) else losses[i]
        )
        return replace(run, lr=tried[best].lr)

    def best(self, setting: Setting, name: str) -> Run | None:
        """An arm at its best rate; where a setting is too long for that, at the main setting's."""
        arm = arms_of(setting, self)[name]
        if (setting.task, setting.width, setting.steps) not in UNTUNED:
            return self.tuned(arm)
        main = self.best(replace(MAIN[setting.task], grown_at=setting.grown_at), name)
        return None if main is None else replace(arm, lr=main.lr)


Arms = dict[str, Run]


def arms_of(setting: Setting, results: Results) -> Arms:
    """Grown, and what it has to beat: full size for all steps, and at its cost."""
    grown = setting.grown()
    steps = math.ceil(results.share(grown) * setting.steps)  # in the rival's favour
    return {
        "full": setting.run(),
        "fewer steps, wsd": setting.run(steps=steps),
        "fewer steps, linear": setting.run(steps=steps, schedule="linear"),
        "grown": grown,
    }


def tune(setting: Setting, results: Results, seeds: int) -> Iterator[Run]:
    """Each arm at each rate, one seed."""
    for arm in arms_of(setting, results).values():
        for rate in RATES:
            yield replace(arm, lr=arm.lr * rate)


def main(setting: Setting, results: Results, seeds: int) -> Iterator[Run | None]:
    """Each arm at its best rate, all seeds."""
    for seed in range(seeds):
        for name in arms_of(setting, results):
            best = results.best(setting, name)
            yield None if best is None else replace(best, seed=seed)


def parts(setting: Setting, results: Results, seeds: int) -> Iterator[Run | None]:
    """The grown arm with its parts changed one by one, and the rival with smaller batches."""
    setting = AT_HALF[setting.task]
    grown = results.best(setting, "grown")
    rival = results.best(setting, "fewer steps, wsd")
    for seed in range(seeds):
        for changes in VARIANTS.values():
            if grown is None:
                yield None
            elif _fits(changes, setting):
                yield replace(variant(grown, changes), seed=seed)
        yield None if rival is None else smaller_batch(rival, setting, seed)


def variant(grown: Run, changes: dict[str, Any]) -> Run:
    """A grown run with changes; rings are told the run's length, where schedules of theirs need it."""
    rings = changes.get("options", {}).get("rings")
    if rings is not None and rings:
        changes = {**changes, "options": {"rings": {**rings, "total_steps": grown.steps}}}
    return replace(grown, **changes)


def _fits(changes: dict[str, Any], setting: Setting) -> bool:
    """Heads and fading norms are the GPT's, augmentation that of images; copies cannot divide tied weights."""
    if setting.task in TEXTS:
        is_copied = changes.get("options", {}).get("method") == "net2net"
        return not is_copied and "augmentation" not in changes.get("narrow", {})
    return "heads" not in changes.get("plan", {}) and "fade" not in changes.get("options", {})


def smaller_batch(full: Run, setting: Setting, seed: int) -> Run:
    """The rival at equal cost with as many steps: of fewer examples each."""
    own = 16 if setting.task in TEXTS else 64
    share = full.steps / setting.steps
    return replace(full, steps=setting.steps, batch=round(own * share), seed=seed)


def times(setting: Setting, results: Results, seeds: int) -> Iterator[Run | None]:
    """From which width, and until when."""
    setting = AT_HALF[setting.task]
    grown = results.best(setting, "grown")
    for seed in range(seeds):
        for changes in TIMES.values():
            yield None if grown is None else replace(grown, **changes, seed=seed)


# Over which share of the last stage the new entries enter the statistics of norms; the first is over at once.
FADES = (1e-9, 0.03, 0.1, 0.25, 0.5, 1.0)


def fades(setting: Setting, results: Results, seeds: int) -> Iterator[Run | None]:
    """How long norms should fade in after a growth."""
    for one in (one for one in LANGUAGE if one.task == setting.task):
        grown = results.best(one, "grown")
        for seed in range(seeds):
            for fade in FADES:
                yield None if grown is None else replace(faded(grown, fade), seed=seed)


def faded(grown: Run, fade: float) -> Run:
    """A grown run whose norms fade in over a share of the stage; that of the whole study is not named."""
    return grown if fade == FADE else replace(grown, options={**grown.options, "fade": fade})


def gap(setting: Setting, results: Results, seeds: int) -> Iterator[Run | None]:
    """Grown at several times under three schedules: how far from the full-size run at the same step?"""
    full = results.best(setting, "full")
    for seed in range(seeds):
        for schedule in ("wsd", "linear", "cosine"):
            for grown_at in (None, 0.25, 0.5, 0.7):
                if full is None:
                    yield None
                    continue
                base = replace(full, schedule=schedule, seed=seed)
                yield base if grown_at is None else replace(base, start=0.5, grown_at=grown_at)


def over_map(setting: Setting, results: Results, seeds: int) -> Iterator[Run | None]:
    """Full size, the better rival and grown, for other widths and lengths, each at its best rate."""
    for width, steps in MAP[setting.task]:
        other = replace(setting, width=width, steps=steps)
        if (other.task, width, steps) not in UNTUNED:
            for arm in arms_of(other, results).values():
                yield from (replace(arm, lr=arm.lr * rate) for rate in CHOSEN)
        yield from main(other, results, seeds)


def paper(setting: Setting, results: Results, seeds: int) -> Iterator[Run | None]:
    """The paper's schedule, rates and variance transfer in nine stages under cosine, at its best rate."""
    arm = setting.run(**PAPER)
    yield from (replace(arm, lr=arm.lr * rate) for rate in PAPER_RATES)
    for seed in range(seeds):
        best = results.tuned(arm, PAPER_RATES)
        yield None if best is None else replace(best, seed=seed)


def statics(setting: Setting, results: Results) -> Arms:
    """Narrower and wider networks of one width for the FLOPs of the grown run."""
    share, found = results.share(arms_of(setting, results)["grown"]), {}
    for factor in (0.25, 0.5, 2.0):
        width = round(factor * setting.width)
        ratio = results.flops_ratio(setting.task, setting.width, width)
        found[f"width {width}"] = setting.run(
            width=width, steps=math.ceil(share * setting.steps * ratio)
        )
    return found


def at_equal_seconds(setting: Setting, results: Results) -> Run | None:
    """Full size for the seconds of the grown run, by the schedule and rate that are best at its FLOPs."""
    share = results.seconds_share(setting.grown(), setting)
    rivals = [results.best(setting, name) for name in ("fewer steps, wsd", "fewer steps, linear")]
    losses = [None if run is None else results.find(run) for run in rivals]
    if share is None or None in losses:
        return None
    _, rival = min(
        ((found["loss"], run) for found, run in zip(losses, rivals, strict=True) if found and run),
        key=lambda pair: pair[0],
    )
    return replace(rival, steps=math.ceil(share * setting.steps))


def seconds(setting: Setting, results: Results, seeds: int) -> Iterator[Run | None]:
    """The rival that has as many seconds as the grown run."""
    for one in dict.fromkeys([setting, *(one for one in LANGUAGE if one.task == setting.task)]):
        rival = at_equal_seconds(one, results)
        for seed in range(seeds):
            yield None if rival is None else replace(rival, seed=seed)


def static(setting: Setting, results: Results, seeds: int) -> Iterator[Run | None]:
    """The best width of all, had one known it: at equal FLOPs, each at its best rate."""
    for arm in statics(setting, results).values():
        yield from (replace(arm, lr=arm.lr * rate) for rate in CHOSEN)
        for seed in range(seeds):
            best = results.tuned(arm)
            yield None if best is None else replace(best, seed=seed)


CELLS: dict[str, Callable[..., Iterator[Run | None]]] = {
    "tune": tune,
    "main": main,
    "paper": paper,
    "times": times,
    "parts": parts,
    "static": static,
    "gap": gap,
    "map": over_map,
    "seconds": seconds,
    "fades": fades,
}
