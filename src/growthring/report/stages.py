"""The stage diagram: every stage as long as its epochs (or steps) and as high as its cost, ring upon ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from growthring.core.wording import counted
from growthring.report.charts import x_axis_parts
from growthring.report.colours import ring_colour
from growthring.report.markup import chart_box, details, sentence, tag, text
from growthring.report.plan_tables import stage_table, width_rows, width_table
from growthring.report.scales import Scale
from growthring.runs.configurations import Configuration
from growthring.runs.run import StagePlan
from growthring.runs.values import canonical

_WIDTH, _LEFT, _RIGHT = 1080, 52, 1066
_EXPLANATION = (
    "Each colour is a ring: the entries that one stage added to the network. The first ring is the seed; with the "
    "last one the network has its full size."
)
_NUM_OPEN = 4  # further diagrams are folded


@dataclass(frozen=True)
class Panel:
    """One strip of a diagram: a share of full size per stage, drawn from the foot or the middle."""

    title: str
    shares: list[float]
    labels: list[str]
    top: int
    height: int
    centred: bool


def stage_section(configurations: Sequence[Configuration]) -> str:
    """One diagram for each plan among the grown configurations."""
    plans: dict[str, list[Configuration]] = {}
    for c in configurations:
        if not c.fixed and sum(c.first.plan.lengths) > 0:
            plan = c.first.plan
            key = canonical([plan.widths, plan.lengths, plan.flops, plan.parameters])
            plans.setdefault(key, []).append(c)
    if not plans:
        return sentence(
            "There is no stage diagram: no run has a plan with stages and their lengths."
        )
    parts = []
    for index, alike in enumerate(plans.values()):
        names = "; ".join(c.label for c in alike[:4])
        names += f" and {len(alike) - 4} more" if len(alike) > 4 else ""
        figure = stage_diagram(alike[0], names)
        tables = details(
            "Stages and widths in numbers", stage_table(alike[0]), width_table(alike[0])
        )
        if index < _NUM_OPEN:
            parts.append(figure + tables)
        else:
            parts.append(details(f"Stages of {names}", figure, tables))
    return tag("p", text(_EXPLANATION), class_="hint") + "".join(parts)


def stage_diagram(configuration: Configuration, names: str) -> str:
    """The figure of one plan: its cost and its widths over the epochs, or steps."""
    plan = configuration.first.plan
    total = sum(plan.lengths)
    x = Scale(0.0, total, _LEFT, _RIGHT)
    ends = list(accumulate(plan.lengths))
    starts = [0.0, *ends[:-1]]
    panels = _panels(plan)
    if not panels:
        return sentence(
            f"There is no stage diagram of {names}: its plan has neither costs nor widths."
        )
    bottom = panels[-1].top + panels[-1].height
    parts = [part for panel in panels for part in _draw(panel, x, starts, total)]
    parts += x_axis_parts(x, plan.unit, bottom, whole=True)
    done = max((run.done for run in configuration.runs), default=0.0)
    if 0 < done < total and not any(run.finished for run in configuration.runs):
        place = f"{x(done):.1f}"
        parts.append(tag("line", x1=place, x2=place, y1=panels[0].top, y2=bottom, class_="now"))
        parts.append(
            tag(
                "text",
                text("now"),
                x=place,
                y=panels[0].top - 5,
                text_anchor="middle",
                class_="now",
            )
        )
    parts += _hover(plan, x, starts, panels[0].top, bottom)
    share = (
        f" The coloured area is {100 * plan.flops_share:.1f} % of the whole: the cost."
        if (plan.flops_share is not None and plan.flops)
        else ""
    )
    svg = tag(
        "svg",
        *parts,
        class_="stages",
        viewBox=f"0 0 {_WIDTH} {bottom + 42}",
        role="img",
        aria_label=(
            f"Stage diagram of {names}: {counted(len(plan.lengths), 'stage')} in "
            f"{counted(total, plan.unit.removesuffix('s'))}.{share}"
        ),
    )
    caption = tag("figcaption", text(f"Stages of {names}."), tag("span", text(share)))
    return tag("figure", caption, chart_box(svg, "wide"), class_="full")


def _panels(plan: StagePlan) -> list[Panel]:
    num_stages = len(plan.lengths)
    panels: list[Panel] = []
    top = 24
    for what, costs in (("FLOPs per example", plan.flops), ("parameters", plan.parameters)):
        if len(costs) == num_stages and max(costs) > 0 and not panels:
            shares = [cost / max(costs) for cost in costs]
            labels = [f"{100 * share:.0f} %" for share in shares]
            panels.append(Panel(f"{what}, of full size", shares, labels, top, 170, False))
            top += 170 + 34
    rows = width_rows(plan)
    if rows and all(len(widths) == num_stages for _, widths in rows):
        relative = [
            sum(widths[t] / max(1, widths[-1]) for _, widths in rows) / len(rows)
            for t in range(num_stages)
        ]
        name, widest = max(rows, key=lambda row: row[1][-1])
        name = name if len(name) <= 60 else name[:59] + "…"
        title = f"width, relative; numbers are those of {name}"
        panels.append(Panel(title, relative, [str(w) for w in widest], top, 130, True))
    return panels


def _draw(panel: Panel, x: Scale, starts: Sequence[float], total: float) -> list[str]:
    """Draws each ring as a bar from the stage that adds it to the end of the run."""
    foot = panel.top + panel.height
    middle = panel.top + panel.height / 2
    num = len(panel.shares)
    parts = [
        tag("text", text(panel.title), x=2, y=panel.top - 9, class_="axis-title"),
        _bar(x, 0.0, total, panel.top, panel.height, class_="whole"),
    ]
    # The outer rings first: each inner one is painted over them.
    for ring in reversed(range(num)):
        height = panel.height * min(1.0, max(0.0, panel.shares[ring]))
        top = middle - height / 2 if panel.centred else foot - height
        parts.append(
            _bar(
                x,
                starts[ring],
                total,
                top,
                height,
                class_="ring",
                style=f"fill:{ring_colour(ring, num)}",
            )
        )
    if not panel.centred:
        for share in (0.0, 0.5, 1.0):
            place = foot - share * panel.height + 4
            label = text(f"{100 * share:.0f} %")
            parts.append(tag("text", label, x=_LEFT - 7, y=f"{place:.1f}", text_anchor="end"))
    ends = [*starts[1:], total]
    for stage, (share, label) in enumerate(zip(panel.shares, panel.labels, strict=True)):
        room = x(ends[stage]) - x(starts[stage])
        if room < 7 * len(label) + 4:
            continue
        centre = f"{(x(starts[stage]) + x(ends[stage])) / 2:.1f}"
        height = panel.height * min(1.0, max(0.0, share))
        inside = panel.centred or panel.height - height < 16
        y = middle + 4 if panel.centred else foot - height + (15 if inside else -5)
        style = "on-seed" if panel.centred else f"on-ring{stage * 2 // num}" if inside else None
        parts.append(
            tag("text", text(label), x=centre, y=f"{y:.1f}", text_anchor="middle", class_=style)
        )
    return parts


def _bar(x: Scale, start: float, end: float, top: float, height: float, **look: str) -> str:
    return tag(
        "rect",
        x=f"{x(start):.1f}",
        y=f"{top:.1f}",
        width=f"{x(end) - x(start):.1f}",
        height=f"{height:.1f}",
        **look,
    )


def _hover(plan: StagePlan, x: Scale, starts: Sequence[float], top: int, bottom: int) -> list[str]:
    """Invisible bars that tell about their stage when pointed at."""
    parts = []
    for stage, (start, length) in enumerate(zip(starts, plan.lengths, strict=True)):
        long = counted(length, plan.unit.removesuffix("s"))
        told = [f"stage {stage}: {long} from {start:g} to {start + length:g}"]
        if stage < len(plan.parameters):
            told.append(counted(plan.parameters[stage], "parameter"))
        if stage < len(plan.batch_sizes):
            told.append(f"batch size {plan.batch_sizes[stage]}")
        if stage < len(plan.flops) and max(plan.flops) > 0:
            told.append(
                f"{100 * plan.flops[stage] / max(plan.flops):.1f} % of full FLOPs per example"
            )
        parts.append(
            tag(
                "rect",
                tag("title", text("\n".join(told))),
                x=f"{x(start):.1f}",
                y=top,
                width=f"{max(0.0, x(start + length) - x(start)):.1f}",
                height=bottom - top,
                class_="hover",
            )
        )
    return parts
