"""What grows: every width that is not frozen, and of each product one factor, or both if that is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from growthring.core.axes import Product, Ref, products, refs
from growthring.core.presets import preset_named
from growthring.core.wording import listed
from growthring.graph.factors import FactorPair, pair_of
from growthring.graph.groups import WidthGroups
from growthring.graph.sizes import Stages, group_steps
from growthring.graph.steps import Steps
from growthring.graph.traced import Traced
from growthring.graph.unify import Reason

Heads = Literal["auto", "size", "count", "both"]
# The inner factor, the outer one, both, the number of heads where that can follow the stages, or the larger factor.
FactorRule = Literal["size", "count", "both", "whole", "larger"]
_FEWEST_HEADS = 4  # two is the least width, so two heads cannot be halved


def factor_rule(heads: Heads, preset: str = "default") -> FactorRule:
    """Which factor of a product grows; what "auto" is, the preset decides.

    >>> factor_rule("auto", "paper"), factor_rule("count", "paper")
    ('larger', 'count')
    """
    return preset_named(preset).heads if heads == "auto" else heads


class Choice:
    """The widths that grow. Where an axis is a product, one of its factors does, and the other is passed over.

    With the rule "both" no factor is.

    Attributes:
        factors: the products of which both factors grow, by the last choice.
        stuck: numbers of heads that were asked for, and are so few that they cannot grow.
    """

    def __init__(self, traced: Traced, rule: FactorRule) -> None:
        self._traced, self._unifier, self._rule = traced, traced.unifier, rule
        self.factors: tuple[FactorPair, ...] = ()
        self.stuck: set[int] = set()
        self._passed_over: dict[int, Reason] = {}
        self._chosen_heads: set[int] = set()
        self._given_up: set[int] = set()  # numbers of heads that are too coarse for the stages

    def choose(self) -> list[int]:
        """The groups that grow: unfrozen, and one factor of each product."""
        specs = self._traced.specs()
        keys = {ref.group for s in specs.values() for axis in s.axes for ref in refs(axis)}
        self._passed_over, self._chosen_heads, self.stuck = {}, set(), set()
        every = [p for s in specs.values() for axis in s.axes for p in products(axis)]
        settled: set[int] = set()  # widths that grow in some product for lack of another choice
        for product in every:
            live = self._live_factors(product)
            if len(live) == 1:
                # two is the least width, so such a factor would not grow at all
                settled.update(r.group for r in live[0][1] if self._unifier.size(r) > 2)
        heads = self._whole_heads()
        pairs = self._pairs(every)
        for product in every:
            if pair_of(product, self._live(product)) not in pairs:
                self._choose_factor(product, settled, heads)
        parallel = self._parallel()
        self.factors = tuple(
            FactorPair(count, size, count in parallel)
            for count, size in pairs
            if self.frozen(count) is None and self.frozen(size) is None
        )
        return sorted(k for k in keys if self.frozen(k) is None)

    def frozen(self, group: int) -> Reason | None:
        """Why a width does not grow; one passed over for the other factor of a product may be chosen later."""
        return self._unifier.frozen(group) or self._passed_over.get(group)

    def notes(self, names: Mapping[int, str]) -> list[str]:
        """Where both factors were to grow and one cannot: which, and why.

        Args:
            names: of the groups.
        """
        if self._rule != "both":
            return []
        parallel = self._parallel()
        found: dict[str, dict[str, None]] = {}
        for product in self._products():
            factors = [p.group for p in product.parts if isinstance(p, Ref)]
            still = [g for g in factors if self.frozen(g) is not None]
            live = [g for g in factors if g not in still]
            if not parallel.intersection(factors) or not live or not still:
                continue
            reason = self.frozen(still[-1])
            assert reason is not None
            what = "number of heads" if live[0] in parallel else "head size"
            text = f"only the {what} grows: {reason.text}"
            found.setdefault(text, {})[f"'{names[live[0]]}'"] = None
        return [f"heads='both': of {listed(list(own))} {text}." for text, own in found.items()]

    def gives_up(self, groups: WidthGroups, stages: Stages) -> bool:
        """Whether numbers of heads cannot follow the stages of a plan; their head sizes are chosen next time.

        Args:
            groups: that came of the last choice.
            stages: of the plan.
        """
        coarse: set[int] = set()
        every = [part for s in group_steps(groups, stages.round_to) for part in s.parts]
        for steps in every:
            own = self._chosen_heads.intersection(steps.groups)
            if own and not self._follows(steps, groups.full_widths, stages):
                coarse |= own
        self._given_up |= coarse
        return bool(coarse)

    def gives_up_heads(self) -> bool:
        """Gives up all whole heads, for a config that cannot say their number; whether there were any."""
        chosen = self._chosen_heads - self._given_up
        self._given_up |= chosen
        return bool(chosen)

    def _follows(self, steps: Steps, full: dict[int, int], stages: Stages) -> bool:
        """Whether whole heads give every stage just the width that it asks for.

        Else they would shrink less than the widths beside them, and code and configs that divide a hidden size by
        the number of heads (transformers' BERT) could not describe the model between two growths.
        """
        one = steps.groups[0]
        return all(
            math.isclose(steps.widths(full, fraction)[one], fraction * full[one])
            for fraction in stages.fractions
        )

    def _whole_heads(self) -> set[int]:
        """Numbers of heads that may grow in pairs of heads."""
        if self._rule != "whole":
            return set()
        found = {group: self._unifier.size(Ref(group)) for group in self._parallel()}
        even = {group for group, n in found.items() if n >= _FEWEST_HEADS and n % 2 == 0}
        return even - self._given_up

    def _parallel(self) -> set[int]:
        """Widths along which products of activations are made side by side, such as numbers of heads."""
        axes = [self._unifier.resolve(a) for walk in self._traced.walks for a in walk.parallel]
        return {r.group for axis in axes for r in refs(axis)}

    def _products(self) -> list[Product]:
        specs = self._traced.specs()
        return [p for s in specs.values() for axis in s.axes for p in products(axis)]

    def _live(self, product: Product) -> set[int]:
        return {r.group for r in refs(product) if self.frozen(r.group) is None}

    def _pairs(self, every: Sequence[Product]) -> list[tuple[int, int]]:
        """The products of which both factors are to grow: a width is the outer factor of all of its or of none."""
        if self._rule != "both":
            return []
        found = (pair_of(product, self._live(product)) for product in every)
        pairs = list(dict.fromkeys(pair for pair in found if pair is not None))
        mixed = {count for count, _ in pairs} & {size for _, size in pairs}
        return [pair for pair in pairs if not mixed.intersection(pair)]

    def _live_factors(self, product: Product) -> list[tuple[int, list[Ref]]]:
        parts = [[r for r in refs(part) if self.frozen(r.group) is None] for part in product.parts]
        return [(i, group) for i, group in enumerate(parts) if group]

    def _number(self, live: Sequence[tuple[int, list[Ref]]]) -> int:
        """The factor that is a number of heads; of grouped queries there are two, and two of either cannot grow."""
        parallel = self._parallel()
        counts = [item for item in live if all(r.group in parallel for r in item[1])]
        able = [i for i, own in counts if any(self._unifier.size(r) > 2 for r in own)]
        if counts and not able:
            self.stuck.update(r.group for r in counts[0][1])
        return able[0] if able else live[0][0]

    def _choose_factor(self, product: Product, settled: set[int], heads: set[int]) -> None:
        live = self._live_factors(product)
        if len(live) < 2:
            return
        everyone = [g for _, group in live for g in {ref.group for ref in group}]
        if len(set(everyone)) < len(everyone):
            text = "it is multiplied by itself on one axis, so its units are not independent"
            self._unifier.freeze([Ref(g) for g in everyone], Reason("structure", text))
            return
        preferred = [item for item in live if any(r.group in settled for r in item[1])]
        whole = [item for item in live if all(r.group in heads for r in item[1])]
        sizes = {i: self._unifier.size(product.parts[i]) for i, _ in live}
        if preferred:
            keep = preferred[0][0]
        elif whole:
            keep = whole[0][0]
            self._chosen_heads.update(r.group for r in whole[0][1])
        elif self._rule == "size":
            keep = live[-1][0]
        elif self._rule == "count":
            keep = self._number(live)
        else:
            keep = max(live, key=lambda item: (sizes[item[0]], item[0]))[0]
        for i, group in live:
            if i != keep:
                text = f"the other factor of this axis ({sizes[keep]} wide) grows instead"
                for ref in group:
                    self._passed_over[ref.group] = Reason("factor", text)
