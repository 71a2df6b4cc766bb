"""The tables and the figure of the study's pages in docs/: python -m scripts.pays.page [--out results/pays]."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from growthring.train.advice import saving, share_closed
from scripts.pays.advice import path_of, pilots_of, settings
from scripts.pays.cells import (
    AT_HALF,
    HALF,
    LATE,
    MAP,
    PAPER,
    PAPER_RATES,
    RATES,
    TIMES,
    VARIANTS,
    Results,
    Setting,
    arms_of,
    at_equal_seconds,
    smaller_batch,
    statics,
    variant,
)
from scripts.pays.curves import Seeds, arm, begun, better_rival, closed, savings, share_of, spread
from scripts.pays.language import TABLES as LANGUAGE_TABLES
from scripts.pays.run import Run
from scripts.pays.tables import fill, row, seconds_text, table

DOCS = Path("docs/when-it-pays.md")
SCHEDULES, GROWN_AT = ("wsd", "linear", "cosine"), (0.25, 0.5, 0.7)


def percents(shares: Iterable[float]) -> str:
    """Mean ± deviation of shares, in percent."""
    return spread([100 * share for share in shares], 0)


def main_table(results: Results) -> list[str]:
    """Each task: full size, its rivals at equal cost, grown; costs, and the saving at equal loss."""
    lines = table(
        "task", "arm", "lr", "loss", "accuracy %", "FLOPs %", "seconds %", "saves FLOPs %"
    )
    for task, setting in begun(results).items():
        arms = {name: arm(results, setting, name) for name in arms_of(setting, results)}
        arms |= {name: Seeds(run, results) for name, run in _others(results, setting).items()}
        full = arms["full"]
        for name, one in arms.items():
            if not one or not full or one.run is None:
                continue
            cost = one.mean("flops") / full.mean("flops")
            saved = "–"
            if name.startswith("grown") or name.startswith("width"):
                saved = percents(savings(results, setting, one, cost))
            lines.append(
                row(
                    task,
                    name,
                    f"{one.run.lr:g}",
                    one.text(),
                    one.text("accuracy", 100, 1),
                    f"{100 * cost:.0f}",
                    seconds_text(results, setting, one.run),
                    saved,
                )
            )
    return lines


def _others(results: Results, setting: Setting) -> dict[str, Run | None]:
    """Arms beside the four: at equal seconds, as in the paper, and the best width at equal FLOPs."""
    found: dict[str, Run | None] = {}
    try:
        found["as many seconds"] = at_equal_seconds(setting, results)
        found["grown as in the paper"] = results.tuned(setting.run(**PAPER), PAPER_RATES)
    except LookupError:  # not begun
        return found
    done = {width: one for width, one in static_seeds(results, setting).items() if one}
    if done:
        best = min(done, key=lambda width: done[width].mean())
        found[f"width {best} at equal FLOPs"] = done[best].run
    return found


def static_seeds(results: Results, setting: Setting) -> dict[int, Seeds]:
    """Networks of other widths at the grown run's FLOPs, by width; nothing where these were not begun."""
    try:
        runs = statics(setting, results).values()
    except LookupError:
        return {}
    return {run.width: Seeds(results.tuned(run), results) for run in runs}


def gap_table(results: Results) -> list[str]:
    """How far a grown run ends from full size at the same step, by schedule and time of growth."""
    lines = table("task", "schedule", "full size", *(f"grown at {t:.0%}" for t in GROWN_AT))
    for task, by_schedule in gaps(results).items():
        for schedule, (base, grown) in by_schedule.items():
            cells = [grown[time].minus(base) if grown[time] else "–" for time in GROWN_AT]
            lines.append(row(task, schedule, base.text(), *cells))
    return lines


Gaps = dict[str, dict[str, tuple[Seeds, dict[float, Seeds]]]]


def gaps(results: Results) -> Gaps:
    """By task and schedule: full size, and the grown runs by the time of their growth."""
    found: Gaps = {}
    for task, setting in begun(results).items():
        best = results.best(setting, "full")
        for schedule in SCHEDULES if best is not None else ():
            assert best is not None
            base = replace(best, schedule=schedule)
            grown = {
                time: Seeds(replace(base, start=0.5, grown_at=time), results) for time in GROWN_AT
            }
            if (full := Seeds(base, results)) and any(grown.values()):
                found.setdefault(task, {})[schedule] = (full, grown)
    return {task: by_schedule for task, by_schedule in found.items() if len(by_schedule) > 1}


