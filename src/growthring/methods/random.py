"""random: new entries as the initialiser draws them, nothing cancels. The plainest baseline; outputs change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from growthring.core.variance import Factors, Mode
from growthring.core.widen import normal, place_old, widen_constant
from growthring.methods.base import Divisors, Growth, Job, SearchCost, Step
from growthring.methods.paired import clear_rows
from growthring.methods.rescale import constant_of
from growthring.planning.plan import Plan


@dataclass(frozen=True)
class Random:
    """Standard initialisation of everything new, at the grown fan-in."""

    name: ClassVar[str] = "random"
    searches: ClassVar[bool] = False
    mode: ClassVar[Mode] = "off"

    def check(self, plan: Plan, model: nn.Module) -> None:
        """Nothing is promised, so nothing is refused."""

    def grow(self, job: Job) -> Growth:
        """There is nothing to decide."""
        return RandomGrowth(job.step)


class RandomGrowth(Growth):
    """Old entries as they were, new ones drawn."""

    change = "new units are read with random weights, so the function changes"

    def __init__(self, step: Step) -> None:
        self.step, self.factors, self.cost = step, Factors(), SearchCost()

    def tensors(
        self, old: Mapping[str, torch.Tensor], generator: torch.Generator
    ) -> dict[str, torch.Tensor]:
        """Drawn at the deviation of the initialiser."""
        return dict(self.each(old, generator))

    def each(
        self, old: Mapping[str, torch.Tensor], generator: torch.Generator
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """One after the other."""
        step = self.step
        for name, spec in step.plan.groups.specs.items():
            layouts = step.layouts(spec.axes)
            if not any(lay.grows for lay in layouts):
                continue
            tensor, value = old[name].detach(), constant_of(step, spec)
            if value is not None:
                yield name, widen_constant(tensor, layouts, value)
                continue
            shape = [len(lay.source) for lay in layouts]
            new = normal(shape, step.std(spec), tensor, generator)
            clear_rows(spec, layouts, new)
            place_old(tensor, new, layouts, 1.0)
            yield name, new

    def gradient_divisors(self, old: Mapping[str, torch.Tensor]) -> Divisors:
        """Old entries stay."""
        return {}

    def add_noise(
        self, grown: Mapping[str, torch.Tensor], noise: float, generator: torch.Generator
    ) -> None:
        """New units differ already."""
