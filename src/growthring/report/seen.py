"""Accuracy per stage: what runs on growing data knew at the end of each stage, of the classes seen so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from growthring.core.wording import counted
from growthring.report.charts import ChartAxis, Line, line_chart
from growthring.report.colours import line_styles
from growthring.report.curves import legend
from growthring.report.markup import sentence, tag, text
from growthring.report.page import Section
from growthring.report.seen_tables import about_stage, accuracy_table, cost_tables, part_tables
from growthring.runs.configurations import Configuration
from growthring.runs.forgetting import DEFINITION
from growthring.runs.metrics import ACCURACY
from growthring.runs.spread import Spread
from growthring.runs.stages import Staged, StageMean, forgotten, staged

_MOST_POINTS = 200  # all are written out, with what is said of them
_WHOLE = "FLOPs of fixed-size training"

Place = Callable[[Staged, StageMean], float | None]


def seen_sections(configurations: Sequence[Configuration], clock: str = "wall") -> list[Section]:
    """The section of a page, if some run has come to the end of a stage of its data; seconds are by the clock."""
    if not any(run.stages for c in configurations for run in c.runs):
        return []
    return [Section("Accuracy per stage", "seen", lambda: seen_section(configurations, clock))]


def seen_section(configurations: Sequence[Configuration], clock: str = "wall") -> str:
    """Charts over stages and over FLOPs, and in numbers: what was known, what was forgotten, what it cost.

    >>> seen_section([])
    '<p class="missing">No run has come to the end of a stage of its data.</p>'
    """
    shown = staged(configurations)
    if not shown:
        return sentence("No run has come to the end of a stage of its data.")
    axis = stage_axis(shown)
    share = ChartAxis(_WHOLE, "%", zero=True)
    charts = [
        _chart("Accuracy at the end of each stage", configurations, shown, at_stage, axis),
        _chart("The same over FLOPs", configurations, shown, _share, share),
    ]
    told = ["Accuracy is on the test examples of the classes seen so far."]
    if any(mean.accuracy and mean.accuracy.deviation for s in shown for mean in s.means):
        told.append("Bands are the sample standard deviation over seeds.")
    if any(forgotten(s.runs) for s in shown):
        told.append(DEFINITION)
    return (
        legend(configurations, lambda run: bool(run.stages))
        + tag("div", *charts, class_="charts")
        + tag("p", text(" ".join(told)), class_="hint")
        + accuracy_table(shown)
        + cost_tables(shown, clock)
        + part_tables(shown)
    )


def stage_axis(shown: Sequence[Staged]) -> ChartAxis:
    """The stages, each called by its classes, or by its share of the data where the classes stay the same."""
    stages: dict[int, list[StageMean]] = {}
    for one in shown:
        for mean in one.means:
            stages.setdefault(mean.stage, []).append(mean)
    classes = {t: {mean.classes for mean in means} for t, means in stages.items()}
    examples = {t: {mean.examples for mean in means} for t, means in stages.items()}
    if (counts := _growing(classes)) is not None:
        title, labels = "classes seen", {t: f"{n:,}" for t, n in counts.items()}
    elif (counts := _growing(examples)) is not None and _is_any_finished(shown):
        most = max(counts.values())  # a finished run has come to all of its data
        title, labels = (
            "share of the data",
            {t: f"{100 * n / most:.0f} %" for t, n in counts.items()},
        )
    else:
        title, labels = "stage", {t: str(t) for t in stages}
    return ChartAxis(title, labels={float(t): label for t, label in labels.items()})


def at_stage(_: Staged, mean: StageMean) -> float | None:
    """The place of a stage on an axis of stages."""
    return float(mean.stage)


def stage_lines(
    configurations: Sequence[Configuration], shown: Sequence[Staged], place: Place
) -> list[Line]:
    """One line for each configuration, in percent, with a band of the deviation over its seeds.

    Args:
        configurations: all of the page, so that colours agree.
        shown: those that have stages.
        place: on the x axis.
    """
    lines = []
    styles = line_styles([c.fixed for c in configurations])
    looks = {c.label: style for c, style in zip(configurations, styles, strict=True)}
    for one in shown:
        places = [(mean, place(one, mean), mean.accuracy) for mean in one.means]
        known = [(mean, x, y) for mean, x, y in places if x is not None and y is not None]
        known = known[:: -(1 + len(known) // _MOST_POINTS)][::-1]  # with the last one
        points = [(x, 100.0 * y.mean) for _, x, y in known]
        bands = [(x, *_ends(y)) for _, x, y in known if any(y.deviation for _, _, y in known)]
        told = [_told(one, mean, y) for mean, _, y in known]
        label, (colour, dash) = one.configuration.label, looks[one.configuration.label]
        lines.append(Line(label, points, colour, dash, points, band=bands, told=told))
    return lines


def _chart(
    name: str,
    configurations: Sequence[Configuration],
    shown: Sequence[Staged],
    place: Place,
    axis: ChartAxis,
) -> str:
    lines = stage_lines(configurations, shown, place)
    if not any(line.points for line in lines):
        missing = f"{name}: left out, as no run has recorded both values."
        return tag("figure", tag("figcaption", text(name)), sentence(missing))
    return line_chart(name, lines, axis, ChartAxis(ACCURACY.title, ACCURACY.unit))


def _share(one: Staged, mean: StageMean) -> float | None:
    share = one.flops_share(mean)
    return None if share is None else 100.0 * share


def _growing(values: dict[int, set[int | None]]) -> dict[int, int] | None:
    """The number of each stage, if all configurations have the same, which grow from stage to stage."""
    known = {t: n for t, (n, *others) in values.items() if n is not None and not others}
    in_order = [known[t] for t in sorted(known)]
    is_whole = len(known) == len(values) and min(in_order, default=0) > 0
    return (
        known if is_whole and in_order == sorted(in_order) and in_order[0] < in_order[-1] else None
    )


def _is_any_finished(shown: Sequence[Staged]) -> bool:
    return any(run.finished for one in shown for run in one.runs)


def _ends(accuracy: Spread) -> tuple[float, float]:
    deviation = accuracy.deviation or 0.0
    return 100.0 * (accuracy.mean - deviation), 100.0 * (accuracy.mean + deviation)


def _told(one: Staged, mean: StageMean, accuracy: Spread) -> str:
    """What is said of a point on hover."""
    lines = [", ".join([f"stage {mean.stage}", *about_stage(mean)])]
    lines.append(f"{ACCURACY.title}: {ACCURACY.text(accuracy)}")
    share = one.flops_share(mean)
    if share is not None:
        lines.append(f"{_WHOLE}: {100 * share:.4g} %")
    if mean.num_runs < len(one.runs):
        lines.append(f"{mean.num_runs} of {counted(len(one.runs), 'run')}")
    return "\n".join(lines)