def map_table(results: Results) -> list[str]:
    """Other widths and lengths: what growing saves at equal loss."""
    lines = table(
        *("task", "width", "of the best", "steps", "grown at %", "full size", "at equal FLOPs"),
        *("grown", "gap closed %", "saves FLOPs %", "saves seconds %"),
    )
    for task, setting in begun(results).items():
        best = best_width(results, setting)
        budget = arm(results, setting, "full").mean("flops")
        sizes = [(setting.width, setting.steps), *MAP[task]]
        for (width, steps), grown_at in itertools.product(sizes, (LATE, HALF)):
            other = replace(setting, width=width, steps=steps, grown_at=grown_at)
            full, grown = arm(results, other, "full"), arm(results, other, "grown")
            rival = better_rival(results, other)
            if not (full and grown and rival) or grown.run is None:
                continue
            seconds = results.seconds_share(grown.run, other)
            costs_as_much = math.isclose(full.mean("flops"), budget, rel_tol=0.02)
            oversize = f"{width / best:g} ×" if best and costs_as_much else "–"
            lines.append(
                row(
                    *(task, width, oversize, steps, f"{100 * grown_at:.0f}"),
                    *(full.text(), rival.text(), grown.text()),
                    percents(closed(results, other, grown)),
                    percents(savings(results, other, grown, share_of(results, other))),
                    "–" if seconds is None else percents(savings(results, other, grown, seconds)),
                )
            )
    return lines


def best_width(results: Results, setting: Setting) -> int | None:
    """The width that is best for the FLOPs of the grown run, of those tried; None while they are missing."""
    others = static_seeds(results, setting)
    found = {setting.width: better_rival(results, setting), **others}
    if not others or not all(found.values()):
        return None
    return min(found, key=lambda width: found[width].mean())


def times_table(results: Results) -> list[str]:
    """From which width and until when: loss, cost, and the saving at equal loss."""
    tasks = list(begun(results))
    lines = table("grown from", *(f"{task}: loss | FLOPs % | saves %" for task in tasks))
    lines[1] = "|" + " --- |" * (1 + 3 * len(tasks))
    for name, changes in TIMES.items():
        cells = []
        for task in tasks:
            setting = AT_HALF[task]
            grown = results.best(setting, "grown")
            one = Seeds(None if grown is None else replace(grown, **changes), results)
            if not one or one.run is None:
                cells += ["–"] * 3
                continue
            cost = one.mean("flops") / arm(results, setting, "full").mean("flops")
            saved = percents(savings(results, setting, one, cost))
            cells += [one.text(), f"{100 * cost:.0f}", saved]
        if any(cell != "–" for cell in cells):
            lines.append(row(name, *cells))
    return lines


def parts_table(results: Results) -> list[str]:
    """The grown arm with its parts changed one by one: how much lower its loss is than as it was."""
    tasks = ("gpt", "resnet", "mlp")
    lines = table("arm", *tasks)
    columns = {task: _parts(results, AT_HALF[task]) for task in tasks}
    for name in [*VARIANTS, "full size, smaller batches"]:
        cells = [columns[task].get(name, "–") for task in tasks]
        if any(cell != "–" for cell in cells):
            lines.append(row(name, *cells))
    return lines


def _parts(results: Results, setting: Setting) -> dict[str, str]:
    grown = results.best(setting, "grown")
    rival = results.best(setting, "fewer steps, wsd")
    if grown is None or rival is None:
        return {}
    plain, cells = Seeds(grown, results), {}
    for name, changes in VARIANTS.items():
        if one := Seeds(variant(grown, changes), results):
            cells[name] = f"{one.minus(plain)} ({len(one.results)})" if changes else plain.text()
    if smaller := Seeds(smaller_batch(rival, setting, 0), results):
        cells["full size, smaller batches"] = f"{smaller.minus(plain)} ({len(smaller.results)})"
    return cells


def static_table(results: Results) -> list[str]:
    """Networks of one width at the grown run's FLOPs."""
    lines = table("task", "a quarter", "half", "full width", "twice", "grown")
    for task, setting in begun(results).items():
        others = static_seeds(results, setting)
        if any(others.values()):
            quarter, half, twice = others.values()
            full, grown = better_rival(results, setting), arm(results, setting, "grown")
            lines.append(row(task, *(one.text() for one in (quarter, half, full, twice, grown))))
    return lines


