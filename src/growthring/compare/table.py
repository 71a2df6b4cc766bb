"""The table of a comparison, for the terminal and as Markdown, and the notes below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from growthring.compare.contenders import FIXED, MATCHED
from growthring.compare.manifest import Manifest
from growthring.compare.standings import Standing
from growthring.compare.verdict import verdicts
from growthring.files.foreign import shown
from growthring.runs import Spread
from growthring.runs.clocks import clock_words
from growthring.runs.forgetting import DEFINITION
from growthring.runs.metrics import ACCURACY, FORGETTING, Metric
from growthring.runs.texttable import aligned, printable

NOTHING = "–"
_LONGEST_STATE = 100


def cells(rows: Sequence[Standing], clock: str = "wall") -> list[list[str]]:
    """The table as texts, its head first; columns that would be empty are left out.

    A row has what the task is judged by with its deviation and number of seeds, FLOPs and seconds in % of `fixed`.
    """
    metric = rows[0].metric if rows else ACCURACY
    units = {row.length.unit for row in rows if row.length is not None}
    unit = (
        units.pop() if len(units) == 1 else None
    )  # contenders may count otherwise than the recipe
    columns: list[tuple[str, Callable[[Standing], str]]] = [
        ("contender", lambda row: printable(row.name)),
        (unit or "length", lambda row: _length(row, is_short=unit is not None)),
        (
            _title(metric),
            lambda row: (
                NOTHING if row.quality is None else metric.text(row.quality).removesuffix(" %")
            ),
        ),
        (FORGETTING.name, lambda row: _percent(row.forgetting, FORGETTING.digits)),
        ("n", lambda row: str(len(row.seeds))),
        ("FLOPs %", lambda row: _percent(row.flops_share, 1)),
        (
            f"{clock_words('seconds', clock)} %",
            lambda row: _percent(row.seconds_share, 1),
        ),
        ("memory MB", lambda row: _megabytes(row.memory)),
        (
            "of fixed",
            lambda row: NOTHING if row.memory_share is None else f"{row.memory_share.mean:.2f}×",
        ),
        ("search %", lambda row: _percent(row.search_share, 1)),
        ("extra pass %", lambda row: _percent(row.pass_share, 1)),
        ("state", lambda row: _state(row.state)),
    ]
    optional = {FORGETTING.name, "memory MB", "of fixed", "search %", "extra pass %", "state"}
    lines = [[title, *map(cell, rows)] for title, cell in columns]
    kept = [c for c in lines if c[0] not in optional or any(v not in (NOTHING, "") for v in c[1:])]
    return [list(line) for line in zip(*kept, strict=True)]


def format_table(rows: Sequence[Standing], clock: str = "wall") -> str:
    """The table for the terminal.

    >>> from growthring.planning.lengths import Length
    >>> from growthring.runs import Spread
    >>> costs = [Spread(0.529), Spread(0.61, 0.02), Spread(31.0), None, None, None]
    >>> row = Standing(
    ...     *("paired", "", (), False, Length(30, "epochs"), 3, (0, 1, 2), ()),
    ...     Spread(0.978, 0.002),
    ...     None,
    ...     *costs,
    ...     "",
    ... )
    >>> print(format_table([row]))
    contender  epochs    accuracy %  n  FLOPs %   seconds %
    paired         30  97.80 ± 0.20  3     52.9  61.0 ± 2.0
    """
    lines = cells(rows, clock)
    left = {0} | {i for i, title in enumerate(lines[0]) if title == "state"}
    return aligned(lines, left)


def markdown(rows: Sequence[Standing], manifest: Manifest) -> str:
    """The table and its notes as Markdown."""
    lines = [[_inert(c).replace("|", "\\|") for c in line] for line in cells(rows, manifest.clock)]
    rule = ["---:" if title not in ("contender", "state") else "---" for title in lines[0]]
    table = [f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:])]
    told = [f"- {_inert(note)}" for note in notes(rows, manifest)]
    title = f"# {_inert(str(manifest.settings.get('name', 'comparison')))}"
    return "\n".join([title, "", *table, "", *told, ""])


def notes(rows: Sequence[Standing], manifest: Manifest) -> list[str]:
    """What the numbers mean, and how the lengths of the matched trainings came about."""
    clock = "of the processor" if manifest.clock == "cpu" else "by the clock"
    sentences = [
        f"FLOPs and seconds ({clock}, of training and growing) are in % of the mean of {FIXED}."
    ]
    if any(len(row.seeds) > 1 for row in rows):
        sentences.append("± is the sample standard deviation over seeds.")
    seconds = clock_words("seconds", manifest.clock)
    for name in manifest.rivals:
        decision, rival = manifest.decisions.get(name), MATCHED[name]
        what = "FLOPs" if rival.cost == "flops" else seconds
        if decision is not None:
            kind = "schedule" if rival.lr_schedule is None else f"{rival.lr_schedule} schedule"
            sentences.append(
                f"{name} is {FIXED} with a {kind} of {decision.length} ({FIXED}: "
                f"{manifest.length.count:,}): as many as cost the {what} of {decision.of} "
                f"({100 * decision.share:.1f} % in the first seed), rounded up, which favours full size."
            )
    sentences += [verdict.sentence(manifest.clock) for verdict in verdicts(rows, manifest)]
    if any(row.forgetting for row in rows):
        sentences.append(DEFINITION)
    if any(row.pass_share for row in rows):
        sentences.append(
            "The extra pass is the part of a run's FLOPs that went into passes over old data, for the gradients "
            "that dynamic OSGD keeps to; it is counted in FLOPs and seconds."
        )
    sentences += dict.fromkeys(note for row in rows for note in row.notes)
    if any(row.memory for row in rows):
        sentences.append("Memory is the peak above what the process used before the run.")
    machines = {machine for row in rows for machine in row.machines}
    if len(machines) > 1:
        listed = "; ".join(sorted(machines))
        sentences.append(
            f"The runs are from different machines ({listed}): seconds do not compare."
        )
    changes = f" with {', '.join(manifest.changes)}" if manifest.changes else ""
    recipe = manifest.recipe or manifest.settings.get("name")
    sentences.append(f"Recipe: {recipe}{changes}. Machine: {manifest.machine}.")
    return sentences


def _inert(text: str) -> str:
    """A text in Markdown, which is a page to most who see it: no tags, one line."""
    return " ".join(shown(text).split()).replace("<", "&lt;")


def _percent(share: Spread | None, digits: int) -> str:
    return NOTHING if share is None else share.percent(digits).removesuffix(" %")


def _length(row: Standing, is_short: bool) -> str:
    if row.length is None:
        return NOTHING
    return str(row.length.count) if is_short else str(row.length)


def _title(metric: Metric) -> str:
    return f"{metric.name} %" if metric.unit == "%" else metric.title


def _megabytes(memory: Spread | None) -> str:
    return NOTHING if memory is None else f"{memory.mean / 1e6:,.1f}"


def _state(state: str) -> str:
    first = " ".join(state.split())
    return first if len(first) <= _LONGEST_STATE else f"{first[: _LONGEST_STATE - 1]}…"
