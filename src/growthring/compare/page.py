"""The page of a comparison: its table, its plot and the curves of its runs, in one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from growthring.compare.manifest import Manifest
from growthring.compare.plot import plot
from growthring.compare.standings import Standing
from growthring.compare.table import cells, notes
from growthring.core.wording import counted
from growthring.report.curves import curve_section, learning_rate_chart
from growthring.report.markup import chart_box, details, table, tag, text
from growthring.report.page import Section, page
from growthring.report.seen import seen_sections
from growthring.runs.clocks import by_clock
from growthring.runs.configurations import Configuration
from growthring.runs.run import Run, read_run
from growthring.runs.values import number

_RATES = (
    "The schedule sets one learning rate for the whole network.",
    "A ring is what one stage added to a parameter. An optimizer that knows the rings multiplies the learning rate "
    "of each by its rate factor; growthring report RUN shows them.",
)


def render(
    rows: Sequence[Standing], manifest: Manifest, configurations: Sequence[Configuration]
) -> str:
    """The page as HTML, of a comparison's rows and the runs of these."""
    num_runs = sum(len(row.runs) for row in rows)
    count = f"{counted(num_runs, 'finished run')} of {counted(len(rows), 'contender')}"
    sections = [
        Section("Result", "headline", lambda: _table(rows, manifest)),
        Section("Results and cost", "costs", lambda: _plot(rows, manifest)),
        Section("Curves", "curves", lambda: curve_section(configurations, manifest.clock)),
        *seen_sections(configurations, manifest.clock),
        Section("Learning rate", "rates", lambda: learning_rate_chart(configurations, _RATES)),
        Section("Contenders", "contenders", lambda: _contenders(rows)),
    ]
    return page(f"Comparison: {manifest.settings.get('name', '')}", count, sections)


def _plot(rows: Sequence[Standing], manifest: Manifest) -> str:
    return tag("figure", chart_box(plot(rows, manifest.clock), "wide"))


def _table(rows: Sequence[Standing], manifest: Manifest) -> str:
    lines = [[text(cell) for cell in line] for line in cells(rows, manifest.clock)]
    told = tag("ul", *(tag("li", text(note)) for note in notes(rows, manifest)), class_="notes")
    caption = "What was reached, and its cost in % of fixed-size training"
    return table(caption, lines[0], lines[1:]) + told


def _contenders(rows: Sequence[Standing]) -> str:
    body = [[text(row.name), text(row.text), text(", ".join(row.settings) or "–")] for row in rows]
    shown = table("Contenders", ["contender", "what it is", "settings"], body, numeric=False)
    return details("What they are, and what they change of the recipe", shown, opened=True)


def configurations_of(out: Path, rows: Sequence[Standing], clock: str) -> list[Configuration]:
    """The finished runs of each row, with shares of FLOPs that are of the same whole for all."""
    read = {row.name: tuple(read_run(out / run) for run in row.runs) for row in rows if row.runs}
    whole = next((flops for run in read.get("fixed", ()) if (flops := run.final("flops"))), None)
    return [
        Configuration(name, tuple(by_clock(_rescaled(run, whole), clock) for run in runs))
        for name, runs in read.items()
    ]


def _rescaled(run: Run, whole: float | None) -> Run:
    """A run counts in shares of fixed-size training for its own length, which may be less."""
    if not whole:
        return run
    epochs = [
        replace(e, flops_share=None if (flops := number(e.flops)) is None else flops / whole)
        for e in run.epochs
    ]
    return replace(run, epochs=epochs)
