"""What discovery hands over: the width groups of a model, when its code follows everything that grows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from growthring.core.axes import Axis, refs
from growthring.errors import WidthGroupError
from growthring.graph.analysis import Analysis, Tie
from growthring.graph.attempt import Fit
from growthring.graph.follow import Scaled
from growthring.graph.groups import Law, WidthGroups
from growthring.graph.resize import named_tensors
from growthring.graph.table import reason_lines
from growthring.graph.traced import Traced


def finish(analysis: Analysis, fitted: Fit, laws: Mapping[int, Law], tie: Tie) -> WidthGroups:
    """The finished groups; raises if nothing can grow."""
    analysis.choice.choose()
    traced, walks = analysis.traced, analysis.walks
    specs = traced.specs()
    groups = analysis.groups(specs)
    unknown = {n: m for w in walks for n, m in w.unknown.items()}
    growing = [g.key for g in groups if g.grows]
    if not growing:
        raise nothing_grows(analysis)
    keys = {g.key for g in groups}
    means = {law.mean for law in laws.values()}
    statistics = [
        replace(s, axis=traced.known(s.axis, keys), is_mean=(s.module, s.site) in means)
        for w in walks
        for s in w.statistics
    ]
    unique = {s.place: s for s in statistics}
    return WidthGroups(
        type(analysis.model).__name__,
        tuple(groups),
        {n: specs[n] for n in named_tensors(analysis.model) if n in specs},
        tuple(analysis.scales.records),
        analysis.scales.count,
        tuple(unique.values()),
        {place: _known_rule(traced, rule, keys) for place, rule in fitted.attributes.items()},
        laws,
        analysis.spans(growing, tie),
        unknown,
        (
            *fitted.notes,
            *analysis.choice.notes({g.key: g.name for g in groups}),
            *_notes(traced, growing),
        ),
        analysis.units(growing),
        analysis.choice.factors,
        tuple(analysis.choice.stuck),
    )


def _known_rule(
    traced: Traced, rule: tuple[Axis, ...] | Scaled, keys: set[int]
) -> tuple[Axis, ...] | Scaled:
    if isinstance(rule, Scaled):
        return replace(rule, axis=traced.known(rule.axis, keys))
    return tuple(traced.known(axis, keys) for axis in rule)


def nothing_grows(analysis: Analysis) -> WidthGroupError:
    """Says why its widths are frozen, each reason once."""
    groups = analysis.groups(analysis.traced.specs())
    lines = reason_lines([g for g in groups if not g.is_minor] or groups)
    return WidthGroupError(
        f"nothing in {type(analysis.model).__name__} can grow. Its widths and why they are frozen:\n  "
        + ("\n  ".join(lines) or "it has no parameters")
    )


def _notes(traced: Traced, growing: Sequence[int]) -> Iterable[str]:
    """What the forward pass leaves on modules and gets wider: nobody sees what it is used for."""
    seen: set[str] = set()
    for walk in traced.walks:
        for value, name in walk.trace.left.items():
            axes = [traced.unifier.resolve(a) for a in walk.info(value).axes]
            if name not in seen and {r.group for a in axes for r in refs(a)} & set(growing):
                seen.add(name)
                yield (
                    f"the forward pass leaves '{name}' on a module, and it gets wider with the model: whatever "
                    "uses it from outside has to follow, or freeze what writes it."
                )
