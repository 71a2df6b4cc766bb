"""The tables of the page: the headline, the growths, the settings, the machines, the notes."""

from __future__ import annotations

from collections.abc import Sequence

from growthring.core.wording import counted
from growthring.report.markup import details, sentence, table, tag, text
from growthring.runs.clocks import clock_words
from growthring.runs.configurations import Configuration, differing_settings
from growthring.runs.metrics import FORGETTING
from growthring.runs.run import Run
from growthring.runs.spread import Spread
from growthring.runs.summary import Row
from growthring.runs.values import canonical, items, mapping, string

_BASES = {"counted": "counted by the run", "planned": "planned, not measured"}


def headline(rows: Sequence[Row], clock: str = "wall") -> str:
    """The main table, above it large numbers if one grown configuration is compared."""
    seconds = clock_words("seconds", clock)
    if not rows:
        return sentence("No runs were given.")
    metric = rows[0].metric
    forget = metric != FORGETTING and any(row.forgetting for row in rows)
    head = ["configuration", metric.title, *([FORGETTING.name] if forget else [])]
    head += ["FLOPs", seconds, clock_words("time", clock), "parameters", "state"]
    body = []
    for row in rows:
        shown = "–" if row.quality is None else metric.text(row.quality)
        folders = ", ".join(row.directories[:3]) + (" …" if len(row.directories) > 3 else "")
        name = tag("span", text(row.run), class_="name", title=row.run)
        lost = "–" if row.forgetting is None else FORGETTING.text(row.forgetting)
        body.append(
            [
                name + tag("small", text(folders), title=", ".join(row.directories)),
                tag("strong", text(shown)),
                *([text(lost)] if forget else []),
                _bar(row.flops_share, row.flops_basis, row.fixed),
                _bar(row.seconds_share, row.seconds_basis, row.fixed),
                text("–" if row.seconds is None else _seconds(row.seconds)),
                text("–" if row.parameters is None else f"{row.parameters:,}"),
                text(row.state or "finished"),
            ]
        )
    caption = f"FLOPs and {seconds} as shares of fixed-size training"
    if any(row.quality and row.quality.deviation is not None for row in rows):
        caption += "; mean ± sample standard deviation over seeds"
    return cards(rows, clock) + table(caption, head, body)


def cards(rows: Sequence[Row], clock: str = "wall") -> str:
    """The three numbers that matter, if they are those of one comparison."""
    grown = [row for row in rows if not row.fixed]
    fixed = [row for row in rows if row.fixed]
    if len(grown) != 1 or len(fixed) != 1 or grown[0].state or grown[0].flops_basis != "fixed":
        return ""
    row = grown[0]
    entries = []
    metric, whole = row.metric, fixed[0].quality
    if row.quality and whole:
        change = metric.factor * (row.quality.mean - whole.mean)
        points = " points" if metric.unit == "%" else ""
        words = f"{change:+.{metric.digits}f}{points} against fixed-size"
        entries.append((metric.text(row.quality), metric.title, words))
    seconds = clock_words("seconds", clock)
    for share, name in ((row.flops_share, "FLOPs"), (row.seconds_share, seconds)):
        if share:
            less = 100 * (1 - share.mean)
            words = f"{abs(less):.0f} % {'less' if less >= 0 else 'more'} than fixed-size"
            entries.append((share.percent(), f"of the {name}", words))
    return tag(
        "ul",
        *(
            tag("li", tag("b", text(value)), tag("span", text(name)), tag("small", text(words)))
            for value, name, words in entries
        ),
        class_="cards",
    )


def growth_section(configurations: Sequence[Configuration], clock: str = "wall") -> str:
    """A table of growths for each run that has any; the first one is unfolded."""
    parts: list[str] = []
    for c in configurations:
        for run in c.runs:
            if run.growths:
                label = c.run_label(run)
                summary = f"{label}: {_growth_summary(run, clock)}"
                parts.append(details(summary, _growth_table(label, run, clock), opened=not parts))
    return "".join(parts) or sentence("There is no table of growths: no run has grown yet.")


