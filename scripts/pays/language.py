"""The tables of docs/language-models.md: perplexities at equal cost, and how long norms should fade in."""

from __future__ import annotations

import math

from scripts.pays.cells import FADES, LANGUAGE, Results, Setting, arms_of, at_equal_seconds, faded
from scripts.pays.curves import Seeds, arm, spread
from scripts.pays.tables import row, seconds_text, table

NAMES = {"gpt": "GPT", "llama": "Llama"}


def perplexity_table(results: Results) -> list[str]:
    """Full size, its rivals at equal cost and grown; by how much the grown model's perplexity is lower, paired."""
    lines = table(
        *("network", "steps", "arm", "lr", "FLOPs %", "seconds %"),
        *("perplexity of a byte", "lower than grown's by"),
    )
    for setting in LANGUAGE:
        arms = {name: arm(results, setting, name) for name in arms_of(setting, results)}
        arms["as many seconds"] = Seeds(at_equal_seconds(setting, results), results)
        full, grown = arms["full"], arms["grown"]
        for name, one in arms.items():
            if not one or one.run is None or not full:
                continue
            gains = [_perplexity(grown, s) - _perplexity(one, s) for s in one.results]
            lines.append(
                row(
                    f"{NAMES[setting.task]}, width {setting.width}",
                    *(one.run.steps, name, f"{one.run.lr:g}"),
                    f"{100 * one.mean('flops') / full.mean('flops'):.0f}",
                    seconds_text(results, setting, one.run),
                    spread([_perplexity(one, s) for s in one.results], 2),
                    "–" if name == "grown" else spread(gains, 2, "+"),
                )
            )
    return lines


def _perplexity(seeds: Seeds, seed: int) -> float:
    return math.exp(seeds[seed])


def fades_table(results: Results) -> list[str]:
    """Losses by how long the new entries take to enter the statistics of norms, against a quarter of the stage."""
    lines = table("fade over", *map(_title, LANGUAGE), "all")
    plain = {one: results.best(one, "grown") for one in LANGUAGE}
    for fade in FADES:
        cells, all_gains = [], []
        for setting in LANGUAGE:
            run = plain[setting]
            base = Seeds(run, results)
            one = Seeds(None if run is None else faded(run, fade), results)
            gains = [base[s] - one[s] for s in one.results if s in base.results]
            all_gains += gains
            cells.append(f"{one.text(digits=4)} ({spread(gains, 4, '+')})" if gains else "–")
        name = "one step (not exact)" if fade < 1e-3 else f"{fade:.0%} of the stage"
        lines.append(row(name, *cells, spread(all_gains, 4, "+")))
    return lines


def _title(setting: Setting) -> str:
    return f"{NAMES[setting.task]}, width {setting.width}, {setting.steps} steps"


TABLES = {"perplexity": perplexity_table, "fades": fades_table}
