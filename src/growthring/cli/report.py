"""growthring report: a page and a table of runs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from growthring.cli.common import Commands
from growthring.errors import InputError
from growthring.files.foreign import shown
from growthring.report import write_report
from growthring.runs import format_table, summary_table
from growthring.runs.results import CLOCKS
from growthring.runs.run import read_runs


def add(commands: Commands) -> None:
    """Adds `growthring report`."""
    parser = commands.add_parser(
        "report",
        help="compare runs in a table and an HTML page",
        description="Prints accuracy, FLOPs and seconds of runs, and writes a self-contained page with their "
        "curves, stages and rates. Runs that differ in nothing but the seed are averaged. Damaged runs are named "
        "and shown as far as they go; nothing that a run folder names is run.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="default report.html")
    parser.add_argument("--title", default="growthring report")
    parser.add_argument(
        "--clock",
        choices=tuple(CLOCKS),
        default="wall",
        help="what seconds are in all charts and tables: by the clock, or of the processor",
    )
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.set_defaults(run=_run, gathers="runs")


def _run(arguments: argparse.Namespace) -> None:
    runs = [Path(run) for run in arguments.runs]
    missing = [run for run in runs if not run.is_dir()]
    if missing:
        raise InputError(f"there is no folder '{missing[0]}'.")
    write_report(runs, Path(arguments.out), title=arguments.title, clock=arguments.clock)
    rows = summary_table(runs, arguments.clock)
    for run in read_runs(runs):
        for problem in run.problems:
            print(shown(f"growthring: '{run.path}' is damaged: {problem}"), file=sys.stderr)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], default=str))
        return
    print(format_table(rows, arguments.clock))
    print(f"wrote {arguments.out}")
