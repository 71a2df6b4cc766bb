"""Widths that keep their full size, why, and what that costs: FLOPs that no stage saves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from growthring.core.axes import products, refs
from growthring.core.wording import counted, listed
from growthring.graph.groups import WidthGroups
from growthring.graph.table import by_reason
from growthring.graph.widthgroup import WidthGroup
from growthring.planning.costs import Footprint

Widths = Mapping[int, int]


@dataclass(frozen=True)
class Kept:
    """Widths that keep their full size for one reason.

    Attributes:
        widths: by name.
        reason: why, in words (of the first of them, where others differ in names only).
        flops_share: of the full model's FLOPs, those of weights that have one of these widths.
        parameters_share: of the full model's parameters, those that have one of these widths.
    """

    widths: Mapping[str, int]
    reason: str
    flops_share: float
    parameters_share: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "widths": dict(self.widths)}

    def __str__(self) -> str:
        names = [f"'{name}' ({width})" for name, width in self.widths.items()]
        is_many = len(names) > 3
        which = (
            f"{counted(len(names), 'width')}, such as {listed(names[:2])},"
            if is_many
            else listed(names)
        )
        keeps = "keeps its full size" if len(self.widths) == 1 else "keep their full size"
        return (
            f"{which} {keeps}: {self.reason.rstrip('.')}. {self.flops_share:.0%} of the FLOPs and "
            f"{self.parameters_share:.0%} of the parameters are in layers of "
            f"{'this width' if len(self.widths) == 1 else 'these widths'}."
        )


def kept_widths(groups: WidthGroups, full: Footprint) -> tuple[Kept, ...]:
    """What keeps its full size though it is a width, one entry for each reason; the dearest first.

    Args:
        groups: of the full model.
        full: what the full model costs.
    """
    result = [_kept(groups, alike, full) for alike in by_reason(_kept_groups(groups))]
    return tuple(sorted(result, key=lambda kept: -kept.flops_share))


def _kept_groups(groups: WidthGroups) -> list[WidthGroup]:
    """The widths that keep their full size; of a product, of which one factor would grow, the larger one."""
    kept = {g.key: g for g in groups if g.is_kept}
    growing = {g.key for g in groups.growable}
    passed: set[int] = set()
    for spec in groups.specs.values():
        for product in (p for axis in spec.axes for p in products(axis)):
            factors = [r.group for r in refs(product) if r.group in kept]
            if not any(r.group in growing for r in refs(product)):
                factors = sorted(factors, key=lambda key: kept[key].width)[:-1]
            passed.update(factors)
    return [g for key, g in kept.items() if key not in passed]


def _kept(groups: WidthGroups, alike: Sequence[WidthGroup], full: Footprint) -> Kept:
    keys, sizes = {g.key for g in alike}, groups.full_widths
    on_it = [spec for spec in groups.specs.values() if spec.groups() & keys]
    flops = sum(full.flops_of.get(spec.name, 0.0) for spec in on_it)
    parameters = sum(math.prod(spec.shape(sizes)) for spec in on_it if spec.is_parameter)
    reason = alike[0].frozen
    return Kept(
        {g.name: g.width for g in alike},
        "" if reason is None else reason.text,
        flops / full.flops if full.flops else 0.0,
        parameters / full.parameters if full.parameters else 0.0,
    )


def flops_if_grown(
    groups: WidthGroups, stage_widths: Sequence[Widths], footprints: Sequence[Footprint]
) -> list[float]:
    """FLOPs of each stage if what keeps its full size had the share of it that the other widths have.

    FLOPs of a weight go with its size. Those that no weight takes part in (attention over positions) stay as
    they were counted, so it may be less.
    """
    kept = _kept_groups(groups)
    widest = max(
        (g for g in groups.growable if not g.is_classes), key=lambda g: g.count, default=None
    )
    result = []
    for widths, footprint in zip(stage_widths, footprints, strict=True):
        share = widths[widest.key] / widest.count if widest is not None else 1.0
        thin = {g.key: max(min(2, g.count), round(share * g.count)) for g in kept}
        sizes = {**widths, **thin}
        flops = footprint.flops
        for name, own in footprint.flops_of.items():
            spec = groups.specs.get(name)
            if spec is not None and spec.groups() & thin.keys():
                flops -= own * (1 - math.prod(spec.shape(sizes)) / math.prod(spec.shape(widths)))
        result.append(flops)
    return result
