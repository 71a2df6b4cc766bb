"""The report on run folders: its sections, and its file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from growthring.checkpoint import CheckpointError, write_text
from growthring.core.wording import counted
from growthring.errors import GrowthError
from growthring.report.curves import curve_section
from growthring.report.page import Section, page
from growthring.report.rates import rate_section
from growthring.report.samples import has_samples, sample_section
from growthring.report.seen import seen_sections
from growthring.report.stages import stage_section
from growthring.report.tables import growth_section, headline, note_section, settings_section
from growthring.runs.clocks import by_clock
from growthring.runs.configurations import Configuration, group_runs
from growthring.runs.run import read_runs
from growthring.runs.summary import rows_of

TITLE = "growthring report"


class ReportError(GrowthError, RuntimeError):
    """A report could not be written."""


def sections_of(configurations: Sequence[Configuration], clock: str = "wall") -> list[Section]:
    """What the report on some runs consists of; their seconds are by the clock."""
    rows = rows_of(configurations)
    result = Section("Result", "headline", lambda: headline(rows, clock))
    if not configurations:
        return [result]
    samples = Section("Samples", "samples", lambda: sample_section(configurations))
    return [
        result,
        *([samples] if has_samples(configurations) else []),
        Section("Curves", "curves", lambda: curve_section(configurations, clock)),
        *seen_sections(configurations, clock),
        Section("Stages", "stage-diagrams", lambda: stage_section(configurations)),
        Section("Learning rates", "rates", lambda: rate_section(configurations)),
        Section("Growths", "growths", lambda: growth_section(configurations, clock)),
        Section("Settings and machine", "settings", lambda: settings_section(configurations)),
        Section("Notes", "notes-section", lambda: note_section(configurations, rows, clock)),
    ]


def render(runs: Iterable[str | os.PathLike[str]], title: str = TITLE, clock: str = "wall") -> str:
    """The report on some run folders as HTML.

    Runs that are unfinished, empty or damaged are shown as far as they go. All times are by the clock "wall" or
    "cpu".

    >>> "No runs were given" in render([])
    True
    """
    configurations = group_runs([by_clock(run, clock) for run in read_runs(runs)])
    num_runs = sum(len(c.runs) for c in configurations)
    count = counted(num_runs, "run")
    if num_runs > len(configurations):
        count += f" of {counted(len(configurations), 'configuration')}"
    return page(title, count, sections_of(configurations, clock))


def write_report(
    runs: Iterable[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    title: str = TITLE,
    clock: str = "wall",
) -> Path:
    """Writes the report on some run folders, whole or not at all, and returns its path.

    Raises:
        ReportError: the file cannot be written; one that was there before is as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report([], Path(folder) / "report.html").name
    'report.html'
    """
    target = Path(path)
    try:
        write_text(target, render(runs, title, clock))
    except CheckpointError as error:
        raise ReportError(str(error)) from error
    return target
