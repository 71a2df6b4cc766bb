"""Clocks: what seconds are, by the clock on the wall or of the processor, which other work does not add to."""

from __future__ import annotations

from dataclasses import replace

from growthring.runs.results import CLOCKS
from growthring.runs.run import Run

_PREFIX = {"wall": "", "cpu": "CPU "}


def clock_words(what: str, clock: str) -> str:
    """What to call seconds or time by a clock.

    >>> clock_words("seconds", "wall"), clock_words("time", "cpu")
    ('seconds', 'CPU time')
    """
    return f"{_PREFIX[clock]}{what}"


def by_clock(run: Run, clock: str) -> Run:
    """The run with all its seconds by a clock; what was not recorded by that one is None.

    Args:
        run: as it was read, whose seconds are those of the wall.
        clock: "wall" or "cpu".
    """
    if clock == "wall":
        return run
    key = CLOCKS[clock]
    return replace(
        run,
        plan=replace(run.plan, seconds_share=None),  # planned by the wall
        epochs=[replace(epoch, seconds=epoch.cpu_seconds) for epoch in run.epochs],
        growths=[replace(growth, seconds=growth.cpu_seconds) for growth in run.growths],
        stages=tuple(replace(stage, seconds=stage.cpu_seconds) for stage in run.stages),
        result=None if run.result is None else {**run.result, "seconds": run.result.get(key)},
    )
