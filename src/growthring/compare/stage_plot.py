"""Accuracy at the end of each stage of data that grows, as one SVG that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from growthring.compare.plot import standalone
from growthring.report.charts import ChartAxis, Line, chart_svg
from growthring.report.markup import tag, text
from growthring.report.seen import at_stage, stage_axis, stage_lines
from growthring.runs.configurations import Configuration
from growthring.runs.metrics import ACCURACY
from growthring.runs.stages import staged

_WIDTH, _HEIGHT, _TOP, _ROW = 640, 360, 24, 20
_NAME = "Accuracy at the end of each stage, on the classes seen so far"


def stage_plot(configurations: Sequence[Configuration]) -> str:
    """The SVG; empty if no run has come to the end of a stage of its data.

    >>> stage_plot([])
    ''
    """
    shown = staged(configurations)
    lines = [line for line in stage_lines(configurations, shown, at_stage) if line.points]
    if not lines:
        return ""
    y, size = ChartAxis(ACCURACY.title, ACCURACY.unit), (_WIDTH, _HEIGHT)
    chart = chart_svg(_NAME, lines, stage_axis(shown), y, size=size, corner=(0, _TOP))
    legend, height = _legend(lines, _TOP + _HEIGHT + _ROW)
    title = tag("text", text(_NAME), x=2, y=14, class_="title")
    return standalone([title, chart, *legend], (_WIDTH, height), _NAME)


def _legend(lines: Sequence[Line], top: int) -> tuple[list[str], int]:
    """The names with their looks, in as many rows as they need, and where these end."""
    parts, x, y = [], 10.0, top
    for line in lines:
        width = 50 + 7.0 * len(line.label)
        if x > 10 and x + width > _WIDTH:
            x, y = 10.0, y + _ROW
        look = {"style": f"stroke:{line.colour}", "stroke_dasharray": line.dash}
        parts.append(tag("path", d=f"M{x:.0f},{y - 4}l28,0", class_="curve", **look))
        parts.append(tag("text", text(line.label), x=f"{x + 34:.0f}", y=y, class_="label"))
        x += width
    return parts, y + _ROW // 2
