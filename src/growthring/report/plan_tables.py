"""A plan in numbers: its stages, and the widths of its groups."""

from __future__ import annotations

from growthring.core.wording import counted
from growthring.report.markup import sentence, table, text
from growthring.runs.configurations import Configuration
from growthring.runs.run import StagePlan, curve_metric

_MOST_ROWS = 24


def width_rows(plan: StagePlan) -> list[tuple[str, list[int]]]:
    """The widths over the stages, groups with the same ones in one row.

    >>> width_rows(StagePlan(widths=[{"a": 2, "b": 2}, {"a": 8, "b": 8}]))
    [('a (+ 1 alike)', [2, 8])]
    """
    alike: dict[tuple[int, ...], list[str]] = {}
    for group in plan.widths[0] if plan.widths else ():
        widths = [stage[group] for stage in plan.widths if group in stage]
        if len(widths) == len(plan.widths):
            alike.setdefault(tuple(widths), []).append(group)
    return [
        (names[0] + (f" (+ {len(names) - 1} alike)" if len(names) > 1 else ""), list(widths))
        for widths, names in alike.items()
    ]


def width_table(configuration: Configuration) -> str:
    """The widths of the groups, a column per stage."""
    rows = width_rows(configuration.first.plan)
    if not rows:
        return sentence("The plan lists no widths.")
    head = ["width group", *(f"stage {t}" for t in range(len(rows[0][1])))]
    cells = [[text(name), *map(str, widths)] for name, widths in rows[:_MOST_ROWS]]
    left_out = len(rows) - _MOST_ROWS
    more = sentence(f"Left out: {counted(left_out, 'more row')}.") if left_out > 0 else ""
    return table(f"Widths of {configuration.label}", head, cells) + more


def stage_table(configuration: Configuration) -> str:
    """One row per stage: what was planned, and what was reached at its end."""
    run = configuration.first
    plan = run.plan
    stages = range(len(plan.lengths))
    full = max(plan.flops, default=0.0)
    metric = curve_metric([run])
    values = ((epoch.stage, epoch.value(metric.key)) for epoch in run.epochs)
    reached = {stage: value for stage, value in values if value is not None}
    columns = [
        ("stage", list(map(str, stages))),
        (plan.unit, [f"{length:g}" for length in plan.lengths]),
        ("batch size", [str(size) for size in plan.batch_sizes]),
        ("parameters", [f"{count:,}" for count in plan.parameters]),
        ("FLOPs of full size", [f"{100 * f / full:.1f} %" for f in plan.flops] if full else []),
        ("memory, MB", [f"{size / 1e6:,.1f}" for size in plan.memory]),
    ]
    ends = [reached.get(t) for t in stages] if reached else []
    shown = ["–" if value is None else metric.text(value) for value in ends]
    columns.append((f"{metric.name} at its end", shown))
    columns = [(name, cells) for name, cells in columns if len(cells) == len(stages)]
    rows = [list(cells) for cells in zip(*(cells for _, cells in columns), strict=True)]
    return table(f"Stages of {configuration.label}", [name for name, _ in columns], rows)
