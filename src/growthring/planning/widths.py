"""Widths of every group at every stage: by the schedule, or as they were asked for."""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Mapping, Sequence

from torch import nn

from growthring.core.wording import counted
from growthring.errors import GrowthError, PlanError
from growthring.graph.groups import WidthGroups
from growthring.graph.resize import empty_copy
from growthring.graph.sizes import group_steps, widths_at
from growthring.graph.trace import ExampleInputs, trace
from growthring.graph.widthgroup import WidthGroup
from growthring.planning.options import PlanOptions
from growthring.planning.schedule import recursive_widths

_LANES = (
    16  # numbers that a processor's widest registers take at once, and that kernels are blocked by
)


def choose_widths(
    groups: WidthGroups,
    options: PlanOptions,
    explicit: Mapping[str, Sequence[int]],
    fractions: Sequence[float],
) -> tuple[dict[int, int], ...]:
    """Width of every group at every stage, by key.

    Args:
        groups: of the full model.
        options: the schedule.
        explicit: widths by group name that are as they were asked for, see `explicit_widths`.
        fractions: of the full width at every stage.
    """
    round_to, stages = options.round_to, len(fractions)
    at = _halved if options.schedule == "doubling" else widths_at
    steps = [at(groups, fraction, round_to) for fraction in fractions]
    if options.schedule == "recursive" and options.growth is not None:
        by_key = {g.key: g for g in groups}
        for together in group_steps(groups, round_to):
            first = by_key[together.groups[0]]
            begins = steps[0][first.key] * first.unit
            row = recursive_widths(begins, first.width, stages, options.growth, round_to)
            for t, width in enumerate(row):  # what steps together has one fraction
                at_fraction = widths_at(groups, width / first.width, round_to)
                steps[t] |= {key: at_fraction[key] for key in together.groups}
    for name, widths in explicit.items():
        group = groups[name]
        for t, width in enumerate(widths):
            steps[t][group.key] = width // group.unit
    return tuple(steps)


def _halved(groups: WidthGroups, fraction: float, round_to: int) -> dict[int, int]:
    """Widths at a fraction, in multiples of 16 where the full ones are, and as they come where that is too coarse.

    Raises:
        PlanError: a width cannot be halved so often.
    """
    full, widths = groups.full_widths, widths_at(groups, fraction, round_to)
    by_key = {g.key: g for g in groups}
    for steps in group_steps(groups, _LANES):
        members = [by_key[key] for key in steps.groups]
        for group in members:
            if fraction * full[group.key] < 1:
                most, asked = math.floor(math.log2(full[group.key])), round(-math.log2(fraction))
                parts = f" ({full[group.key]} groups)" if group.unit > 1 else ""
                raise PlanError(
                    f"'{group.name}' is {group.width} wide{parts} and cannot be halved {asked} times: choose at "
                    f"most {counted(most + 1, 'stage')}, or freeze=['{group.name}']."
                )
        coarse = steps.widths(full, fraction)
        is_wide = all(fraction * g.width >= _LANES and g.width % _LANES == 0 for g in members)
        if is_wide and (fraction == 1 or all(coarse[key] < full[key] for key in coarse)):
            widths |= coarse
    return widths


def distinct_stages(widths: Sequence[Mapping[int, int]]) -> list[int]:
    """The stages that are wider than the one before; the later one of two that are equal.

    Raises:
        PlanError: there is no step at all.

    >>> distinct_stages([{0: 8}, {0: 8}, {0: 16}])
    [1, 2]
    """
    last = len(widths) - 1
    kept = [t for t in range(last) if widths[t] != widths[t + 1]]
    if last > 0 and not kept:
        raise PlanError(
            "no width leaves room for a step: each that can grow is rounded to its full size at every stage. "
            "Choose a smaller start or round_to."
        )
    return [*kept, last]


def explicit_widths(groups: WidthGroups, options: PlanOptions, stages: int) -> dict[str, list[int]]:
    """The widths that were asked for, by group name.

    Raises:
        PlanError: a group cannot have them.
    """
    by_group: dict[str, list[int]] = {}
    for pattern, asked in options.width_pairs:
        widths = list(asked)
        hits = [g for g in groups if fnmatch.fnmatchcase(g.name, pattern)]
        if not hits:
            groups[pattern]  # raises, and lists the names
        for group in hits:
            if group.name in by_group:
                raise PlanError(
                    f"widths names the group '{group.name}' twice (again by '{pattern}')."
                )
            _check(group, widths, stages)
            unit = groups.units.get(group.key, 1)
            if any(width % group.unit for width in widths):
                raise PlanError(
                    f"widths['{group.name}'] = {widths}: {group.unit_of} keeps its groups of {group.unit} channels "
                    f"whole, so widths are multiples of {group.unit}."
                )
            if any(width // group.unit % unit for width in widths):
                raise PlanError(
                    f"widths['{group.name}'] = {widths}: an operator takes multiples of {unit * group.unit} "
                    "only (torch's grouped product needs rows of whole 16 bytes)."
                )
            by_group[group.name] = widths
    return by_group


def try_out(
    model: nn.Module, groups: WidthGroups, widths: Mapping[int, int], inputs: ExampleInputs
) -> None:
    """Runs a copy of explicit widths on fake tensors: they may break sizes that the model's code relies on.

    Raises:
        PlanError: it does not run.
    """
    twin = empty_copy(model, groups.specs, groups.attributes, groups.full_widths, widths)
    try:
        trace(twin, inputs)
    except GrowthError as error:
        cause = str(error.__cause__ or error).strip().splitlines()[0]
        raise PlanError(
            f"{type(model).__name__} does not run at the explicit widths of stage 0 ({cause}). Sizes that are "
            "equal in the full model may have to stay equal: give those groups the same widths."
        ) from error


def _check(group: WidthGroup, widths: Sequence[int], stages: int) -> None:
    where = f"widths['{group.name}'] = {list(widths)}"
    if not group.grows and group.frozen is not None and any(w != group.width for w in widths):
        raise PlanError(
            f"{where}: this group is frozen ({group.frozen.text}) and keeps its width {group.width}."
        )
    if len(widths) != stages:
        raise PlanError(f"{where}: {counted(len(widths), 'width')} for {counted(stages, 'stage')}.")
    if any(isinstance(w, bool) or not isinstance(w, int) or w < 1 for w in widths):
        raise PlanError(f"{where}: widths are whole numbers, at least 1.")
    for t, (a, b) in enumerate(itertools.pairwise(widths)):
        if b < a:
            raise PlanError(
                f"{where}: shrinks from {a} to {b} at stage {t + 1}; a growing network only gains width."
            )
    if widths[-1] != group.width:
        raise PlanError(
            f"{where}: must end at the full width {group.width}, so that the last stage is the given model."
        )
