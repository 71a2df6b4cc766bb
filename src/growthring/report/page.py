"""The report: one HTML file that needs no network, out of run directories."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from growthring.errors import GrowthError
from growthring.files.atomic import write_bytes
from growthring.report.curves import curve_section
from growthring.report.groups import group_runs
from growthring.report.markup import counted, tag, text
from growthring.report.rates import rate_section
from growthring.report.runs import read_runs
from growthring.report.stages import stage_section
from growthring.report.style import SCRIPT, stylesheet
from growthring.report.summary import rows_of
from growthring.report.tables import growth_section, headline, note_section, settings_section

# The page asks nobody for anything: the browser is told to hold it to that.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

TITLE = "growthring report"


class ReportError(GrowthError, RuntimeError):
    """A report could not be written."""


def render(runs: Iterable[str | os.PathLike[str]], title: str = TITLE) -> str:
    """Returns the report on some run directories as HTML.

    Runs that are unfinished, empty or damaged are shown as far as they go.

    >>> "No runs were given" in render([])
    True
    """
    configurations = group_runs(read_runs(runs))
    rows = rows_of(configurations)
    num_runs = sum(len(c.runs) for c in configurations)
    sections = [
        ("Result", "headline", headline(rows)),
        ("Curves", "curves", curve_section(configurations)),
        ("Stages", "stage-diagrams", stage_section(configurations)),
        ("Rate factors per ring", "rates", rate_section(configurations)),
        ("Growths", "growths", growth_section(configurations)),
        ("Settings and machine", "settings", settings_section(configurations)),
        ("Notes", "notes-section", note_section(configurations, rows)),
    ]
    count = counted(num_runs, "run")
    if num_runs > len(configurations):
        count += f" of {counted(len(configurations), 'configuration')}"
    parts = [tag("header", tag("h1", text(title)), tag("p", text(f"growthring · {count}")))]
    parts += [
        tag(
            "section",
            tag("h2", text(name), id=f"{key}-title"),
            content,
            class_=key,
            aria_labelledby=f"{key}-title",
        )
        for name, key, content in sections[: len(sections) if configurations else 1]
    ]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", text(title)),
        f"<style>{stylesheet()}</style>",
    ]
    tip = tag("div", id="tip", role="status", hidden="hidden")
    body = tag("body", tag("main", *parts), tip, f"<script>{SCRIPT}</script>")
    return f'<!DOCTYPE html>\n<html lang="en">\n{tag("head", *head)}\n{body}\n</html>\n'


def write_report(
    runs: Iterable[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    title: str = TITLE,
) -> Path:
    """Writes the report on some run directories, whole or not at all, and returns its path.

    Raises:
        ReportError: the file cannot be written; one that was there before is as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report([], Path(folder) / "report.html").name
    'report.html'
    """
    target = Path(path)
    content = render(runs, title).encode("utf-8")
    try:
        write_bytes(target, content)
    except OSError as error:
        raise ReportError(
            f"cannot write the report '{target}': {error.strerror or error}. Check that its folder "
            "exists, who may write there, and the space on the disk."
        ) from error
    return target
