"""The tables of docs/when-it-pays.md: python -m scripts.pays.page [--out results/pays]."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from scripts.pays.cells import (
    MAIN,
    MAP,
    VARIANTS,
    Results,
    Setting,
    arms_of,
    smaller_batch,
    with_steps,
)
from scripts.pays.run import Run

DOCS = Path("docs/when-it-pays.md")
BEGIN, END = "<!-- begin {} -->", "<!-- end {} -->"


class Seeds:
    """The finished seeds of one arm."""

    def __init__(self, run: Run, results: Results) -> None:
        self.results = {
            seed: found
            for seed in range(10)
            if (found := results.find(replace(run, seed=seed))) is not None
        }

    def values(self, key: str) -> list[float]:
        """Of all seeds."""
        return [float(result[key]) for result in self.results.values()]

    def mean(self, key: str = "loss") -> float:
        """Over seeds."""
        return statistics.fmean(self.values(key))

    def text(self, key: str = "loss", scale: float = 1.0, digits: int = 3) -> str:
        """Mean ± deviation (number of seeds)."""
        values = [scale * value for value in self.values(key)]
        if not values:
            return "–"
        deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.{digits}f}{deviation} ({len(values)})"

    def minus(self, other: Seeds) -> str:
        """How much lower the loss is than another's, paired by seed."""
        both = [seed for seed in self.results if seed in other.results]
        gains = [other.results[s]["loss"] - self.results[s]["loss"] for s in both]
        if not gains:
            return "–"
        deviation = f" ± {statistics.stdev(gains):.3f}" if len(gains) > 1 else ""
        return f"{statistics.fmean(gains):+.3f}{deviation}"


def _arm(results: Results, setting: Setting, name: str) -> Seeds | None:
    tuned = results.tuned(arms_of(setting, results)[name])
    return None if tuned is None else Seeds(tuned, results)


