"""Widths of every group at every stage: by the schedule, or as they were asked for."""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Mapping, Sequence

from torch import nn

from growthring.core.wording import counted
from growthring.errors import GrowthError, PlanError
from growthring.graph.factors import Split
from growthring.graph.groups import WidthGroups
from growthring.graph.resize import empty_copy
from growthring.graph.sizes import group_steps, widths_over
from growthring.graph.steps import Steps
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
    by_name = {g.name: g for g in groups}
    given = {
        by_name[name].key: [width // by_name[name].unit for width in widths]
        for name, widths in explicit.items()
    }
    steps = widths_over(groups, fractions, round_to, given)
    if options.schedule == "doubling":
        for row, fraction in zip(steps, fractions, strict=True):
            row |= _halved(groups, fraction, round_to)
    if options.schedule == "recursive" and options.growth is not None:
        for together in group_steps(groups, round_to):
            begins, last = _first_and_last(groups, together, steps[0])
            wide = recursive_widths(begins, last, stages, options.growth, round_to)
            shares = [width / last for width in wide]  # what steps together has one fraction
            over = together.over(groups.full_widths, shares, given)
            for t, at_share in enumerate(over):
                steps[t] |= at_share
    for key, asked in given.items():
        for t, width in enumerate(asked):
            steps[t][key] = width
    for key in (g.key for g in groups if g.is_classes):
        for row, number in zip(steps, options.classes or (), strict=True):
            row[key] = number
    if given:
        _check_products(groups, steps, round_to)
    return tuple(steps)


def _first_and_last(
    groups: WidthGroups, together: Steps | Split, first: Mapping[int, int]
) -> tuple[int, int]:
    """The width of stage 0 and the full one of what steps together: of the product, where both factors grow."""
    by_key = {g.key: g for g in groups}
    keys = [part.groups[0] for part in together.parts[:2]]
    begins = math.prod(first[key] * by_key[key].unit for key in keys)
    return begins, math.prod(by_key[key].width for key in keys)


def _check_products(groups: WidthGroups, steps: Sequence[Mapping[int, int]], round_to: int) -> None:
    """Refuses given widths at which a product is not as large as what has its size in the full model."""
    names, full = {g.key: g.name for g in groups}, groups.full_widths
    for together in group_steps(groups, round_to):
        if not isinstance(together, Split) or together.rest is None:
            continue
        rest = together.rest.groups[0]
        for factors in groups.factors:
            whole = full[factors.count] * full[factors.size]
            if factors.count not in together.groups or whole % full[rest]:
                continue
            for t, widths in enumerate(steps):
                count, size, width = (widths[k] for k in (factors.count, factors.size, rest))
                if count * size * full[rest] != whole * width:
                    outer, inner = factors.words
                    raise PlanError(
                        f"widths of stage {t}: {count} {outer} ('{names[factors.count]}') × {inner} {size} "
                        f"('{names[factors.size]}') make {count * size}, and '{names[rest]}' has {width} where "
                        f"{count * size * full[rest] / whole:g} would go with them: the model's code divides "
                        "one by the other. Give two of the three, or widths that fit."
                    )


def _halved(groups: WidthGroups, fraction: float, round_to: int) -> dict[int, int]:
    """Widths at a fraction that are multiples of 16, where the full ones are and that is not too coarse.

    Raises:
        PlanError: a width cannot be halved so often.
    """
    full, widths = groups.full_widths, dict[int, int]()
    by_key = {g.key: g for g in groups}
    for steps in group_steps(groups, _LANES):
        if isinstance(steps, Split):
            continue  # their product has its share already
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
    if group.is_classes:
        raise PlanError(f"{where}: these are the classes of the outputs, and classes= has them.")
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
