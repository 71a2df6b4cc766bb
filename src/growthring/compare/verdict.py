"""Verdicts: does the matched contender beat full size at its cost, paired by seed?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from growthring.compare.contenders import MATCHED
from growthring.compare.manifest import Manifest
from growthring.compare.standings import Standing
from growthring.runs.clocks import clock_words
from growthring.runs.spread import Spread, spread


@dataclass(frozen=True)
class Verdict:
    """A contender against the better one of its rivals at equal cost.

    Attributes:
        contender: whose cost was matched.
        rival: the better one of the full-size trainings at that cost.
        cost: "flops" or "seconds".
        gain: of the contender over the rival, for each seed that both have: points of accuracy, or the loss that
            it is lower by.
        unit: "points" or "loss".
        seeds: how many both have.
    """

    contender: str
    rival: str
    cost: str
    gain: Spread
    unit: str
    seeds: int

    def sentence(self, clock: str) -> str:
        """In words."""
        what = "FLOPs" if self.cost == "flops" else clock_words("seconds", clock)
        digits = 2 if self.unit == "points" else 4
        deviation = self.gain.deviation
        about = "" if deviation is None else f" ± {deviation:.{digits}f}"
        better = "better" if self.gain.mean >= 0 else "worse"
        unit = "points of accuracy" if self.unit == "points" else "of loss"
        seeds = "one seed" if self.seeds == 1 else f"{self.seeds} seeds, paired"
        return (
            f"At equal {what}, {self.contender} is {better} than {self.rival}, the number to beat, by "
            f"{abs(self.gain.mean):.{digits}f}{about} {unit} ({seeds})."
        )


def verdicts(rows: Sequence[Standing], manifest: Manifest) -> list[Verdict]:
    """For FLOPs and for seconds, as far as there are runs of both."""
    by_name = {row.name: row for row in rows}
    ours = by_name.get(manifest.match or "")
    if ours is None:
        return []
    unit = "points" if ours.accuracy is not None else "loss"
    result = []
    for cost in ("flops", "seconds"):
        rivals = [by_name[n] for n in manifest.rivals if MATCHED[n].cost == cost and n in by_name]
        known = [rival for rival in rivals if _quality(rival, unit) is not None]
        if not known:
            continue
        best = max(known, key=lambda rival: _quality(rival, unit) or 0.0)
        theirs = _by_seed(best, unit)
        gains = [
            mine - theirs[seed] for seed, mine in _by_seed(ours, unit).items() if seed in theirs
        ]
        gain = spread(gains)
        if gain is not None:
            result.append(Verdict(ours.name, best.name, cost, gain, unit, len(gains)))
    return result


def _quality(row: Standing, unit: str) -> float | None:
    """The larger the better."""
    of = row.accuracy if unit == "points" else row.loss
    return None if of is None else (of.mean if unit == "points" else -of.mean)


def _by_seed(row: Standing, unit: str) -> dict[int, float]:
    values = row.values["test_accuracy" if unit == "points" else "test_loss"]
    scale = 100.0 if unit == "points" else -1.0
    pairs = zip(row.seeds, values, strict=True)
    return {seed: scale * value for seed, value in pairs if value is not None}