def settings_section(configurations: Sequence[Configuration]) -> str:
    """What differs between the configurations, what they share, and the machines."""
    known = [c for c in configurations if c.first.known]
    if not known:
        return sentence("There are no settings: no run has a readable config.json.")
    parts = []
    different = differing_settings(known)
    if different:
        rows = [
            [text(c.label), *(text(_setting(c.first, key)) for key in different)] for c in known
        ]
        head = ["configuration", *map(text, different)]
        parts.append(table("Settings that differ", head, rows, numeric=False))
    first = known[0].first
    skipped = {*different, "seed", "out"}
    common = {key: value for key, value in first.settings.items() if key not in skipped}
    if common:
        rows = [[text(key), text(string(value))] for key, value in common.items()]
        caption = "Settings of all configurations" if len(known) > 1 else "Settings"
        opened = not different and len(rows) <= 16
        shown = table(caption, ["setting", "value"], rows, numeric=False)
        parts.append(details(f"{caption} ({len(rows)})", shown, opened=opened))
    if not parts:
        parts.append(sentence("The runs have no settings."))
    return "".join(parts) + _machines([run for c in known for run in c.runs])


def note_section(
    configurations: Sequence[Configuration], rows: Sequence[Row], clock: str = "wall"
) -> str:
    """The notes of the plans and what was missing or odd about the runs."""
    notes: dict[str, list[str]] = {}  # a note and what it is about
    for c, row in zip(configurations, rows, strict=True):
        for note in c.first.plan.notes:
            notes.setdefault(note, []).append(c.label)
        for run in c.runs:
            for note in map(string, items(mapping(run.result).get("notes"))):
                notes.setdefault(note, []).append(c.label)
            for problem in run.problems:
                notes.setdefault(problem, []).append(str(run.path))
        seconds = clock_words("seconds", clock)
        for basis, what in ((row.flops_basis, "FLOPs"), (row.seconds_basis, seconds)):
            if basis in _BASES:
                why = "no finished fixed-size run is given"
                note = f"The share of {what} is {_BASES[basis]}: {why}."
                notes.setdefault(note, []).append(c.label)
    machines = {run.machine for c in configurations for run in c.runs if run.machine}
    if len(machines) > 1:
        notes["The runs are from different machines: their seconds do not compare."] = []
    if not notes:
        return sentence("There are no notes.")
    entries = []
    for note, about in notes.items():
        names = ", ".join(about[:4]) + (f" and {len(about) - 4} more" if len(about) > 4 else "")
        entries.append(tag("li", text(note), tag("small", text(names)) if about else ""))
    return tag("ul", *entries, class_="notes")


def _bar(share: Spread | None, basis: str, neutral: bool) -> str:
    if share is None:
        return "–"
    mark = "*" if basis == "planned" else ""
    title = _BASES.get(basis, "of the fixed-size run beside it")
    length = f"width:{100 * min(1.0, max(0.0, share.mean)):.1f}%"
    bar = tag("i", tag("i", style=length), class_="bar neutral" if neutral else "bar")
    return tag("span", text(share.percent() + mark), bar, title=title)


def _seconds(seconds: Spread) -> str:
    digits = 0 if seconds.mean >= 1000 else 1
    deviation = "" if seconds.deviation is None else f" ± {seconds.deviation:,.{digits}f}"
    return f"{seconds.mean:,.{digits}f}{deviation} s"


def _setting(run: Run, key: str) -> str:
    return string(run.settings[key]) if key in run.settings else "–"


def _growth_summary(run: Run, clock: str) -> str:
    seconds = sum(growth.seconds or 0.0 for growth in run.growths)
    total = run.final("seconds")
    count = counted(len(run.growths), "growth")
    share = f" ({100 * seconds / total:.2g} % of the run)" if total else ""
    return f"{count} in {seconds:.3g} {clock_words('s', clock)}{share}"


def _growth_table(label: str, run: Run, clock: str) -> str:
    rows = []
    for growth in run.growths:
        done = growth.num_epochs
        epoch = run.epochs[done - 1].number if 0 < done <= len(run.epochs) else 0.0
        cells = [growth.step, growth.parameters]
        rows.append(
            [
                str(growth.stage),
                f"{round(epoch, 2):g}",
                *("–" if cell is None else f"{cell:,}" for cell in cells),
                "–" if growth.change is None else f"{growth.change:.2g}",
                "–" if growth.seconds is None else f"{growth.seconds:.3g}",
            ]
        )
    head = [
        "to stage",
        "after epoch",
        "step",
        "parameters",
        "relative change of outputs",
        clock_words("seconds", clock),
    ]
    return table(f"Growths of {label}", head, rows)


def _machines(runs: Sequence[Run]) -> str:
    by_machine = {
        canonical([run.machine, run.versions]): run for run in runs if run.machine or run.versions
    }
    if not by_machine:
        return sentence("The runs do not tell on which machine they ran.")
    rows = [
        [
            text(run.machine or "–"),
            text(", ".join(f"{name} {version}" for name, version in run.versions.items()) or "–"),
        ]
        for run in by_machine.values()
    ]
    return table("Machines", ["machine", "versions"], rows, numeric=False)
