"""Line charts as SVG; a few lines of script on the page (see style.py) show values on hover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from growthring.core.wording import counted
from growthring.report.markup import chart_box, tag, text
from growthring.report.scales import Scale, fit, thin, tick_labels

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """A curve: its name, its points in the units of the axes, its look, and points to mark.

    Attributes:
        band: places on the x axis, and from where to where the values around the curve there reach.
        told: what is said of each point on hover, instead of its values; all of such points are drawn.
    """

    label: str
    points: Points
    colour: str
    dash: str | None = None
    marks: Points = ()
    faint: bool = False
    band: Sequence[tuple[float, float, float]] = ()
    told: Sequence[str] = ()


@dataclass(frozen=True)
class ChartAxis:
    """What an axis shows; `cut` leaves that share of the smallest values below the chart.

    An axis with `labels` has these at their places, instead of round numbers.
    """

    title: str
    unit: str = ""
    zero: bool = False
    log: bool = False
    whole: bool = False
    cut: float = 0.0
    labels: Mapping[float, str] = field(default_factory=dict)


def line_chart(
    name: str,
    lines: Sequence[Line],
    x: ChartAxis,
    y: ChartAxis,
    boundaries: Sequence[tuple[float, str]] = (),
    size: tuple[int, int] = (520, 300),
) -> str:
    """A figure with one curve for each line that has points.

    Args:
        name: the title, above the chart.
        boundaries: places on the x axis to mark with a vertical line and a short label.

    >>> figure = line_chart(
    ...     "Loss", [Line("a", [(0, 1), (1, 0.5)], "red")], ChartAxis("epochs"), ChartAxis("loss")
    ... )
    >>> figure.count('class="curve"')
    1
    """
    svg = chart_svg(name, lines, x, y, boundaries, size)
    return tag("figure", tag("figcaption", text(name)), chart_box(svg, "plain"))


def chart_svg(
    name: str,
    lines: Sequence[Line],
    x: ChartAxis,
    y: ChartAxis,
    boundaries: Sequence[tuple[float, str]] = (),
    size: tuple[int, int] = (520, 300),
    corner: tuple[int, int] | None = None,
) -> str:
    """The chart of `line_chart` alone; within another svg, `corner` is where its own is."""
    lines = [line for line in lines if line.points]
    width, height = size
    top, bottom = (38 if boundaries else 24), height - 42
    values = [v for line in lines for _, v in line.points]
    values = sorted([*values, *(v for line in lines for _, *ends in line.band for v in ends)])
    y_scale = fit(values[int(len(values) * y.cut) :], bottom, top, zero=y.zero, log=y.log)
    y_ticks = y_scale.ticks(6 if height > 240 else 5)
    labels = tick_labels(y_ticks, log=y_scale.log)
    left = 30 + round(6.6 * max(map(len, labels), default=1))
    right = width - 14
    x_scale = fit((v for line in lines for v, _ in line.points), left, right, zero=x.zero)
    parts = [
        *_y_axis(y_scale, y_ticks, labels, y, left, right),
        *x_axis_parts(x_scale, with_unit(x), bottom, x.whole, x.labels),
        *_boundaries(x_scale, boundaries, top, bottom),
        _curves(lines, x_scale, y_scale),
    ]
    summary = f"{name}. {counted(len(lines), 'curve')} of {y.title} over {x.title}."
    frame = [left, right, bottom, top, x_scale.low, x_scale.high, y_scale.low, y_scale.high]
    return tag(
        "svg",
        *parts,
        class_="chart",
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=summary,
        data_frame=" ".join(f"{value:.9g}" for value in [*frame, int(y_scale.log)]),
        data_x=f"{x.title}|{x.unit}",
        data_y=f"{y.title}|{y.unit}",
        x=corner[0] if corner else None,
        y=corner[1] if corner else None,
        width=width if corner else None,
        height=height if corner else None,
    )


def with_unit(axis: ChartAxis) -> str:
    """The title of an axis with its unit.

    >>> with_unit(ChartAxis("time", "s"))
    'time, s'
    """
    return f"{axis.title}, {axis.unit}" if axis.unit else axis.title


def _y_axis(
    scale: Scale,
    ticks: Sequence[float],
    labels: Sequence[str],
    axis: ChartAxis,
    left: int,
    right: int,
) -> list[str]:
    parts = [tag("text", text(with_unit(axis)), x=2, y=11, class_="axis-title")]
    for tick, label in zip(ticks, labels, strict=True):
        place = f"{scale(tick):.1f}"
        parts.append(tag("line", x1=left, x2=right, y1=place, y2=place, class_="grid"))
        parts.append(
            tag("text", text(label), x=left - 7, y=f"{scale(tick) + 4:.1f}", text_anchor="end")
        )
    return parts


def x_axis_parts(
    scale: Scale, title: str, bottom: int, whole: bool, named: Mapping[float, str] | None = None
) -> list[str]:
    """The elements of a horizontal axis at the height `bottom`.

    Args:
        scale: of the axis.
        title: below it.
        bottom: its height.
        whole: only whole numbers are ticks.
        named: ticks with labels of their own, instead.
    """
    ticks, labels = _spaced(scale, named) if named else _round(scale, whole)
    parts = [tag("line", x1=scale.start, x2=scale.end, y1=bottom, y2=bottom, class_="base")]
    for tick, label in zip(ticks, labels, strict=True):
        place = f"{scale(tick):.1f}"
        parts.append(tag("line", x1=place, x2=place, y1=bottom, y2=bottom + 4, class_="base"))
        anchor = "end" if scale(tick) > scale.end - 8 and len(label) > 4 else "middle"
        parts.append(tag("text", text(label), x=place, y=bottom + 17, text_anchor=anchor))
    middle = (scale.start + scale.end) / 2
    parts.append(
        tag(
            "text",
            text(title),
            x=f"{middle:.1f}",
            y=bottom + 36,
            text_anchor="middle",
            class_="axis-title",
        )
    )
    return parts


def _round(scale: Scale, whole: bool) -> tuple[Sequence[float], Sequence[str]]:
    """Round ticks and their labels, as many as there is room for."""
    width = scale.end - scale.start
    num_ticks = max(2, int(width / 70))
    ticks = scale.ticks(num_ticks, whole)
    labels = tick_labels(ticks)
    if max(map(len, labels), default=0) * 7 * len(labels) > width:
        ticks = scale.ticks(max(2, num_ticks // 2), whole)
        labels = tick_labels(ticks)
    return ticks, labels


def _spaced(scale: Scale, named: Mapping[float, str]) -> tuple[Sequence[float], Sequence[str]]:
    """Those of the ticks whose labels have room beside the one before."""
    kept: list[float] = []
    last = float("-inf")
    for tick in sorted(named):
        half = 3.5 * len(named[tick])
        if scale(tick) - half > last:
            kept.append(tick)
            last = scale(tick) + half + 5
    return kept, [named[tick] for tick in kept]


def _boundaries(
    scale: Scale, boundaries: Sequence[tuple[float, str]], top: int, bottom: int
) -> list[str]:
    parts = []
    last = float("-inf")
    for value, label in boundaries:
        if not scale.low <= value <= scale.high:
            continue
        place = scale(value)
        x = f"{place:.1f}"
        parts.append(tag("line", x1=x, x2=x, y1=top, y2=bottom, class_="boundary"))
        half = 3.3 * len(label)
        if place - half > last + 4:  # labels must not overlap
            parts.append(
                tag("text", text(label), x=x, y=top - 5, text_anchor="middle", class_="stage")
            )
            last = place + half
    return parts


def _curves(lines: Sequence[Line], x: Scale, y: Scale) -> str:
    """Draws into an inner svg with the same coordinates, which cuts off what is outside."""
    parts = []
    small = len(lines) > 8
    parts += [_band(line, x, y) for line in lines if len(line.band) > 1]  # below all curves
    for line in lines:
        shown = line.points if line.told else thin(line.points)
        path = "L".join(f"{x(a):.2f},{y(b):.2f}" for a, b in shown)
        parts.append(
            tag(
                "path",
                d=f"M{path}",
                class_="curve faint" if line.faint else "curve",
                style=f"stroke:{line.colour}",
                stroke_dasharray=line.dash,
                data_label=line.label,
                data_told="|".join(line.told) or None,
            )
        )
        marks = line.points if len(line.points) == 1 else line.marks
        radius = 3 if len(line.points) == 1 else 1.8 if small else 2.6
        parts += [
            tag("circle", cx=f"{x(a):.1f}", cy=f"{y(b):.1f}", r=radius, style=f"fill:{line.colour}")
            for a, b in marks
        ]
    left, top = x.start - 4, y.end - 4
    width, height = x.end - x.start + 8, y.start - y.end + 8
    return tag(
        "svg",
        *parts,
        x=left,
        y=top,
        width=width,
        height=height,
        viewBox=f"{left} {top} {width} {height}",
    )


def _band(line: Line, x: Scale, y: Scale) -> str:
    upper = [f"{x(a):.2f},{y(high):.2f}" for a, _, high in line.band]
    lower = [f"{x(a):.2f},{y(low):.2f}" for a, low, _ in reversed(line.band)]
    return tag(
        "path", d=f"M{'L'.join([*upper, *lower])}Z", class_="band", style=f"fill:{line.colour}"
    )
