"""The headline: one row for each configuration, and its form for the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from growthring.runs.clocks import by_clock, clock_words
from growthring.runs.configurations import Configuration, group_runs, reference_of
from growthring.runs.metrics import FORGETTING, Metric
from growthring.runs.run import Run, headline, read_runs
from growthring.runs.spread import Spread, spread, without_rounding
from growthring.runs.texttable import aligned, printable


@dataclass(frozen=True)
class Row:
    """One configuration: what it reached and what it cost.

    A share has a basis: "fixed" (of the fixed-size run given beside it), "counted" (of the run's own
    count of what fixed-size training costs), "planned" (nothing was measured) or "" (there is none).
    `state` is empty for finished runs; `quality` is by the `metric` that all rows share. `forgetting` is of runs on
    data that grows.
    """

    run: str
    fixed: bool
    directories: tuple[str, ...]
    metric: Metric
    quality: Spread | None
    flops_share: Spread | None
    flops_basis: str
    seconds: Spread | None
    seconds_share: Spread | None
    seconds_basis: str
    parameters: int | None
    state: str
    forgetting: Spread | None = None


def summary_table(runs: Iterable[str | os.PathLike[str]], clock: str = "wall") -> list[Row]:
    """One row for each configuration among the run directories.

    Runs that differ in their seeds only share a row. Shares are relative to the fixed-size run of the
    same name if a finished one is given, else to what the run itself, or its plan, says. Seconds are by
    the clock "wall" or "cpu".

    >>> summary_table(["/no/such/run"])[0].state
    'no metrics'
    """
    return rows_of(group_runs([by_clock(run, clock) for run in read_runs(runs)]))


def rows_of(configurations: Sequence[Configuration]) -> list[Row]:
    """The row of each configuration."""
    metric = headline([run for c in configurations for run in c.runs])
    return [_row(c, reference_of(c, configurations), metric) for c in configurations]


def _row(configuration: Configuration, reference: Configuration | None, metric: Metric) -> Row:
    counted = configuration.counted
    plan = configuration.first.plan
    flops, basis = _share(counted, reference, "flops"), "fixed"
    if flops is None:
        flops, basis = spread(run.final("flops_share") for run in counted), "counted"
    if flops is None and plan.flops_share is not None:
        flops, basis = Spread(plan.flops_share), "planned"
    seconds, seconds_basis = _share(counted, reference, "seconds"), "fixed"
    if seconds is None and plan.seconds_share is not None:
        seconds, seconds_basis = Spread(plan.seconds_share), "planned"
    return Row(
        run=configuration.label,
        fixed=configuration.fixed,
        directories=tuple(str(run.path) for run in configuration.runs),
        metric=metric,
        quality=spread(run.final(metric.key) for run in counted),
        flops_share=without_rounding(flops),
        flops_basis=basis if flops else "",
        seconds=spread(run.final("seconds") for run in counted),
        seconds_share=seconds,
        seconds_basis=seconds_basis if seconds else "",
        parameters=next((p for run in counted if (p := run.parameters()) is not None), None),
        state=state_of(configuration),
        forgetting=spread(run.final(FORGETTING.key) for run in counted),
    )


def _share(runs: Sequence[Run], reference: Configuration | None, key: str) -> Spread | None:
    whole = spread(run.final(key) for run in reference.counted) if reference else None
    if whole is None or whole.mean <= 0:
        return None
    values = (run.final(key) for run in runs)
    return spread(value / whole.mean for value in values if value is not None)


def state_of(configuration: Configuration) -> str:
    """How far the runs are; empty if all are finished."""
    runs = configuration.runs
    num_finished = sum(run.finished for run in runs)
    if num_finished == len(runs):
        return ""
    if len(runs) > 1 and num_finished:
        return f"{num_finished} of {len(runs)} runs finished"
    done = max((run.done for run in runs if run.epochs), default=None)
    if done is None:
        return "no metrics"
    plan = configuration.first.plan
    total, one = sum(plan.lengths), plan.unit.removesuffix("s")
    return f"{one} {done:g} of {total:g}" if total else f"unfinished, {one} {done:g}"


def format_table(rows: Sequence[Row], clock: str = "wall") -> str:
    """The rows as a table for the terminal; their seconds are by the clock.

    >>> from growthring.runs.metrics import ACCURACY
    >>> row = Row(
    ...     "demo, grown",
    ...     False,
    ...     (),
    ...     ACCURACY,
    ...     Spread(0.978),
    ...     Spread(0.52),
    ...     "fixed",
    ...     Spread(31.0),
    ...     Spread(0.61),
    ...     "fixed",
    ...     272474,
    ...     "",
    ... )
    >>> print(format_table([row]))
    run          test accuracy   FLOPs  seconds  parameters
    demo, grown        97.80 %  52.0 %   61.0 %     272,474
    """
    if not rows:
        return "no runs"
    metric = rows[0].metric
    forget = metric != FORGETTING and any(row.forgetting for row in rows)
    head = ["run", metric.title, *([FORGETTING.name] if forget else []), "FLOPs"]
    head += [clock_words("seconds", clock), "parameters"]
    states = any(row.state for row in rows)
    lines = [[*head, "state"] if states else head]
    for row in rows:
        cells = [printable(row.run), "-" if row.quality is None else metric.text(row.quality)]
        if forget:
            cells.append("-" if row.forgetting is None else FORGETTING.text(row.forgetting))
        cells.append(_percent(row.flops_share, row.flops_basis))
        cells.append(_percent(row.seconds_share, row.seconds_basis))
        cells.append("-" if row.parameters is None else f"{row.parameters:,}")
        lines.append([*cells, row.state] if states else cells)
    table = aligned(lines, left={0, len(head)})
    if any("planned" in (row.flops_basis, row.seconds_basis) for row in rows):
        table += "\n* planned, not measured"
    return table


def _percent(spread: Spread | None, basis: str = "") -> str:
    if spread is None:
        return "-"
    return spread.percent() + ("*" if basis == "planned" else "")
