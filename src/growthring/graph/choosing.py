"""What grows: every width that is not frozen, and one factor of each product."""

from __future__ import annotations

from typing import Literal

from growthring.core.axes import Product, Ref, products, refs
from growthring.graph.traced import Traced
from growthring.graph.unify import Reason

Heads = Literal["auto", "size", "count"]


class Choice:
    """The widths that grow. Where an axis is a product, one of its factors does, and the other is passed over."""

    def __init__(self, traced: Traced, heads: Heads) -> None:
        self._traced, self._unifier, self._heads = traced, traced.unifier, heads
        self._passed_over: dict[int, Reason] = {}

    def choose(self) -> list[int]:
        """The groups that grow: unfrozen, and one factor of each product."""
        specs = self._traced.specs()
        keys = {ref.group for s in specs.values() for axis in s.axes for ref in refs(axis)}
        self._passed_over = {}
        every = [p for s in specs.values() for axis in s.axes for p in products(axis)]
        settled: set[int] = set()  # widths that grow in some product for lack of another choice
        for product in every:
            live = self._live_factors(product)
            if len(live) == 1:
                # two is the least width, so such a factor would not grow at all
                settled.update(r.group for r in live[0][1] if self._unifier.size(r) > 2)
        for product in every:
            self._choose_factor(product, settled)
        return sorted(k for k in keys if self.frozen(k) is None)

    def frozen(self, group: int) -> Reason | None:
        """Why a width does not grow; one passed over for the other factor of a product may be chosen later."""
        return self._unifier.frozen(group) or self._passed_over.get(group)

    def _live_factors(self, product: Product) -> list[tuple[int, list[Ref]]]:
        parts = [[r for r in refs(part) if self.frozen(r.group) is None] for part in product.parts]
        return [(i, group) for i, group in enumerate(parts) if group]

    def _choose_factor(self, product: Product, settled: set[int]) -> None:
        live = self._live_factors(product)
        if len(live) < 2:
            return
        everyone = [g for _, group in live for g in {ref.group for ref in group}]
        if len(set(everyone)) < len(everyone):
            text = "it is multiplied by itself on one axis, so its units are not independent"
            self._unifier.freeze([Ref(g) for g in everyone], Reason("structure", text))
            return
        preferred = [item for item in live if any(r.group in settled for r in item[1])]
        sizes = {i: self._unifier.size(product.parts[i]) for i, _ in live}
        if preferred:
            keep = preferred[0][0]
        elif self._heads == "auto":
            keep = max(live, key=lambda item: (sizes[item[0]], item[0]))[0]
        else:
            keep = live[-1][0] if self._heads == "size" else live[0][0]
        for i, group in live:
            if i != keep:
                text = f"the other factor of this axis ({sizes[keep]} wide) grows instead"
                for ref in group:
                    self._passed_over[ref.group] = Reason("factor", text)