def main_table(results: Results) -> list[str]:
    """Each task: full size, its rivals at equal FLOPs, grown."""
    lines = ["| task | arm | lr | loss | accuracy % | FLOPs % | CPU seconds % | gap closed |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for task, setting in MAIN.items():
        arms = {name: _arm(results, setting, name) for name in arms_of(setting, results)}
        full, grown = arms["full"], arms["grown"]
        if full is None or grown is None or not full.results:
            continue
        rivals = [
            a for n, a in arms.items() if n.startswith("fewer") and a is not None and a.results
        ]
        rival = min(rivals, key=lambda one: one.mean()).mean() if rivals else None
        for name, arm in arms.items():
            if arm is None or not arm.results:
                continue
            closed = "–"
            if name == "grown" and rival is not None:
                closed = f"{(rival - arm.mean()) / (rival - full.mean()):.0%}"
            first = next(iter(arm.results.values()))["run"]
            costs = [100 * arm.mean(key) / full.mean(key) for key in ("flops", "cpu_seconds")]
            lines.append(
                f"| {task} | {name} | {first['lr']:g} | {arm.text()} | {arm.text('accuracy', 100, 1)} | "
                f"{costs[0]:.0f} | {costs[1]:.0f} | {closed} |"
            )
    return lines


def gap_table(results: Results) -> list[str]:
    """How far a grown run ends from full size at the same step, by schedule and time of growth."""
    times = (0.25, 0.5, 0.7)
    lines = ["| task | schedule | full size | " + " | ".join(f"grown at {t:.0%}" for t in times)]
    lines = [lines[0] + " |", "| --- | --- | --- | " + " | ".join("---" for _ in times) + " |"]
    for task in ("gpt", "mlp"):
        setting = MAIN[task]
        tuned = results.tuned(arms_of(setting, results)["full"])
        if tuned is None:
            continue
        for schedule in ("wsd", "linear", "cosine"):
            base = Seeds(replace(tuned, schedule=schedule), results)
            if not base.results:
                continue
            cells = []
            for time in times:
                run = replace(tuned, schedule=schedule, start=0.5, grown_at=time)
                grown = Seeds(run, results)
                cells.append(grown.minus(base) if grown.results else "–")
            lines.append(f"| {task} | {schedule} | {base.text()} | {' | '.join(cells)} |")
    return lines


def map_table(results: Results) -> list[str]:
    """Other widths and lengths."""
    lines = ["| task | width | steps | full size | at equal FLOPs | grown | gap closed |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for task, setting in MAIN.items():
        tuned = {n: results.tuned(arm) for n, arm in arms_of(setting, results).items()}
        for width, steps in [(setting.width, setting.steps), *MAP[task]]:
            other = replace(setting, width=width, steps=steps)
            found: dict[str, Seeds] = {}
            try:
                arms = arms_of(other, results)
            except AssertionError:  # not begun
                continue
            for name, arm in arms.items():
                best = tuned[name]
                if best is not None:
                    found[name] = Seeds(replace(arm, lr=best.lr), results)
            rivals = [s for n, s in found.items() if n.startswith("fewer") and s.results]
            done = [name for name, seeds in found.items() if seeds.results]
            if not rivals or "full" not in done or "grown" not in done:
                continue
            rival = min(rivals, key=lambda one: one.mean())
            full, grown = found["full"], found["grown"]
            gap = rival.mean() - full.mean()
            closed = f"{(rival.mean() - grown.mean()) / gap:.0%}" if gap > 0 else "no gap"
            lines.append(
                f"| {task} | {width} | {steps} | {full.text()} | {rival.text()} | {grown.text()} | {closed} |"
            )
    return lines


def parts_table(results: Results) -> list[str]:
    """The grown arm with its parts changed one by one: loss, and how much lower than as it is."""
    lines = ["| arm | mlp | | gpt | |", "| --- | --- | --- | --- | --- |"]
    rows: dict[str, list[str]] = {name: [] for name in [*VARIANTS, "full size, smaller batches"]}
    for task in ("mlp", "gpt"):
        setting = MAIN[task]
        arms = arms_of(setting, results)
        grown, rival = (results.tuned(arms[n]) for n in ("grown", "fewer steps, wsd"))
        if grown is None or rival is None:
            continue
        plain = Seeds(grown, results)
        for name, options in VARIANTS.items():
            one = Seeds(replace(grown, options=with_steps(options, setting)), results)
            rows[name] += [one.text(), one.minus(plain) if options else ""]
        smaller = Seeds(smaller_batch(rival, setting, results, 0), results)
        rows["full size, smaller batches"] += [smaller.text(), smaller.minus(plain)]
    return lines + [
        f"| {name} | {' | '.join(cells)} |"
        for name, cells in rows.items()
        if any(cell not in ("–", "") for cell in cells)
    ]


def tuning_table(results: Results) -> list[str]:
    """The loss of each arm at each rate that was tried, one seed."""
    lines = ["| task | arm | losses by learning rate |", "| --- | --- | --- |"]
    for task, setting in MAIN.items():
        for name, arm in arms_of(setting, results).items():
            tried = {
                rate: found["loss"]
                for rate in (0.5, 1.0, 2.0, 4.0)
                if (found := results.find(replace(arm, lr=arm.lr * rate))) is not None
            }
            if tried:
                cells = ", ".join(f"{arm.lr * r:g}: {loss:.3f}" for r, loss in tried.items())
                lines.append(f"| {task} | {name} | {cells} |")
    return lines


TABLES: dict[str, Callable[[Results], list[str]]] = {
    "main": main_table,
    "gap": gap_table,
    "map": map_table,
    "parts": parts_table,
    "tuning": tuning_table,
}


def fill(page: str, tables: dict[str, Iterable[str]]) -> str:
    """The page with its tables between their marks."""
    for name, lines in tables.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{chr(10).join(lines)}\n{end}{after}"
    return page


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/pays"))
    results = Results(parser.parse_args().out, None)
    tables: dict[str, Any] = {name: make(results) for name, make in TABLES.items()}
    DOCS.write_text(fill(DOCS.read_text(), tables))
    count = len(list(results.out.glob("*-*.json")))
    print(f"{DOCS} from {count} runs; settings: {', '.join(map(str, map(asdict, MAIN.values())))}")


if __name__ == "__main__":
    main()
