"""Tables in Markdown, and a page with tables between its marks."""

from __future__ import annotations

from collections.abc import Iterable

from scripts.pays.cells import Results, Setting
from scripts.pays.run import Run

BEGIN, END = "<!-- begin {} -->", "<!-- end {} -->"


def table(*columns: str) -> list[str]:
    """The head of a table."""
    return [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]


def row(*cells: object) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def seconds_text(results: Results, setting: Setting, run: Run) -> str:
    """CPU seconds of a run in percent of full size."""
    share = results.seconds_share(run, setting)
    return "–" if share is None else f"{100 * share:.0f}"


def fill(page: str, tables: dict[str, Iterable[str]]) -> str:
    """The page with its tables between their marks."""
    for name, lines in tables.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{chr(10).join(lines)}\n{end}{after}"
    return page
