"""paired: new units in equal pairs that cancel in what reads them, with variance transfer (the paper's method).

    W_reads'  = [ c·W   +Z   -Z ]        W_writes' = [ c·W ; V ; V ]

Nothing is trained or searched: the new tensors follow from the old ones, the plan and a generator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from growthring.core.axes import Layout
from growthring.core.variance import MODES, Factors, Mode
from growthring.core.widen import break_symmetry, widen_constant, widen_paired
from growthring.errors import InputError
from growthring.graph.groups import TensorSpec
from growthring.methods.base import CONSTANTS, Divisors, Growth, Job, SearchCost, Step
from growthring.methods.rescale import (
    constant_of,
    is_kept,
    is_one,
    old_factor,
    old_factors,
    rescaled_stat,
    stat_factors,
    transfer,
)
from growthring.planning.plan import Plan


@dataclass(frozen=True)
class Paired:
    """The paper's method.

    Attributes:
        variance_transfer: "preserving" (rescale as far as the function stays the same), "paper" (Table 1
            to the letter), "constraint" (the appendix's theorem) or "off" (standard initialisation).
    """

    name: ClassVar[str] = "paired"
    searches: ClassVar[bool] = False
    variance_transfer: Mode = "preserving"

    def __post_init__(self) -> None:
        if self.variance_transfer not in MODES:
            raise InputError(
                f"variance_transfer='{self.variance_transfer}' is not one of {', '.join(MODES)}."
            )

    @property
    def mode(self) -> Mode:
        """The mode of variance transfer."""
        return self.variance_transfer

    def check(self, plan: Plan, model: nn.Module) -> None:
        """Everything that discovery lets grow can grow in pairs."""

    def grow(self, job: Job) -> Growth:
        """Fixes the factors; the new entries are drawn when the tensors are made."""
        return PairedGrowth(job.step, transfer(job.step, job.tensors, job.hold_norms))


class PairedGrowth(Growth):
    """Pairs, drawn in the order of the tensors."""

    def __init__(self, step: Step, factors: Factors) -> None:
        self.step, self.factors, self.cost = step, factors, SearchCost()

    def tensors(
        self, old: Mapping[str, torch.Tensor], generator: torch.Generator
    ) -> dict[str, torch.Tensor]:
        """Old entries × c, new ones in pairs."""
        return dict(self.each(old, generator))

    def each(
        self, old: Mapping[str, torch.Tensor], generator: torch.Generator
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """One after the other."""
        step, stats = self.step, stat_factors(self.factors)
        for name, spec in step.plan.groups.specs.items():
            if name not in stats and is_kept(step, spec, self.factors):
                continue
            tensor = old[name].detach()
            layouts = step.layouts(spec.axes)
            factor = old_factor(step, spec, self.factors, tensor)
            if name in stats:
                scaled = rescaled_stat(spec, tensor, *stats[name])
                yield name, widen_constant(scaled, layouts, CONSTANTS[spec.kind])
            elif not any(lay.grows for lay in layouts):
                if not is_one(factor):
                    yield name, tensor * factor
            else:
                yield name, _grow(step, spec, tensor, layouts, factor, generator)

    def gradient_divisors(self, old: Mapping[str, torch.Tensor]) -> Divisors:
        """C of every tensor."""
        return old_factors(self.step, self.factors, old)

    def add_noise(
        self, grown: Mapping[str, torch.Tensor], noise: float, generator: torch.Generator
    ) -> None:
        """Adds noise to second halves of pairs.

        Depthwise filters and vectors get none: their pairs part through the signs of what reads them.
        """
        step = self.step
        for name, new in grown.items():
            spec = step.plan.groups.specs[name]
            is_drawn = step.plan.initial[name].constant is None and not spec.read_and_written
            if spec.kind == "weight" and spec.read and is_drawn:
                layouts = step.layouts(spec.axes)
                break_symmetry(new, layouts, spec.read, noise * step.std(spec), generator)


def _grow(
    step: Step,
    spec: TensorSpec,
    old: torch.Tensor,
    layouts: list[Layout],
    factor: float | torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    if spec.read_and_written:
        return widen_constant(old, layouts, 0.0, factor)
    value = constant_of(step, spec)
    if value is not None:
        if not all(lay.is_plain for lay in layouts):
            value = 0.0  # opposite halves: only zero is its own opposite
        return widen_constant(old, layouts, value, factor)
    new = widen_paired(old, layouts, spec.read, step.std(spec), factor, generator)
    clear_rows(spec, layouts, new)
    return new


def clear_rows(spec: TensorSpec, layouts: list[Layout], new: torch.Tensor) -> None:
    """Rows of a table that stay zero (padding) get zeros in their new entries too, in place."""
    if spec.zero_rows:
        rows = torch.tensor(sorted(spec.zero_rows), device=new.device)
        new[rows[:, None], layouts[1].new.to(new.device)[None, :]] = 0
