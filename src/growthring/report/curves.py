"""The curves of training: what the task is judged by over epochs (or steps), FLOPs and seconds; loss and rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from growthring.report.charts import ChartAxis, Line, line_chart
from growthring.report.colours import line_styles
from growthring.report.markup import sentence, tag, text
from growthring.runs.clocks import clock_words
from growthring.runs.configurations import Configuration, reference_of
from growthring.runs.records import EpochRecord
from growthring.runs.run import Run, curve_metric

Reading = Callable[[Run, EpochRecord], float | None]
_UNITS = ((3 * 86400.0, 86400.0, "days"), (3 * 3600.0, 3600.0, "h"), (300.0, 60.0, "min"))


def _has_epochs(run: Run) -> bool:
    return bool(run.epochs)


def legend(
    configurations: Sequence[Configuration], is_shown: Callable[[Run], bool] = _has_epochs
) -> str:
    """The list of configurations that have lines, with their looks.

    Args:
        configurations: all of the page, so that colours agree.
        is_shown: whether a run has a line.
    """
    entries = []
    styles = line_styles([c.fixed for c in configurations])
    for c, (colour, dash) in zip(configurations, styles, strict=True):
        if not any(map(is_shown, c.runs)):
            continue
        sample = tag(
            "svg",
            tag("path", d="M1,6L31,6", style=f"stroke:{colour}", stroke_dasharray=dash),
            class_="sample",
            viewBox="0 0 32 12",
            aria_hidden="true",
        )
        seeds = f" ({len(c.runs)} seeds)" if len(c.runs) > 1 else ""
        name = tag("span", text(c.label), class_="name")
        entries.append(tag("li", sample, name, text(seeds), title=c.label))
    return tag("ul", *entries, class_="legend")


def curve_section(configurations: Sequence[Configuration], clock: str = "wall") -> str:
    """The charts, each left out with a sentence if no run has its values; their seconds are by the clock."""
    if not any(run.epochs for c in configurations for run in c.runs):
        return sentence("There are no curves: no run has finished an epoch yet.")
    metric = curve_metric([run for c in configurations for run in c.runs])
    cut = 0.04 if metric.is_higher_better else 0.0
    quality = ChartAxis(metric.title, metric.unit, cut=cut, log=not metric.is_higher_better)
    place, time = _time_axis(configurations)
    unit, divisor = _time_unit(configurations)
    references = {c.label: reference_of(c, configurations) for c in configurations}

    def measured(_: Run, epoch: EpochRecord) -> float | None:
        value = epoch.value(metric.key)
        return None if value is None else metric.factor * value

    def seconds(_: Run, epoch: EpochRecord) -> float | None:
        return None if epoch.seconds is None else epoch.seconds / divisor

    def share(run: Run, epoch: EpochRecord) -> float | None:
        if epoch.flops_share is not None:
            return 100.0 * epoch.flops_share
        reference = references.get(
            next(c.label for c in configurations if any(r is run for r in c.runs))
        )
        whole = reference.counted[0].final("flops") if reference else None
        return 100.0 * epoch.flops / whole if epoch.flops is not None and whole else None

    def loss(_: Run, epoch: EpochRecord) -> float | None:
        return epoch.train_loss

    what = quality.title.capitalize()
    charts = [
        _chart(
            f"{what} over {time.title}",
            configurations,
            place,
            measured,
            time,
            quality,
        ),
        _chart(
            f"{what} over FLOPs",
            configurations,
            share,
            measured,
            ChartAxis("FLOPs of fixed-size training", "%", zero=True),
            quality,
        ),
        _chart(
            f"{what} over {clock_words('time', clock)}",
            configurations,
            seconds,
            measured,
            ChartAxis(clock_words("time", clock), unit, zero=True),
            quality,
        ),
        _chart(
            f"Training loss over {time.title}",
            configurations,
            place,
            loss,
            time,
            ChartAxis("training loss", log=True),
        ),
    ]
    grown = any(_growth_points(run) for c in configurations for run in c.runs)
    last = "epoch" if time.title == "epochs" else "evaluation"
    note = f"Dots mark the last {last} before a growth." if grown else "No run has grown yet."
    num_epochs = sum(len(run.epochs) for c in configurations for run in c.runs)
    if int(quality.cut * num_epochs):
        note += " The first, lowest values may lie below a chart."
    return (
        legend(configurations)
        + tag("div", *charts, class_="charts")
        + tag("p", text(note), class_="hint")
    )


def learning_rate_chart(configurations: Sequence[Configuration], words: Sequence[str]) -> str:
    """The learning rate itself, as the schedule sets it, over the length of all runs; and words beside it."""

    def rate(_: Run, epoch: EpochRecord) -> float | None:
        return epoch.lr

    place, time = _time_axis(configurations)
    axis = ChartAxis("learning rate", zero=True)
    chart = _chart(f"Learning rate over {time.title}", configurations, place, rate, time, axis)
    beside = tag("div", *(tag("p", text(paragraph)) for paragraph in words), class_="beside")
    return legend(configurations) + tag("div", chart, beside, class_="charts")


def _time_axis(configurations: Sequence[Configuration]) -> tuple[Reading, ChartAxis]:
    """How far records are: in epochs; in steps, which all runs have, where one of them is counted in steps."""
    in_steps = any(run.plan.unit == "steps" for c in configurations for run in c.runs)

    def place(_: Run, epoch: EpochRecord) -> float | None:
        return epoch.step if in_steps else epoch.number

    return place, ChartAxis("steps" if in_steps else "epochs", zero=True, whole=True)


def _chart(
    name: str,
    configurations: Sequence[Configuration],
    x: Reading,
    y: Reading,
    x_axis: ChartAxis,
    y_axis: ChartAxis,
) -> str:
    lines = []
    styles = line_styles([c.fixed for c in configurations])
    for c, (colour, dash) in zip(configurations, styles, strict=True):
        for run in c.runs:
            samples = [(e, x(run, e), y(run, e)) for e in run.epochs]
            points = [(e, a, b) for e, a, b in samples if a is not None and b is not None]
            if y_axis.log:
                points = [(e, a, b) for e, a, b in points if b > 0] or points
            marked = _growth_points(run)
            line = Line(
                c.run_label(run),
                [(a, b) for _, a, b in points],
                colour,
                dash,
                marks=[(a, b) for e, a, b in points if e in marked],
                faint=len(c.runs) > 1,
            )
            lines.append(line)
    if not any(line.points for line in lines):
        missing = f"{name}: left out, as no run has recorded both values."
        return tag("figure", tag("figcaption", text(name)), sentence(missing))
    return line_chart(name, lines, x_axis, y_axis, _boundaries(configurations, x))


def _growth_points(run: Run) -> list[EpochRecord]:
    """The last epoch of every stage but the last."""
    pairs = zip(run.epochs, run.epochs[1:], strict=False)
    return [before for before, after in pairs if after.stage > before.stage]


def _boundaries(configurations: Sequence[Configuration], x: Reading) -> list[tuple[float, str]]:
    """Where the stages begin, if that is about one place each for all grown runs.

    Seeds grow at the same epochs but not after the very same seconds, and some have not come so far.
    """
    growths: list[list[tuple[float, int]]] = []
    for run in (run for c in configurations for run in c.runs):
        pairs = zip(run.epochs, run.epochs[1:], strict=False)
        places = [(x(run, a), b.stage) for a, b in pairs if b.stage > a.stage]
        growths.append([(place, stage) for place, stage in places if place is not None])
    longest = max(growths, key=len, default=[])
    if not longest:
        return []
    last = len(longest) - 1
    tolerance = 0.02 * longest[-1][0]
    for other in growths:
        for (place, stage), (a, b) in zip(other, longest, strict=False):
            if stage != b or abs(place - a) > tolerance:
                return []
    return [(a, f"{'' if index < last else 'stage '}{b}") for index, (a, b) in enumerate(longest)]


def _time_unit(configurations: Sequence[Configuration]) -> tuple[str, float]:
    runs = [run for c in configurations for run in c.runs]
    longest = max((e.seconds or 0.0 for run in runs for e in run.epochs), default=0.0)
    units = ((unit, size) for limit, size, unit in _UNITS if longest >= limit)
    return next(units, ("s", 1.0))
