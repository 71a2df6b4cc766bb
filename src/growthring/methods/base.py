"""What a growth method is: a step and the model in, the grown tensors out.

A method decides in `grow` (some by searching on batches of data) and returns a `Growth`: new tensors as
a function of the old ones. A function, not tensors, so that an average of the model takes the very same
step as the model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from growthring.core.axes import Axis, Layout, layout
from growthring.core.variance import Factors, Mode, deviation
from growthring.graph.groups import TensorSpec
from growthring.planning.plan import Plan

SearchBatch = tuple[Any, Any]  # inputs and targets of one batch that a method searches on
Loss = Callable[[Any, Any], torch.Tensor]  # of outputs and targets
Divisors = dict[str, float | torch.Tensor]

# What a new entry holds where the full model's tensor is not constant.
CONSTANTS = {"bias": 0.0, "gain": 1.0, "mean": 0.0, "variance": 1.0}


@dataclass(frozen=True)
class Step:
    """One growth of a plan: from widths `before` (stage t) to `after` (stage t + 1)."""

    plan: Plan
    before: Mapping[int, int]
    after: Mapping[int, int]
    mode: Mode
    cache: dict[Axis, Layout] = field(default_factory=dict, repr=False, compare=False)

    def layouts(self, axes: tuple[Axis, ...]) -> list[Layout]:
        """Layouts of a tensor's axes, shared between tensors."""
        for axis in axes:
            if axis not in self.cache:
                self.cache[axis] = layout(axis, self.before, self.after)
        return [self.cache[axis] for axis in axes]

    def changes(self, spec: TensorSpec) -> bool:
        """Whether a tensor gets new entries."""
        return any(lay.grows for lay in self.layouts(spec.axes))

    @property
    def growing(self) -> list[int]:
        """The groups that get wider."""
        return [key for key, width in self.before.items() if self.after[key] > width]

    @property
    def classes(self) -> list[int]:
        """Of these groups the classes of outputs: nothing reads them, so new entries come alone."""
        keys = {g.key for g in self.plan.groups if g.is_classes}
        return [key for key in self.growing if key in keys]

    def std(self, spec: TensorSpec) -> float:
        """Deviation of the new entries of a tensor (Table 1; the user's own initialiser at stage 0)."""
        plan, initial = self.plan, self.plan.initial[spec.name]
        if spec.kind != "weight" or spec.read_and_written:
            return initial.std
        fan_in = spec.fan_in(self.after)
        if self.mode == "constraint":
            return math.sqrt(1 / fan_in)
        first, full = plan.stage_widths[0], plan.stage_widths[-1]
        seed_std = initial.std * math.sqrt(spec.fan_in(full) / spec.fan_in(first))
        role = "hidden" if self.mode == "off" and plan.role(spec) == "output" else plan.role(spec)
        return deviation(role, seed_std, spec.fan_in(first), fan_in)


@dataclass(frozen=True)
class Job:
    """What a method is given for one growth.

    Attributes:
        step: the growth.
        model: before it.
        tensors: the model's parameters and buffers by name.
        generator: source of all random numbers.
        batches: what to search on, for methods that search: the same batches each time it is iterated.
        loss: of outputs and targets.
        hold_norms: keep scale 1 in front of norms whose ε would show (variance transfer only).
    """

    step: Step
    model: nn.Module
    tensors: Mapping[str, torch.Tensor]
    generator: torch.Generator
    batches: Iterable[SearchBatch] | None = None
    loss: Loss | None = None
    hold_norms: bool = False


@dataclass
class SearchCost:
    """What a method spent on its own optimisation."""

    flops: float = 0.0
    examples: int = 0


class Growth(ABC):
    """What a method decided: new tensors as a function of old ones.

    Attributes:
        factors: the rescaling of old tensors that is part of it.
        cost: of finding it.
        change: why the outputs change, in words; None for a growth that claims to keep the function.
        notes: what else a user should know.
    """

    factors: Factors
    cost: SearchCost
    change: str | None = None
    notes: tuple[str, ...] = ()

    @abstractmethod
    def tensors(
        self, old: Mapping[str, torch.Tensor], generator: torch.Generator
    ) -> dict[str, torch.Tensor]:
        """The grown tensors without symmetry-breaking noise; those that do not change are left out.

        Averages of the model and copies of its weights in optimizer state take the same step: which tensors
        are returned and how many numbers are drawn must depend on shapes alone, here and in `add_noise`.
        """

    def each(
        self, old: Mapping[str, torch.Tensor], generator: torch.Generator
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The same one after the other, for tensors too large to be held all at once.

        A method that can make one tensor without the others overrides it, and draws in the same order.
        """
        yield from self.tensors(old, generator).items()

    @abstractmethod
    def gradient_divisors(self, old: Mapping[str, torch.Tensor]) -> Divisors:
        """What the gradient of each parameter's old entries is divided by, where that is not 1.

        A weight that was multiplied by c and computes the same function has 1/c of the gradient; a unit
        that is read with 1/c of the weight passes 1/c of it on. Gradients in mid-accumulation and
        optimizer state follow. A tensor broadcasts over the old one.
        """

    @abstractmethod
    def add_noise(
        self, grown: Mapping[str, torch.Tensor], noise: float, generator: torch.Generator
    ) -> None:
        """Adds noise of that size, relative to the deviation of weights, to what is new; in place."""


class GrowthMethod(Protocol):
    """How new units are made. Methods are dataclasses of their hyperparameters."""

    name: ClassVar[str]
    searches: ClassVar[bool]  # whether it needs batches and a loss

    @property
    def mode(self) -> Mode:
        """How old weights are rescaled."""

    def check(self, plan: Plan, model: nn.Module) -> None:
        """Raises `InputError` where the method cannot grow this model, and says why."""

    def grow(self, job: Job) -> Growth:
        """Decides on the new units of one growth; changes nothing of the model."""
