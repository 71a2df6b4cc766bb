"""What a loss is worth: the steps of full-size training that reach it, and so what a cheaper run saves.

Full-size runs of several lengths, each decayed to its end, give points (steps, loss). Between two of them the loss
is taken as a line in log(steps), beyond the ends the last line goes on.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scripts.pays.cells import HALF, LATE, MAIN, MAP, Results, Setting, arms_of
from scripts.pays.run import Run

RIVALS = ("fewer steps, wsd", "fewer steps, linear")


class Seeds:
    """The finished seeds of one arm."""

    def __init__(self, run: Run | None, results: Results) -> None:
        self.run = run
        self.results: dict[int, dict[str, Any]] = {}
        if run is not None:
            found = {seed: results.find(replace(run, seed=seed)) for seed in range(10)}
            self.results = {seed: one for seed, one in found.items() if one is not None}

    def __bool__(self) -> bool:
        return bool(self.results)

    def __getitem__(self, seed: int) -> float:
        return float(self.results[seed]["loss"])

    def mean(self, key: str = "loss") -> float:
        """Over seeds."""
        return statistics.fmean(float(result[key]) for result in self.results.values())

    def text(self, key: str = "loss", scale: float = 1.0, digits: int = 3) -> str:
        """Mean ± deviation (number of seeds)."""
        values = [scale * float(result[key]) for result in self.results.values()]
        return spread(values, digits) + f" ({len(values)})" if values else "–"

    def minus(self, other: Seeds) -> str:
        """How much lower the loss is than another's, paired by seed."""
        gains = [other[seed] - self[seed] for seed in self.results if seed in other.results]
        return spread(gains, 3, "+") if gains else "–"


def spread(values: Sequence[float], digits: int, sign: str = "") -> str:
    """Mean ± sample deviation.

    >>> spread([1.0, 3.0], 1), spread([1.0], 1, "+")
    ('2.0 ± 1.4', '+1.0')
    """
    if not values:
        return "–"
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{sign}.{digits}f}{deviation}"


def arm(results: Results, setting: Setting, name: str) -> Seeds:
    """The seeds of an arm at its best rate."""
    try:
        return Seeds(results.best(setting, name), results)
    except LookupError:  # not begun
        return Seeds(None, results)


def begun(results: Results) -> dict[str, Setting]:
    """The main settings that have results."""
    return {task: setting for task, setting in MAIN.items() if arm(results, setting, "grown")}


def better_rival(results: Results, setting: Setting) -> Seeds:
    """Full size at the grown run's FLOPs, by the schedule that did better."""
    rivals = [one for name in RIVALS if (one := arm(results, setting, name))]
    return min(rivals, key=Seeds.mean, default=Seeds(None, results))


def full_curve(results: Results, setting: Setting, seed: int) -> list[tuple[int, float]]:
    """(steps, loss) of full-size runs of one seed, of all lengths that were run at this width."""
    main = MAIN[setting.task]
    sizes = [(main.width, main.steps), *MAP[setting.task]]
    lengths = [steps for width, steps in sizes if width == setting.width]
    points = {}
    for steps, grown_at in itertools.product(lengths, (HALF, LATE)):
        other = replace(setting, steps=steps, grown_at=grown_at)
        for seeds in (arm(results, other, "full"), better_rival(results, other)):
            if seeds.run is not None and seed in seeds.results:
                points[seeds.run.steps] = seeds[seed]
    return sorted(points.items())


def steps_to(loss: float, points: Sequence[tuple[int, float]]) -> float | None:
    """Steps of full-size training until a loss; None where training longer makes it no better.

    >>> round(steps_to(1.5, [(100, 2.0), (400, 1.0)]))
    200
    """
    for (n, high), (m, low) in itertools.pairwise(points):
        if (loss >= low or (m, low) == points[-1]) and high > low:
            return n * math.exp((high - loss) / (high - low) * math.log(m / n))
    return None


def savings(results: Results, setting: Setting, seeds: Seeds, cost: float) -> list[float]:
    """By seed: the share of full-size training's cost, to the same loss, that a run saves.

    Args:
        results: of the study.
        setting: whose full-size runs it is compared with.
        seeds: the run.
        cost: of the run, as a share of `setting.steps` steps of full-size training.
    """
    found = []
    for seed in seeds.results:
        points = full_curve(results, setting, seed)
        steps = steps_to(seeds[seed], points) if len(points) > 1 else None
        if steps is not None:
            found.append(1 - cost * setting.steps / steps)
    return found


def closed(results: Results, setting: Setting, seeds: Seeds) -> list[float]:
    """γ by seed: the share of the gap between the better rival and full size that a run closes."""
    full, rival = arm(results, setting, "full"), better_rival(results, setting)
    both = [s for s in seeds.results if s in full.results and s in rival.results]
    if not both or rival.mean() <= full.mean():
        return []
    gap = statistics.fmean(rival[s] - full[s] for s in both)  # of one seed it may be noise
    return [(rival[s] - seeds[s]) / gap for s in both]


def share_of(results: Results, setting: Setting) -> float:
    """The grown arm's FLOPs, as a share of full-size training."""
    return results.share(arms_of(setting, results)["grown"])
