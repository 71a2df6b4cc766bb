"""The learning rates: the schedule's, and the factor by which each ring's differs from it, over time."""

from __future__ import annotations

from collections.abc import Sequence

from growthring.core.wording import counted
from growthring.report.charts import ChartAxis, Line, line_chart
from growthring.report.colours import ring_colour
from growthring.report.curves import learning_rate_chart
from growthring.report.markup import details, sentence, tag, text
from growthring.runs.configurations import Configuration
from growthring.runs.run import Run

_NUM_SHOWN = 4
_MOST_FOLDED = 20
_MOST_CONFIGURATIONS = 6

Series = tuple[tuple[tuple[float, float], ...], ...]  # points of each ring


_EXPLANATION = (
    "The schedule sets one learning rate for the whole network.",
    "A ring is what one stage added to a parameter: ring 0 are the entries of the seed, ring 1 those that the "
    "first growth brought, and so on.",
    "The rate factor of a ring multiplies the learning rate for its entries: at 2 it is twice what the schedule "
    "says, at 1 just that.",
)


def rate_section(configurations: Sequence[Configuration]) -> str:
    """The learning rate of all runs, and the rate factors, with what a ring and a rate factor are."""
    return learning_rate_chart(configurations, _EXPLANATION) + _factors(configurations)


def _factors(configurations: Sequence[Configuration]) -> str:
    """Charts of a few parameters for the first run of each configuration that has any."""
    with_rates = [
        (c, run) for c in configurations if (run := next((r for r in c.runs if r.rates), None))
    ]
    parts: list[str] = []
    for c, run in with_rates[:_MOST_CONFIGURATIONS]:
        charts = _charts(c.run_label(run), run)
        parts.append(
            charts if not parts or not charts else details(f"Rate factors of {c.label}", charts)
        )
    section = "".join(parts)
    if not section:
        return sentence("There are no rate factors: no run has recorded any for a grown parameter.")
    left_out = len(with_rates) - _MOST_CONFIGURATIONS
    if left_out > 0:
        section += sentence(
            f"Left out: the rate factors of {counted(left_out, 'more configuration')}."
        )
    return section


def choose(names: Sequence[str], num_chosen: int) -> list[str]:
    """So many names, evenly spread from the first to the last, weights before others.

    >>> choose(["a.weight", "a.bias", "b.weight", "c.weight", "d.weight"], 2)
    ['a.weight', 'd.weight']
    """
    weights = [name for name in names if name.endswith("weight")]
    pool = weights if len(weights) >= num_chosen else list(names)
    if len(pool) <= num_chosen:
        return pool
    step = (len(pool) - 1) / (num_chosen - 1)
    return [pool[round(i * step)] for i in range(num_chosen)]


def _charts(label: str, run: Run) -> str:
    places, axis = _places(run)
    series: dict[str, Series] = {}
    for name in dict.fromkeys(name for rates in run.rates for name in rates.factors):
        rings = _rings(run, name, places)
        if len(rings) > 1:
            series[name] = rings
    alike: dict[Series, list[str]] = {}
    for name, rings in series.items():
        alike.setdefault(rings, []).append(name)
    firsts = {names[0]: names for names in alike.values()}
    chosen = choose(list(firsts), _NUM_SHOWN)
    if not chosen:
        return ""

    # As many colours as the stage diagram has, also while some stages are still to come.
    num_colours = max(len(run.plan.lengths), *map(len, series.values()))

    def chart(name: str) -> str:
        others = len(firsts[name]) - 1
        title = name + (f" (+ {others} alike)" if others else "")
        lines = [
            Line(f"ring {ring}", points, ring_colour(ring, num_colours))
            for ring, points in enumerate(series[name])
        ]
        return line_chart(title, lines, axis, ChartAxis("rate factor", log=True), size=(520, 230))

    num_rings = max(len(rings) for rings in series.values())
    swatches = [
        tag(
            "li",
            tag("i", style=f"background:{ring_colour(ring, num_colours)}"),
            text(f"ring {ring}"),
        )
        for ring in range(num_rings)
    ]
    rest = [name for name in firsts if name not in chosen]
    folded = tag("div", *map(chart, rest[:_MOST_FOLDED]), class_="charts")
    note = ""
    if len(rest) > _MOST_FOLDED:
        note = sentence(f"Left out: {counted(len(rest) - _MOST_FOLDED, 'more parameter')}.")
    return (
        tag("h3", text(f"Rate factors of the rings of {label}"))
        + tag("ul", *swatches, class_="legend")
        + tag("div", *map(chart, chosen), class_="charts")
        + (
            details(counted(min(len(rest), _MOST_FOLDED), "more parameter"), folded, note)
            if rest
            else ""
        )
    )


def _rings(run: Run, name: str, places: Sequence[float]) -> Series:
    """The points of each ring of a parameter."""
    rings: list[list[tuple[float, float]]] = []
    for place, rates in zip(places, run.rates, strict=True):
        for ring, factor in enumerate(rates.factors.get(name, ())):
            if ring == len(rings):
                rings.append([])
            if factor is not None:
                rings[ring].append((place, factor))
    return tuple(map(tuple, rings))


def _places(run: Run) -> tuple[list[float], ChartAxis]:
    """Where the records lie in epochs; in steps, if the run is counted in these or the epochs do not tell."""
    known = [(e.step, e.number) for e in run.epochs if e.step is not None and e.step > 0]
    steps = [rates.step for rates in run.rates]
    if not known or run.plan.unit == "steps":
        return steps, ChartAxis("steps", zero=True, whole=True)
    known = [(0.0, 0.0), *known]
    places = []
    index = 1
    for step in steps:
        while index < len(known) - 1 and known[index][0] < step:
            index += 1
        (low, first), (high, second) = known[index - 1], known[index]
        places.append(first + (second - first) * (step - low) / max(high - low, 1e-9))
    return places, ChartAxis("epochs", zero=True, whole=True)
