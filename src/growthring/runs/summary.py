"""The headline: one row for each configuration, and its form for the terminal."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from growthring.runs.configurations import Configuration, group_runs, reference_of
from growthring.runs.run import Run, read_runs

_LONGEST_NAME = 48


@dataclass(frozen=True)
class Spread:
    """The mean over runs, and their sample standard deviation where there are several."""

    mean: float
    deviation: float | None = None

    def percent(self, digits: int = 1) -> str:
        """Returns it as a percentage.

        >>> Spread(0.978, 0.002).percent(), Spread(0.5).percent()
        ('97.8 ± 0.2 %', '50.0 %')
        """
        deviation = "" if self.deviation is None else f" ± {100 * self.deviation:.{digits}f}"
        return f"{100 * self.mean:.{digits}f}{deviation} %"

    def plain(self, digits: int = 4) -> str:
        """Returns it with so many significant digits.

        >>> Spread(0.123456, 0.01).plain()
        '0.1235 ± 0.01'
        """
        deviation = "" if self.deviation is None else f" ± {self.deviation:.2g}"
        return f"{self.mean:.{digits}g}{deviation}"


@dataclass(frozen=True)
class Row:
    """One configuration: what it reached and what it cost.

    A share has a basis: "fixed" (of the fixed-size run given beside it), "counted" (of the run's own
    count of what fixed-size training costs), "planned" (nothing was measured) or "" (there is none).
    `state` is empty for finished runs.
    """

    run: str
    fixed: bool
    directories: tuple[str, ...]
    accuracy: Spread | None
    loss: Spread | None
    flops_share: Spread | None
    flops_basis: str
    seconds: Spread | None
    seconds_share: Spread | None
    seconds_basis: str
    parameters: int | None
    state: str


def summary_table(runs: Iterable[str | os.PathLike[str]]) -> list[Row]:
    """Returns one row for each configuration among the run directories.

    Runs that differ in their seeds only share a row. Shares are relative to the fixed-size run of the
    same name if a finished one is given, else to what the run itself, or its plan, says.

    >>> summary_table(["/no/such/run"])[0].state
    'no metrics'
    """
    return rows_of(group_runs(read_runs(runs)))


def rows_of(configurations: Sequence[Configuration]) -> list[Row]:
    """Returns the row of each configuration."""
    return [_row(c, reference_of(c, configurations)) for c in configurations]


def _row(configuration: Configuration, reference: Configuration | None) -> Row:
    counted = configuration.counted
    plan = configuration.first.plan
    flops, basis = _share(counted, reference, "flops"), "fixed"
    if flops is None:
        flops, basis = _spread(run.final("flops_share") for run in counted), "counted"
    if flops is None and plan.flops_share is not None:
        flops, basis = Spread(plan.flops_share), "planned"
    seconds, seconds_basis = _share(counted, reference, "seconds"), "fixed"
    if seconds is None and plan.seconds_share is not None:
        seconds, seconds_basis = Spread(plan.seconds_share), "planned"
    return Row(
        run=configuration.label,
        fixed=configuration.fixed,
        directories=tuple(str(run.path) for run in configuration.runs),
        accuracy=_spread(run.final("test_accuracy") for run in counted),
        loss=_spread(run.final("test_loss") for run in counted),
        flops_share=_exact(flops),
        flops_basis=basis if flops else "",
        seconds=_spread(run.final("seconds") for run in counted),
        seconds_share=seconds,
        seconds_basis=seconds_basis if seconds else "",
        parameters=next((p for run in counted if (p := run.parameters()) is not None), None),
        state=_state(configuration),
    )


def _spread(values: Iterable[float | None]) -> Spread | None:
    found = [value for value in values if value is not None]
    if not found:
        return None
    mean = statistics.fmean(found)
    return Spread(mean, statistics.stdev(found) if len(found) > 1 else None)


def _exact(share: Spread | None) -> Spread | None:
    """Drops a deviation that is only rounding: FLOPs are counted, and seeds cost the same."""
    alike = share is not None and (share.deviation or 0.0) <= 1e-6 * abs(share.mean)
    return Spread(share.mean) if share is not None and alike else share


def _share(runs: Sequence[Run], reference: Configuration | None, key: str) -> Spread | None:
    whole = _spread(run.final(key) for run in reference.counted) if reference else None
    if whole is None or whole.mean <= 0:
        return None
    values = (run.final(key) for run in runs)
    return _spread(value / whole.mean for value in values if value is not None)


def _state(configuration: Configuration) -> str:
    runs = configuration.runs
    num_finished = sum(run.finished for run in runs)
    if num_finished == len(runs):
        return ""
    if len(runs) > 1 and num_finished:
        return f"{num_finished} of {len(runs)} runs finished"
    done = max((run.epochs[-1].number for run in runs if run.epochs), default=None)
    if done is None:
        return "no metrics"
    total = sum(configuration.first.plan.epochs)
    return f"epoch {done:g} of {total:g}" if total else f"unfinished, epoch {done:g}"


def format_table(rows: Sequence[Row]) -> str:
    """Returns the rows as a table for the terminal.

    >>> row = Row(
    ...     "demo, grown",
    ...     False,
    ...     (),
    ...     Spread(0.978),
    ...     None,
    ...     Spread(0.52),
    ...     "fixed",
    ...     Spread(31.0),
    ...     Spread(0.61),
    ...     "fixed",
    ...     272474,
    ...     "",
    ... )
    >>> print(format_table([row]))
    run          accuracy   FLOPs  seconds  parameters
    demo, grown    97.8 %  52.0 %   61.0 %     272,474
    """
    if not rows:
        return "no runs"
    by_loss = all(row.accuracy is None for row in rows) and any(row.loss for row in rows)
    head = ["run", "test loss" if by_loss else "accuracy", "FLOPs", "seconds", "parameters"]
    states = any(row.state for row in rows)
    lines = [[*head, "state"] if states else head]
    for row in rows:
        quality = (row.loss and row.loss.plain()) if by_loss else _percent(row.accuracy)
        cells = [printable(row.run), quality or "-"]
        cells.append(_percent(row.flops_share, row.flops_basis))
        cells.append(_percent(row.seconds_share, row.seconds_basis))
        cells.append("-" if row.parameters is None else f"{row.parameters:,}")
        lines.append([*cells, row.state] if states else cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = {0, len(head)}
    table = [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    if any("planned" in (row.flops_basis, row.seconds_basis) for row in rows):
        table.append("* planned, not measured")
    return "\n".join(table)


def _percent(spread: Spread | None, basis: str = "") -> str:
    if spread is None:
        return "-"
    return spread.percent() + ("*" if basis == "planned" else "")


def printable(name: str) -> str:
    r"""Returns a name of any characters as a short one that a terminal can show.

    >>> printable("a\x1b[31m\nb")
    'a?[31m?b'
    """
    shown = "".join(c if c.isprintable() else "?" for c in name)
    if len(shown) <= _LONGEST_NAME:
        return shown
    half = (_LONGEST_NAME - 1) // 2
    return f"{shown[: _LONGEST_NAME - 1 - half]}…{shown[-half:]}"
