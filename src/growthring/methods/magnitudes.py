"""Growth of weight-normalised layers, for every method alike: the method sees ratios, the model gets magnitudes."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from growthring.graph.magnitudes import with_magnitudes, with_ratios
from growthring.methods.base import Divisors, Growth, Step


class MagnitudeGrowth(Growth):
    """A method's growth, made of w = r · v where the model has w = g · v / |v|.

    Args:
        growth: what the method decided.
        step: the growth.
    """

    def __init__(self, growth: Growth, step: Step) -> None:
        self._growth, self._specs = growth, step.plan.groups.specs
        self.factors, self.cost = growth.factors, growth.cost
        self.change, self.notes = growth.change, growth.notes

    def tensors(
        self, old: Mapping[str, torch.Tensor], generator: torch.Generator
    ) -> dict[str, torch.Tensor]:
        """The method's tensors, with magnitudes that follow."""
        ratios = with_ratios(self._specs, old)
        return with_magnitudes(self._specs, self._growth.tensors(ratios, generator), ratios)

    def gradient_divisors(self, old: Mapping[str, torch.Tensor]) -> Divisors:
        """The method's."""
        return self._growth.gradient_divisors(old)

    def add_noise(
        self, grown: Mapping[str, torch.Tensor], noise: float, generator: torch.Generator
    ) -> None:
        """The method's noise on directions; magnitudes follow, so that it does no more than on a plain weight."""
        specs = {n: s for n, s in self._specs.items() if s.of in grown}
        ratios = with_ratios(specs, grown)
        self._growth.add_noise(grown, noise, generator)
        noisy = {n: grown[n] for s in specs.values() for n in (s.of,)}
        for name, magnitude in with_magnitudes(specs, noisy, ratios).items():
            grown[name].copy_(magnitude)


def following_magnitudes(growth: Growth, step: Step) -> Growth:
    """The growth itself where nothing is weight-normalised."""
    has_any = any(s.kind == "magnitude" for s in step.plan.groups.specs.values())
    return MagnitudeGrowth(growth, step) if has_any else growth
