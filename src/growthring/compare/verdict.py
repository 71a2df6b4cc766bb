"""Verdicts: does the matched contender beat full size at its cost, paired by seed?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from growthring.compare.contenders import MATCHED
from growthring.compare.manifest import Manifest
from growthring.compare.standings import Standing
from growthring.runs.clocks import clock_words
from growthring.runs.metrics import Metric
from growthring.runs.spread import Spread, spread


@dataclass(frozen=True)
class Verdict:
    """A contender against the better one of its rivals at equal cost.

    Attributes:
        contender: whose cost was matched.
        rival: the better one of the full-size trainings at that cost.
        cost: "flops" or "seconds".
        gain: of the contender over the rival, for each seed that both have, as the metric is written.
        metric: what both are judged by.
        seeds: how many both have.
    """

    contender: str
    rival: str
    cost: str
    gain: Spread
    metric: Metric
    seeds: int

    def sentence(self, clock: str) -> str:
        """In words."""
        what = "FLOPs" if self.cost == "flops" else clock_words("seconds", clock)
        digits = self.metric.digits
        deviation = self.gain.deviation
        about = "" if deviation is None else f" ± {deviation:.{digits}f}"
        better = "better" if self.gain.mean >= 0 else "worse"
        seeds = "one seed" if self.seeds == 1 else f"{self.seeds} seeds, paired"
        return (
            f"At equal {what}, {self.contender} is {better} than {self.rival}, the number to beat, by "
            f"{abs(self.gain.mean):.{digits}f}{about} {self.metric.gain_unit} ({seeds})."
        )


def verdicts(rows: Sequence[Standing], manifest: Manifest) -> list[Verdict]:
    """For FLOPs and for seconds, as far as there are runs of both."""
    by_name = {row.name: row for row in rows}
    ours = by_name.get(manifest.match or "")
    if ours is None:
        return []
    metric, result = ours.metric, []
    for cost in ("flops", "seconds"):
        rivals = [by_name[n] for n in manifest.rivals if MATCHED[n].cost == cost and n in by_name]
        known = {rival.name: rival.quality.mean for rival in rivals if rival.quality is not None}
        if not known:
            continue
        best = by_name[max(known, key=lambda name: metric.gain(0.0, known[name]))]
        theirs = _by_seed(best)
        gains = [
            metric.gain(theirs[seed], mine)
            for seed, mine in _by_seed(ours).items()
            if seed in theirs
        ]
        gain = spread(gains)
        if gain is not None:
            result.append(Verdict(ours.name, best.name, cost, gain, metric, len(gains)))
    return result


def _by_seed(row: Standing) -> dict[int, float]:
    found = row.values.get(row.metric.key, [None] * len(row.seeds))  # of no run, no scores
    pairs = zip(row.seeds, found, strict=True)
    return {seed: value for seed, value in pairs if value is not None}