def tuning_table(results: Results) -> list[str]:
    """The loss of each arm at each rate that was tried, one seed."""
    lines = table("task", "arm", "losses by learning rate")
    for task, setting in begun(results).items():
        arms = arms_of(setting, results)
        arms |= {f"{name}, at half": one for name, one in arms_of(AT_HALF[task], results).items()}
        del arms["full, at half"]  # the same
        for name, one in arms.items():
            tried = {
                rate: found["loss"]
                for rate in RATES
                if (found := results.find(replace(one, lr=one.lr * rate))) is not None
            }
            if tried:
                losses = (f"{one.lr * rate:g}: {loss:.3f}" for rate, loss in tried.items())
                lines.append(row(task, name, ", ".join(losses)))
    return lines


def advice_table(results: Results) -> list[str]:
    """What pilots foretold, and what complete runs came to."""
    lines = table(
        *(
            "task",
            "width",
            "steps",
            "pilots of",
            "foretold: saves FLOPs %",
            "complete runs: saves %",
        ),
        *("advice", "was it right?"),
    )
    for setting in settings():
        path, grown = path_of(setting, results.out), arm(results, setting, "grown")
        if not path.exists() or not grown:
            continue
        share = share_of(results, setting)
        saved = savings(results, setting, grown, share)
        if not saved:
            continue
        pilots = pilots_of(setting, results.out)
        closed_share, pays = share_closed(pilots, setting.steps), sum(saved) / len(saved) > 0
        told = None if closed_share is None else saving(closed_share, share, share)
        grows, is_open = told is not None and told.is_gain, told is not None and told.is_open
        lines.append(
            row(
                *(setting.task, setting.width, setting.steps),
                " and ".join(f"{steps}" for steps in sorted({p.steps for p in pilots})) + " steps",
                "no gap" if told is None else f"{100 * told.mean:.0f} ± {100 * told.error:.0f}",
                percents(saved),
                "grow" if grows else "cannot tell" if is_open else "full size",
                "–" if is_open else "yes" if grows == pays else "**no**",
            )
        )
    return lines


def figure(results: Results, path: Path) -> None:
    """The gap to the full-size curve at the end, over the time of the growth."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "growthring"
    from matplotlib import pyplot

    found = gaps(results)
    size = (3.2 * len(found), 2.9)
    _, axes = pyplot.subplots(1, len(found), figsize=size, layout="constrained", squeeze=False)
    for axis, (task, by_schedule) in zip(axes[0], found.items(), strict=True):
        for schedule, (base, grown) in by_schedule.items():
            times = [time for time in GROWN_AT if grown[time]]
            gains = [
                [base[s] - grown[t][s] for s in grown[t].results if s in base.results]
                for t in times
            ]
            means = [sum(one) / len(one) for one in gains]
            errors = [(max(one) - min(one)) / 2 for one in gains]
            axis.errorbar([100 * t for t in times], means, errors, marker="o", label=schedule)
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set_title(task)
        axis.set_xlabel("grown at, % of the run")
    axes[0][0].set_ylabel("full size's loss minus grown's")
    axes[0][0].legend(frameon=False)
    pyplot.savefig(path, metadata={"Date": None})


TABLES: dict[str, Callable[[Results], list[str]]] = {
    "main": main_table,
    "times": times_table,
    "gap": gap_table,
    "map": map_table,
    "parts": parts_table,
    "static": static_table,
    "tuning": tuning_table,
    "advice": advice_table,
}
PAGES = {DOCS: TABLES, DOCS.parent / "language-models.md": LANGUAGE_TABLES}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/pays"))
    parser.add_argument("--print", action="store_true", help="print the tables, change nothing")
    args = parser.parse_args()
    results = Results(args.out, None)
    for page, makers in PAGES.items():
        tables: dict[str, Any] = {name: make(results) for name, make in makers.items()}
        if args.print:
            print("\n\n".join("\n".join(lines) for lines in tables.values()) + "\n")
        else:
            page.write_text(fill(page.read_text(), tables))
    if args.print:
        return
    figure(results, DOCS.parent / "gap.svg")
    print(f"{', '.join(map(str, PAGES))} from {len(list(results.out.glob('*-*.json')))} runs")


if __name__ == "__main__":
    main()
