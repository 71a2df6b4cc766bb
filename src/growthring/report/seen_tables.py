"""Accuracy per stage in numbers: of all classes seen, of the classes that each stage brought, and its cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from growthring.core.wording import counted
from growthring.report.markup import details, sentence, table, tag, text
from growthring.runs.clocks import clock_words
from growthring.runs.metrics import ACCURACY, FORGETTING
from growthring.runs.spread import Spread
from growthring.runs.stages import Staged, StageMean, forgotten, mean_over_stages
from growthring.runs.summary import state_of

_MOST = 25  # stages side by side; of more, some are shown
_MOST_FOLDED = 12
_NOTHING = "–"


def about_stage(mean: StageMean) -> list[str]:
    """What a stage had, as far as it is known.

    >>> about_stage(StageMean(2, 1, 30, 5000, None, (), None, None))
    ['30 classes', '5,000 examples']
    """
    known = ((mean.classes, "class", "classes"), (mean.examples, "example", ""))
    return [counted(number, *words) for number, *words in known if number is not None]


def accuracy_table(shown: Sequence[Staged]) -> str:
    """What each configuration knew on average and forgot, then its accuracy stage by stage."""
    lost = [forgotten(one.runs) for one in shown]
    columns = _stages(shown)
    head = [text("configuration"), text("mean") + tag("small", "over stages")]
    head += [text(FORGETTING.name) + tag("small", "points")] if any(lost) else []
    head += [_heading(stage, shown) for stage in columns]
    body = []
    for one, forgetting in zip(shown, lost, strict=True):
        cells = [_name(one), _percent(mean_over_stages(one.runs), ACCURACY.digits)]
        cells += [_percent(forgetting, FORGETTING.digits)] if any(lost) else []
        found = {mean.stage: mean.accuracy for mean in one.means}
        body.append([*cells, *(_percent(found.get(stage), 1) for stage in columns)])
    caption = "Test accuracy at the end of each stage, on the classes seen so far, %"
    return table(caption, head, body) + _left_out(shown, columns)


def cost_tables(shown: Sequence[Staged], clock: str) -> str:
    """FLOPs and seconds until the end of each stage, folded; nothing where they are not known."""

    def flops(one: Staged, mean: StageMean) -> str:
        share = one.flops_share(mean)
        return _NOTHING if share is None else f"{100 * share:.1f}"

    def seconds(_: Staged, mean: StageMean) -> str:
        return _NOTHING if mean.seconds is None else f"{mean.seconds.mean:,.4g}"

    words = clock_words("seconds", clock)
    tables = [
        _cost_table("FLOPs of training so far, % of fixed-size training", shown, flops),
        _cost_table(f"{words[:1].upper()}{words[1:]} of training so far", shown, seconds),
    ]
    return details("Cost up to the end of each stage", *tables) if any(tables) else ""


def part_tables(shown: Sequence[Staged]) -> str:
    """Of each configuration, folded: rows are stages, columns the classes that each stage brought."""
    parts = [part for one in shown if (part := _part_table(one))]
    left_out = len(parts) - _MOST_FOLDED
    note = f"Left out: the classes of {counted(left_out, 'more configuration')}."
    return "".join(parts[:_MOST_FOLDED]) + (sentence(note) if left_out > 0 else "")


def _part_table(one: Staged) -> str:
    """Empty where all classes came at once: there is nothing to forget."""
    brought = dict.fromkeys(k for m in one.means for k, part in enumerate(m.parts) if part)
    columns = _some(sorted(brought))
    if len(columns) < 2:
        return ""
    rows = []
    for stage in _some([mean.stage for mean in one.means]):
        mean = next(mean for mean in one.means if mean.stage == stage)
        cells = [mean.parts[k] if k < len(mean.parts) else None for k in columns]
        rows.append([_heading(stage, [one]), *map(_heat, cells)])
    name = one.configuration.label
    head = ["end of", *(text(f"classes of stage {k}") for k in columns)]
    caption = "Test accuracy on the classes that each stage brought, %"
    if len(one.runs) > 1:
        caption += f", mean over {counted(len(one.runs), 'seed')}"
    return details(
        f"What {name} knew of the classes of each stage",
        table(caption, head, rows),
        _left_out([one], columns),
    )


def _cost_table(
    caption: str, shown: Sequence[Staged], cell: Callable[[Staged, StageMean], str]
) -> str:
    columns, body = _stages(shown), []
    for one in shown:
        cells = {mean.stage: text(cell(one, mean)) for mean in one.means}
        body.append([_name(one), *(cells.get(stage, _NOTHING) for stage in columns)])
    if all(value == _NOTHING for row in body for value in row[1:]):
        return ""
    head = [text("configuration"), *(_heading(stage, shown) for stage in columns)]
    return table(caption, head, body)


def _stages(shown: Sequence[Staged]) -> list[int]:
    return _some(sorted({mean.stage for one in shown for mean in one.means}))


def _some(stages: list[int]) -> list[int]:
    """All of them or, of very many, some evenly from the first to the last."""
    if len(stages) <= _MOST:
        return stages
    return [stages[round(i * (len(stages) - 1) / (_MOST - 1))] for i in range(_MOST)]


def _left_out(shown: Sequence[Staged], columns: Sequence[int]) -> str:
    rest = len({mean.stage for one in shown for mean in one.means}) - len(columns)
    if len(columns) < _MOST or rest <= 0:
        return ""
    return sentence(f"Left out: {counted(rest, 'stage')} between these.")


def _heading(stage: int, shown: Sequence[Staged]) -> str:
    """A stage, with its classes or examples where all configurations have the same."""
    told = {tuple(about_stage(m)[:1]) for one in shown for m in one.means if m.stage == stage}
    about = next(iter(told)) if len(told) == 1 else ()
    return text(f"stage {stage}") + "".join(tag("small", text(words)) for words in about)


def _name(one: Staged) -> str:
    """The label and, of runs that go on, how far they are."""
    label = one.configuration.label
    state = state_of(one.configuration)
    name = tag("span", text(label), class_="name", title=label)
    return name + (tag("small", text(state)) if state else "")


def _percent(value: Spread | None, digits: int) -> str:
    return text(_NOTHING if value is None else value.percent(digits).removesuffix(" %"))


def _heat(part: Spread | None) -> str:
    if part is None:
        return _NOTHING
    heat = f"--heat:{45 * min(1.0, max(0.0, part.mean)):.0f}%"
    return tag("span", text(f"{100 * part.mean:.1f}"), class_="heat", style=heat)
