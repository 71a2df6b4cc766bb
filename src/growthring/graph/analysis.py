"""Analysis: what is known of a model from its traces, and the widths to try its code at."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from growthring.core.axes import Axis, Product, Ref, refs
from growthring.graph.candidates import alike
from growthring.graph.choosing import Choice, FactorRule
from growthring.graph.classes import class_groups
from growthring.graph.factors import pairs_of
from growthring.graph.follow import Attributes, Scaled
from growthring.graph.freezing import freeze_what_cannot_grow
from growthring.graph.groups import TensorSpec
from growthring.graph.naming import named_groups
from growthring.graph.places import Place
from growthring.graph.probe import Probe
from growthring.graph.resize import handled_attributes
from growthring.graph.sizes import in_proportion, in_sets, probe_widths, spans_of, units_of
from growthring.graph.trace import ExampleInputs, Trace
from growthring.graph.traced import Traced, Widths
from growthring.graph.widthgroup import WidthGroup

# Which widths move together: none, those of the layers of a stack, those whose sizes are equal somewhere, or all
# in one proportion.
Tie = Literal["apart", "alike", "equal", "proportional"]
Build = Callable[[dict[str, int]], nn.Module]


@dataclass(frozen=True)
class Run:
    """How the model is run.

    Attributes:
        inputs: what it is run on.
        modes: train mode or not, for each trace.
        outputs: the parts of its output that count, or None for all.
        build: what makes it at other widths, or None: a copy of the model whose attributes follow.
        classes: how many of them its outputs have, if these are to grow.
    """

    inputs: ExampleInputs
    modes: Sequence[bool]
    outputs: Sequence[str] | None
    build: Build | None
    classes: int | None = None


class Analysis:
    """What is known of a model from its traces, and the widths to try its code at.

    Attributes:
        traced: the traces.
        run: how the model is run.
        choice: what grows.
        unit: of which every width is a multiple, as far as its full width is.
    """

    def __init__(
        self,
        model: nn.Module,
        traces: Sequence[Trace],
        patterns: Sequence[str],
        rule: FactorRule,
        run: Run,
    ) -> None:
        self.model, self.run = model, run
        self.traced = Traced(model, traces, run.classes is not None)
        self.unifier, self.scales = self.traced.unifier, self.traced.scales
        self.walks = self.traced.walks
        if run.classes is not None:
            self.traced.classes = class_groups(self.traced, run.classes)
        self.choice = Choice(self.traced, rule)
        self.unit = 1
        freeze_what_cannot_grow(self.traced, patterns)

    def groups(self, specs: Mapping[str, TensorSpec]) -> list[WidthGroup]:
        """The groups that tensors refer to, growable ones first."""
        return named_groups(self.unifier, specs, self.choice.frozen, self.traced.units())

    def attributes(self) -> dict[Place, tuple[Axis, ...] | Scaled]:
        """Attributes known from operator rules and from handlers."""
        stated: dict[Place, tuple[Axis, ...] | Scaled] = {}
        for walk in self.walks:
            for place, axes in walk.attributes.items():
                stated[place] = tuple(self.unifier.resolve(a) for a in axes)
        return stated | dict(handled_attributes(self.model, self.traced.specs()))

    def spans(self, growing: Sequence[int], tie: Tie) -> tuple[Axis, ...]:
        """The spans of equal size, which move together; classes move by themselves."""
        growing = [g for g in growing if g not in self.traced.classes]
        if tie == "apart":
            return ()
        full = {g: self.unifier.size(Ref(g)) for g in growing}
        if tie == "alike":
            sets: dict[tuple[str, int], list[int]] = {}
            for group in self.groups(self.traced.specs()):
                if group.key in full:
                    sets.setdefault((alike(group.name), group.width), []).append(group.key)
            return tuple(in_sets(full, sets.values()))
        spans = spans_of(self.traced.specs().values(), growing)
        if tie == "equal":
            return tuple(spans)
        return (*spans, *in_proportion(full, growing, self.pairs(growing, tie)))

    def pairs(self, growing: Sequence[int], tie: Tie) -> list[tuple[int, int]]:
        """The factors that share the growth of their product, where that moves with what is as large."""
        if tie not in ("equal", "proportional"):
            return []
        specs = self.traced.specs().values()
        return pairs_of((axis for spec in specs for axis in spec.axes), set(growing))

    def probe(
        self,
        growing: Sequence[int],
        tie: Tie,
        variation: int = 0,
        more: Attributes | None = None,
    ) -> Probe:
        """The widths to try the model's code at; what need not move together shrinks by different amounts."""
        specs = self.traced.specs()
        keys = {ref.group for s in specs.values() for axis in s.axes for ref in refs(axis)}
        full = self.traced.full_widths(keys)
        spans = spans_of(specs.values(), growing)
        factors = {r.group for axis in spans if isinstance(axis, Product) for r in refs(axis)}
        small = probe_widths(
            self.spans(growing, tie),
            full,
            growing,
            factors if tie in ("apart", "alike") else (),
            variation,
            self.units(growing),
            self.pairs(growing, tie),
        )
        probe = Probe(
            self.model,
            self.run.inputs,
            self.run.outputs,
            self.walks,
            self.run.modes,
            specs,
            full,
            full,
            {**(more or {}), **self.attributes()},
        )
        return self.at(probe, {**full, **small})

    def units(self, growing: Sequence[int]) -> dict[int, int]:
        """What the width of each group is a multiple of: for the config, and for operators that need it."""
        full = self.traced.full_widths(growing)
        multiples = [(self.unifier.resolve(a), n) for w in self.walks for a, n in w.multiples]
        needed = units_of(multiples, full, growing)
        return {g: math.lcm(math.gcd(self.unit, full[g]), needed.get(g, 1)) for g in growing}

    def at(self, probe: Probe, widths: Mapping[int, int]) -> Probe:
        """The same probe at other widths."""
        small, build = Widths(self.unifier, widths), None
        if self.run.build is not None:
            named = {g.name: small[g.key] * g.unit for g in self.groups(probe.specs) if g.grows}
            build = functools.partial(self.run.build, named)
        return replace(probe, small=small, build=build)
