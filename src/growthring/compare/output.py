"""The files of a comparison: table, results, plot and page, made from its manifest and its runs alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from growthring.checkpoint import write_json, write_text
from growthring.compare.manifest import Manifest, read_manifest
from growthring.compare.page import configurations_of, render
from growthring.compare.plot import plot
from growthring.compare.stage_plot import stage_plot
from growthring.compare.standings import Standing, read_standings
from growthring.compare.stored import flat
from growthring.compare.table import markdown
from growthring.compare.verdict import verdicts
from growthring.errors import InputError

STAGES = "stages.svg"


def write_outputs(out: str | Path, with_page: bool = True) -> list[Standing]:
    """Writes table.md, results.json, accuracy-cost.svg and report.html from the runs that are finished.

    Of runs on data that grows, stages.svg too.

    Args:
        out: folder of the comparison.
        with_page: whether report.html and stages.svg are written too, which reads all metrics.

    Returns:
        The rows of the table.
    """
    out = Path(out)
    manifest = manifest_of(out)
    rows = read_standings(out, manifest)
    write_json(out / "results.json", results(rows, manifest))
    write_text(out / "table.md", markdown(rows, manifest))
    write_text(out / "accuracy-cost.svg", plot(rows, manifest.clock) + "\n")
    if with_page:
        configurations = configurations_of(out, rows, manifest.clock)
        write_text(out / "report.html", render(rows, manifest, configurations))
        if svg := stage_plot(configurations):
            write_text(out / STAGES, svg + "\n")
    return rows


def manifest_of(out: Path) -> Manifest:
    """The manifest of a folder that holds a comparison."""
    manifest = read_manifest(out)
    if manifest is None:
        raise InputError(f"'{out}' holds no comparison: there is no comparison.json in it.")
    return manifest


def results(rows: Sequence[Standing], manifest: Manifest) -> dict[str, Any]:
    """Everything about a comparison as one JSON object; paths are relative to its folder."""
    fields = dataclasses.asdict(manifest)
    return {
        **{key: fields[key] for key in ("recipe", "changes", "settings", "clock", "machine")},
        **{"match": fields["match"], "seeds": manifest.seeds},
        "decisions": {name: flat(decision) for name, decision in manifest.decisions.items()},
        "verdicts": [dataclasses.asdict(verdict) for verdict in verdicts(rows, manifest)],
        "rows": [row.as_dict() for row in rows],
    }
