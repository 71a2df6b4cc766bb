"""Accuracy against cost as one SVG that needs nothing else: two charts, a labelled point per contender."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from growthring.compare.contenders import FIXED, MATCHED
from growthring.compare.labels import Box, place
from growthring.compare.standings import Standing
from growthring.report.charts import x_axis_parts
from growthring.report.colours import line_styles, variables
from growthring.report.markup import tag, text
from growthring.report.scales import Scale, fit, tick_labels
from growthring.runs import Spread
from growthring.runs.clocks import clock_words
from growthring.runs.metrics import ACCURACY, Metric

_WIDTH, _HEIGHT, _GAP = 520, 400, 30
_TOP, _BOTTOM = 44, _HEIGHT - 46
_STYLE = """
svg.costs{color-scheme:light dark;--card:#fff;--ink:#1d2126;--soft:#5c6168;--grid:#eceef0;LIGHT
font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
@media(prefers-color-scheme:dark){svg.costs{--card:#1c2024;--ink:#e7eaed;--soft:#a2a9b1;--grid:#2a2f35;DARK}}
svg.costs text{font-size:12px;fill:var(--soft);font-variant-numeric:tabular-nums}
svg.costs .title{font-weight:600;font-size:14px;fill:var(--ink)}
svg.costs .axis-title,svg.costs .label{fill:var(--ink)}
svg.costs .back{fill:var(--card)}.costs .grid{stroke:var(--grid)}.costs .base{stroke:var(--soft)}
svg.costs .spread{stroke-width:1.5;opacity:.7}.costs .lead{stroke:var(--soft);stroke-width:.7}
svg.costs .curve{fill:none;stroke-width:2;stroke-linejoin:round}svg.costs .band{opacity:.13}
svg.costs .fixed-line{fill:none;stroke:var(--c6);stroke-width:1.5;stroke-dasharray:5 4;opacity:.8}
"""


@dataclass(frozen=True)
class Point:
    """A contender in one of the charts."""

    name: str
    x: Spread
    y: Spread
    colour: str
    fixed: bool
    length: int


def plot(rows: Sequence[Standing], clock: str = "wall") -> str:
    """The SVG: quality over FLOPs and over seconds, both costs in % of `fixed`.

    Bars are deviations over seeds. Fixed-size trainings of different lengths are joined by a line.

    >>> plot([]).count("<svg")
    1
    """
    metric = rows[0].metric if rows else ACCURACY
    shown = [row for row in rows if row.runs]  # as on the page, so that colours agree
    styles = line_styles([row.fixed for row in shown])
    parts = []
    seconds = clock_words("seconds", clock)
    for index, what in enumerate(("FLOPs", seconds)):
        points = []
        for row, (colour, _) in zip(shown, styles, strict=True):
            cost = row.flops_share if index == 0 else row.seconds_share
            quality = row.quality
            if cost is not None and quality is not None:
                length = 0 if row.length is None else row.length.count
                points.append(Point(row.name, cost, quality, colour, row.fixed, length))
        panel = _panel(points, what, metric)
        parts.append(tag("g", *panel, transform=f"translate({index * (_WIDTH + _GAP)} 0)"))
    label = (
        f"{_capital(metric.title)} over FLOPs and over {seconds}, in percent of fixed-size training"
    )
    return standalone(parts, (2 * _WIDTH + _GAP, _HEIGHT), label)


def standalone(parts: Sequence[str], size: tuple[int, int], label: str) -> str:
    """An SVG with its own style and background, light and dark, which is a file of its own.

    >>> standalone([], (10, 20), "nothing").count("viewBox")
    1
    """
    width, height = size
    style = _STYLE.replace("LIGHT", variables(dark=False)).replace("DARK", variables(dark=True))
    return tag(
        "svg",
        tag("style", style),
        tag("rect", width=width, height=height, class_="back"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        class_="costs",
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=label,
    )


def _capital(title: str) -> str:
    """With a capital at the beginning, and names such as BLEU as they are."""
    return title[:1].upper() + title[1:]


def _panel(points: Sequence[Point], cost: str, metric: Metric) -> list[str]:
    factor = metric.factor
    name = f"{_capital(metric.title)} over {cost}"
    title = tag("text", text(name), x=2, y=14, class_="title")
    if not points:
        return [title, tag("text", text("No run is finished yet."), x=2, y=_TOP + 20)]
    low_high = [v for p in points for v in _ends(p.y, factor)]
    y = fit(low_high, _BOTTOM, _TOP)
    ticks = y.ticks(6)
    labels = tick_labels(ticks)
    left, right = 26 + round(6.6 * max(map(len, labels))), _WIDTH - 10
    ends = [v for p in points for v in _ends(p.x, 100.0)]
    x = Scale(0.0, max(100.0, *ends) * 1.04, left, right)
    parts = [title, tag("text", text(metric.axis), x=2, y=_TOP - 12, class_="axis-title")]
    for tick, label in zip(ticks, labels, strict=True):
        at = f"{y(tick):.1f}"
        parts.append(tag("line", x1=left, x2=right, y1=at, y2=at, class_="grid"))
        parts.append(
            tag("text", text(label), x=left - 7, y=f"{y(tick) + 4:.1f}", text_anchor="end")
        )
    parts += x_axis_parts(x, f"{cost}, % of fixed-size training", _BOTTOM, whole=True)
    parts += _fixed_line(points, x, y, factor)
    for p in points:
        parts += _point(p, x, y, factor)
    return parts + _names(points, x, y, factor, (left, right))


def _ends(value: Spread, factor: float) -> tuple[float, float]:
    deviation = value.deviation or 0.0
    return factor * (value.mean - deviation), factor * (value.mean + deviation)


def _by_length(points: Sequence[Point]) -> list[Point]:
    """The recipe's full-size trainings from the shortest to the longest; contenders may be others."""
    plain = (p for p in points if p.fixed and p.name in (FIXED, *MATCHED))
    return sorted(plain, key=lambda p: (p.length, p.x.mean))


def _fixed_line(points: Sequence[Point], x: Scale, y: Scale, factor: float) -> list[str]:
    """Joins the full-size trainings."""
    places = [f"{x(100 * p.x.mean):.1f},{y(factor * p.y.mean):.1f}" for p in _by_length(points)]
    return [tag("path", d="M" + "L".join(places), class_="fixed-line")] if len(places) > 1 else []


def _point(p: Point, x: Scale, y: Scale, factor: float) -> list[str]:
    at_x, at_y = x(100 * p.x.mean), y(factor * p.y.mean)
    (x1, x2), (y1, y2) = _ends(p.x, 100.0), _ends(p.y, factor)
    style = f"stroke:{p.colour}"
    parts = [tag("title", text(f"{p.name}: {p.y.plain()} at {p.x.percent()}"))]
    for is_known, ends in (
        (p.y.deviation, (at_x, at_x, y(y1), y(y2))),
        (p.x.deviation, (x(x1), x(x2), at_y, at_y)),
    ):
        if is_known:
            a, b, c, d = (f"{end:.1f}" for end in ends)
            parts.append(tag("line", x1=a, x2=b, y1=c, y2=d, class_="spread", style=style))
    fill = f"fill:{p.colour}"
    if p.fixed:  # another shape too, for eyes that do not tell the colours apart
        corner = {"x": f"{at_x - 4:.1f}", "y": f"{at_y - 4:.1f}"}
        parts.append(tag("rect", **corner, width=8, height=8, style=fill))
    else:
        parts.append(tag("circle", cx=f"{at_x:.1f}", cy=f"{at_y:.1f}", r=4.5, style=fill))
    return [tag("g", *parts)]


def _names(
    points: Sequence[Point], x: Scale, y: Scale, factor: float, sides: tuple[int, int]
) -> list[str]:
    """The labels, moved apart; one far from its point has a line to it."""
    dots = [(x(100 * p.x.mean), y(factor * p.y.mean)) for p in points]
    obstacles = []
    for p, (at_x, at_y) in zip(points, dots, strict=True):
        (x1, x2), (y1, y2) = _ends(p.x, 100.0), _ends(p.y, factor)
        obstacles.append(Box(at_x - 2, y(y2), at_x + 2, y(y1)))
        obstacles.append(Box(x(x1), at_y - 2, x(x2), at_y + 2))
    line = [(x(100 * p.x.mean), y(factor * p.y.mean)) for p in _by_length(points)]
    for (x1, y1), (x2, y2) in itertools.pairwise(line):
        for part in range(30):  # small boxes along it
            a, b = x1 + (x2 - x1) * part / 30, y1 + (y2 - y1) * part / 30
            obstacles.append(Box(a - 2, b - 2, a + 2, b + 2))
    frame = Box(sides[0] + 2, _TOP - 8, sides[1] + 8, _BOTTOM - 2)
    boxes = place([p.name for p in points], dots, obstacles, frame)
    parts = []
    for p, dot, box in zip(points, dots, boxes, strict=True):
        (x1, y1), (x2, y2) = dot, box.nearest(dot)
        if (x2 - x1) ** 2 + (y2 - y1) ** 2 > 10**2:
            ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
            shown = {key: f"{value:.1f}" for key, value in ends.items()}
            parts.append(tag("line", **shown, class_="lead"))
        # Centred, or the side at the point, so that it fits whatever font there is.
        anchor = "start" if box.left > x1 else "end" if box.right < x1 else "middle"
        at = {"start": box.left, "end": box.right, "middle": (box.left + box.right) / 2}[anchor]
        y_at = f"{box.bottom - 3:.1f}"
        parts.append(
            tag("text", text(p.name), x=f"{at:.1f}", y=y_at, text_anchor=anchor, class_="label")
        )
    return parts
