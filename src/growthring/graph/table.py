"""The width groups of a model as text: what grows, what does not and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from growthring.core.wording import counted, listed
from growthring.graph.widthgroup import WidthGroup

_MOST_MEMBERS = 6
_MOST_REASONS = 8
# What two reasons of one kind differ in: names, other than that of the operator, and numbers.
_PARTICULAR = re.compile(r"(operator '[^']*'|output \d+)|'[^']*'|\b\d+\b")


def group_table(
    model: str,
    groups: Sequence[WidthGroup],
    fading: Sequence[str],
    unknown: Mapping[str, str],
    notes: Sequence[str],
    everything: bool = False,
    roles: Mapping[str, str] | None = None,
) -> str:
    """Groups, who writes and reads each, what is frozen and why.

    Args:
        model: what the model is called.
        groups: its width groups.
        fading: modules whose statistics fade in.
        unknown: operators without a rule, and a module that uses each.
        notes: what else is to be said.
        everything: list sizes too that nobody would call a width.
        roles: what the factors of products are called of which both grow.
    """
    shown = [g for g in groups if everything or not g.is_minor]
    growable = [g for g in shown if g.grows]
    given = [g for g in shown if g.is_given and not everything]
    frozen = [g for g in shown if not g.grows and g not in given]
    num_frozen = len(shown) - len(growable)
    lines = [
        f"{model}: {counted(len(shown), 'width group')}, {len(growable)} can grow, "
        f"{counted(num_frozen, 'is', 'are')} frozen"
    ]
    for title, chosen in (("CAN GROW", growable), ("FROZEN", frozen)):
        if chosen:
            lines += [
                "",
                title,
                *(line for g in chosen for line in _entry(g, (roles or {}).get(g.name, ""))),
            ]
    if given:
        lines += ["", "FROZEN: SIZES OF THE DATA"]
        lines += [f"  {g.name}  width {g.width}: {_reason(g)}" for g in given]
    if fading:
        lines += ["", "NORMS WHOSE STATISTICS FADE IN", "  " + ", ".join(fading)]
    if unknown:
        lines += ["", "OPERATORS WITHOUT A RULE (everything that touches them is frozen)"]
        lines += [f"  {name} in '{module or '(model)'}'" for name, module in unknown.items()]
    if notes:
        lines += ["", "NOTES", *(f"  {note}" for note in notes)]
    left = _left_out([g for g in groups if g not in shown])
    return "\n".join(
        [
            *lines,
            *(
                ["", f"Not listed: {left} (inspect --all, groups.table(everything=True))."]
                if left
                else []
            ),
        ]
    )


def _entry(group: WidthGroup, role: str = "") -> Iterable[str]:
    unit = f", in groups of {group.unit} ({group.unit_of})" if group.unit > 1 else ""
    yield f"  {group.name}  {role or 'width'} {group.width}{unit}"
    if group.frozen is not None:
        yield f"      why      {group.frozen.text}"
    for role in ("writes", "reads", "shares"):
        members = [m for m in group.members if m.role == role]
        for i, m in enumerate(members[:_MOST_MEMBERS]):
            label = role if i == 0 else ""
            shown = "" if m.structure == "w" else f" = {m.structure}"
            yield f"      {label:<8} {m.tensor} axis {m.axis}{shown}"
        if len(members) > _MOST_MEMBERS:
            yield f"      {'':<8} … and {len(members) - _MOST_MEMBERS} more"


def _left_out(groups: Sequence[WidthGroup]) -> str:
    units = sum(g.is_unit for g in groups)
    kinds = ((len(groups) - units, "kernel size"), (units, "size of a group", "sizes of groups"))
    return " and ".join(counted(*kind) for kind in kinds if kind[0])


def _reason(group: WidthGroup) -> str:
    return "" if group.frozen is None else group.frozen.text


def by_reason(groups: Iterable[WidthGroup]) -> list[list[WidthGroup]]:
    """Frozen groups, those together whose reasons differ in names only."""
    alike: dict[str, list[WidthGroup]] = {}
    for group in groups:
        alike.setdefault(_PARTICULAR.sub(lambda m: m[1] or "…", _reason(group)), []).append(group)
    return list(alike.values())


def reason_lines(groups: Iterable[WidthGroup]) -> list[str]:
    """Why groups are frozen: each reason once, with the number of widths that it concerns."""
    sets = sorted(by_reason(groups), key=len, reverse=True)
    lines = []
    for alike in sets[:_MOST_REASONS]:
        names = listed([f"{g.name} ({g.width})" for g in alike[:2]], 2)
        such = f"{counted(len(alike), 'width')}, such as {names}" if len(alike) > 2 else names
        lines.append(f"{such}: {_reason(alike[0])}")
    if len(sets) > _MOST_REASONS:
        left = sum(map(len, sets[_MOST_REASONS:]))
        lines.append(f"{counted(left, 'more width')} for other reasons")
    return lines
