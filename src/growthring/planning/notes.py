"""What a plan says about itself: where units, rounding or the model overrode what was asked for."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from growthring.core.wording import instances, listed
from growthring.graph.groups import WidthGroups
from growthring.graph.sizes import group_steps
from growthring.graph.steps import Steps
from growthring.graph.widthgroup import WidthGroup

_FAR = 0.08  # of fixed-size training, that seconds may be above FLOPs without a word


def step_notes(
    groups: WidthGroups,
    first: Mapping[int, int],
    round_to: int,
    start: float,
    explicit: Collection[str] = (),
) -> list[str]:
    """Which groups step, or start, otherwise than they were asked to, and because of what.

    Args:
        groups: of the full model.
        first: the widths of stage 0.
        round_to: what widths were to be multiples of.
        start: share of the full width that stage 0 was to have.
        explicit: names of groups whose widths were given, whatever `start` is.
    """
    by_key = {g.key: g for g in groups}
    causes: dict[tuple[str, str], list[WidthGroup]] = {}
    every = [s for s in group_steps(groups, round_to) if isinstance(s, Steps)]
    for steps in every:  # where both factors of a product grow, their widths say how
        for group in (by_key[key] for key in steps.groups):
            step, other = group.width * steps.step // steps.count, ""
            if group.unit > 1:
                why = f"groups of {group.unit} channels whole"
                if group.name not in explicit:
                    other = _other_start(group, first[group.key] * group.unit, round_to, start)
            elif step == groups.units.get(group.key):
                why = "an operator takes no other widths"
            else:
                why = "so it stays in proportion to other sizes"
            if step > round_to or other:
                causes.setdefault((f"in steps of {step}", why + other), []).append(group)
    return [_note(alike, how, why) for (how, why), alike in causes.items()]


def _note(alike: Sequence[WidthGroup], how: str, why: str) -> str:
    names = listed([f"'{g.name}' ({g.width})" for g in alike])
    if alike[0].unit > 1:
        modules = list(dict.fromkeys(g.unit_of for g in alike))
        why = f"{listed(modules, 1)} {'keeps' if len(modules) == 1 else 'keep'} {why}"
    return f"{names} {'grows' if len(alike) == 1 else 'grow'} {how}: {why}."


def _other_start(group: WidthGroup, begins: int, round_to: int, start: float) -> str:
    """What units make of `start`, where that is something else."""
    wanted = max(2, round_to * math.floor(start * group.width / round_to + 0.5))
    if begins == min(wanted, group.width):
        return ""
    least = ", at least two of them" if begins == 2 * group.unit else ""
    return f"{least}: stage 0 has {begins}, not the {wanted} of start={start:g}"


def factor_notes(groups: WidthGroups, stage_widths: Sequence[Mapping[int, int]]) -> list[str]:
    """Products of which both factors can grow and one has its full size at every stage."""
    names, full = {g.key: g.name for g in groups}, groups.full_widths
    found: dict[str, dict[str, None]] = {}
    for pair in groups.factors:
        for key, word in zip((pair.count, pair.size), pair.words, strict=True):
            if stage_widths[0][key] == full[key] and len(stage_widths) > 1:
                found.setdefault(f"{word} {full[key]}", {})[f"'{names[pair.count]}'"] = None
    return [
        f"{listed(list(alike))}: {text} is there from the first stage on, only the other factor grows at these "
        "widths. A narrower start grows both, or widths= of one of them."
        for text, alike in found.items()
    ]


def idle_notes(stage_widths: Sequence[Mapping[int, int]]) -> list[str]:
    """Stages that grow nothing."""
    idle = [t for t in range(1, len(stage_widths)) if stage_widths[t] == stage_widths[t - 1]]
    return [
        f"stage {t} has the widths of stage {t - 1}: the widths leave no room for a step."
        for t in idle
    ]


def seconds_notes(
    shares: tuple[float, float | None], flops: Sequence[float], seconds: Sequence[float]
) -> list[str]:
    """Where narrow stages cost far more seconds than their FLOPs promise: by how much, and what helps.

    Args:
        shares: of the FLOPs and of the seconds of fixed-size training; None where nothing was measured.
        flops: of an example at every stage, as shares of a full-size one.
        seconds: the same, measured.

    >>> seconds_notes((0.6, 0.65), [0.2, 1.0], [0.3, 1.0])
    []
    """
    by_flops, by_seconds = shares
    if by_seconds is None or by_seconds - by_flops <= _FAR:
        return []
    worst = max(range(len(flops)), key=lambda t: seconds[t] - flops[t])
    return [
        f"by the clock training costs {by_seconds - by_flops:.0%} of fixed-size training more than by FLOPs: "
        f"layers are too thin for this machine. An example of stage {worst} takes {seconds[worst]:.0%} of the "
        f"seconds of a full-size one for {flops[worst]:.0%} of its FLOPs. What helps: larger batches in early "
        "stages (batch_growth=1), a wider seed (start=0.5), whole heads (heads='count'), widths in multiples of 16 "
        "(schedule='doubling'). budget= with budget_of='seconds' plans by the clock."
    ]


def unused_notes(unused: Sequence[str]) -> list[str]:
    """Parameters that no pass reaches.

    >>> unused_notes(["head.bias"])
    ["1 parameter, 'head.bias', is used by no forward pass and keeps its shape."]
    """
    if not unused:
        return []
    are = instances(unused, "parameter", ("is", "are"))
    keep = "keeps its" if len(unused) == 1 else "keep their"
    return [f"{are} used by no forward pass and {keep} shape."]
