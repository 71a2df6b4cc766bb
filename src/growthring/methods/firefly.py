"""firefly and firefly-split: grow what a short joint optimisation finds best (Wu, Liu, Stone, Liu 2020).

Candidates: a split of every old unit, θ → {θ + v, θ - v} read with half the weight each, and (firefly
only) as many new units per group as it grows by.

    v ~ U(±0.1) ;  new in-weights ~ N(0, 0.1²) ;  new out-weights ~ U(±0.01)
    loss = task loss + 0.01 (‖v‖² + 0.01 ‖new‖²)

v and the candidates alone are optimised on about one pass over the data, with norms in eval mode
(RMSprop). Then every candidate gets a gate at 0 beside its full-strength perturbation, and its score is
the mean of ∂L/∂gate. Those with the smallest scores in each group are kept, within the width that the
plan gives it: splits as θ ± v with readers halved, new units as optimised. The function changes, to a
smaller loss if all goes well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from growthring.core.variance import Mode
from growthring.core.widen import normal, place_old
from growthring.graph.groups import TensorSpec
from growthring.methods.base import Growth, Job, Step
from growthring.methods.branches import Branches
from growthring.methods.contractions import understood_calls
from growthring.methods.copies import (
    CopyGrowth,
    NewUnits,
    UnitMap,
    split_map,
    split_offsets,
)
from growthring.methods.rescale import transfer
from growthring.methods.search import DataSearch, check_positive, rmsprop, uniform
from growthring.methods.trialcopies import searching_copy, widened_copy
from growthring.methods.units import Units
from growthring.planning.plan import Plan


@dataclass(frozen=True)
class FireFlySplit:
    """FireFly with splits only.

    Attributes:
        steps: batches of the optimisation; None is one pass over the data.
        score_steps: batches that the scores are taken on; None is a quarter of those.
        rate: of RMSprop.
        split_bound: of the random directions of splits.
        new_std: deviation of new units' in-weights.
        new_bound: of new units' out-weights.
        penalty: on ‖v‖².
        new_penalty: on ‖new‖², beside `penalty`.
    """

    name: ClassVar[str] = "firefly-split"
    searches: ClassVar[bool] = True
    mode: ClassVar[Mode] = "off"
    adds: ClassVar[bool] = False  # whether there are new units among the candidates
    steps: int | None = None
    score_steps: int | None = None
    rate: float = 1e-3
    split_bound: float = 0.1
    new_std: float = 0.1
    new_bound: float = 0.01
    penalty: float = 0.01
    new_penalty: float = 0.01

    def __post_init__(self) -> None:
        check_positive(self, "steps", "score_steps", "rate", "split_bound", "new_std", "new_bound")
        check_positive(self, "penalty", "new_penalty", zero=True)

    def check(self, plan: Plan, model: nn.Module) -> None:
        """Refuses what is not made of convolutions and linear layers."""
        understood_calls(self.name, plan, model)

    def grow(self, job: Job) -> Growth:
        """Optimises the candidates, scores them and keeps the best of each group."""
        search, step = DataSearch(job), job.step
        if not step.growing:
            return CopyGrowth(step, transfer(step, job.tensors), UnitMap({}))
        candidates = CandidateUnits(job, self)
        steps = search.over(
            self.steps, lambda x, y: candidates.descend(search, x, y), check=candidates.check
        )
        search.over(
            self.score_steps or max(1, steps // 4), lambda x, y: candidates.score(search, x, y)
        )
        sources, offsets = {}, {}
        for g in step.growing:
            width, scores = step.before[g], candidates.units.part(candidates.scores, g)
            splits, new = scores[:width], scores[width:]
            if self.adds:
                sources[g] = _best(splits, new, step.after[g])
            else:
                sources[g] = split_map(splits, step.after[g])
            offsets[g] = split_offsets(sources[g])
        return CopyGrowth(
            step,
            transfer(step, job.tensors),
            UnitMap(sources),
            candidates.directions,
            offsets,
            candidates.new_units() if self.adds else None,
            search.cost,
            change="split units move by what the search found, so the function changes",
        )


@dataclass(frozen=True)
class FireFly(FireFlySplit):
    """FireFly: splits and new units."""

    name: ClassVar[str] = "firefly"
    adds: ClassVar[bool] = True


def _best(splits: Tensor, new: Tensor, width: int) -> Tensor:
    """Which unit each unit copies: the old ones, then the candidates with the smallest scores.

    Candidate k stands for a split of unit k, or as unit n + k for a new one.
    """
    old = len(splits)
    order = torch.argsort(torch.cat([splits, new]), stable=True)
    return torch.cat([torch.arange(old), order[: width - old]])


class CandidateUnits:
    """The candidates of one growth, in a twin of the model that has them all.

    Attributes:
        units: the units of the growing groups, candidates included.
        directions: weight -> v at the widths of the twin.
        scores: sum of ∂L/∂gate of each unit: of its split, or of a new one itself.
    """

    def __init__(self, job: Job, method: FireFlySplit) -> None:
        step, specs = job.step, job.step.plan.groups.specs
        self._job, self._method = job, method
        after = step.after if method.adds else step.before
        self._widening = Step(step.plan, step.before, after, "off")
        self._twin = self._grown() if method.adds else searching_copy(job.model)
        self.units = Units(after, step.growing)
        is_new = [torch.arange(after[g]) >= step.before[g] for g in step.growing]
        self._is_new = torch.cat(is_new)
        self.scores = torch.zeros(self.units.total, dtype=torch.float64)
        parameters = dict(self._twin.named_parameters())
        branches = Branches(self._twin, job, self.units, {})
        self.directions: dict[str, Tensor] = {}
        self._masks: list[tuple[Tensor, Tensor]] = []
        self._new: list[tuple[Tensor, Tensor]] = []
        for name in branches.split_weights():
            v = self._direction(specs[name], parameters[name])
            self.directions[name] = v
        for name, spec in specs.items():
            if spec.kind == "weight" and spec.read and self._widening.changes(spec):
                weight = parameters[name].requires_grad_()
                self._new.append((weight, self._ownership(spec, weight)))
        moving = [v for v, _ in self._masks] + [w for w, _ in self._new]
        self._optimizer = rmsprop(moving, method.rate)
        self._branches = Branches(self._twin, job, self.units, self.directions)

    def _direction(self, spec: TensorSpec, weight: Tensor) -> Tensor:
        """Random directions of the old units over what the model has now; candidates are neither split nor read."""
        layouts = self._widening.layouts(spec.axes)
        shape = self._job.tensors[spec.name]
        v, mask = torch.zeros_like(weight), torch.zeros_like(weight)
        drawn = uniform(shape, self._method.split_bound, self._job.generator)
        place_old(drawn.to(weight), v, layouts, 1.0)
        place_old(torch.ones_like(drawn).to(weight), mask, layouts, 1.0)
        self._masks.append((v.requires_grad_(), mask))
        return v

    def _ownership(self, spec: TensorSpec, weight: Tensor) -> Tensor:
        """1 where an entry belongs to a new unit: a new row over old columns, or a new column of old rows."""
        number = torch.zeros((), dtype=weight.dtype, device=weight.device)
        for i, layout in enumerate(self._widening.layouts(spec.axes)):
            if i not in spec.kernel:
                line = layout.is_new.to(weight)
                number = number + line.reshape([-1] + [1] * (weight.dim() - 1 - i))
        return (number == 1).to(weight).expand_as(weight)

    def _grown(self) -> nn.Module:
        """The model with all new units in it: in-weights N(0, 0.1²), out-weights U(±0.01), none between them."""
        job, method, step = self._job, self._method, self._widening
        tensors: dict[str, Tensor] = {}
        for name, spec in step.plan.groups.specs.items():
            if spec.kind != "weight" or not step.changes(spec):
                continue
            old, layouts = job.tensors[name].detach(), step.layouts(spec.axes)
            shape = [len(lay.source) for lay in layouts]
            new = normal(shape, method.new_std, old, job.generator)
            rows = [i for i in range(len(shape)) if i not in spec.read | spec.kernel]
            is_new_row = _any_new(layouts, rows, new)
            is_new_column = _any_new(layouts, list(spec.read), new)
            outgoing = uniform(new, method.new_bound, job.generator)
            new = torch.where(is_new_column, outgoing, new)
            new = torch.where(is_new_column & is_new_row, torch.zeros_like(new), new)
            place_old(old, new, layouts, 1.0)
            tensors[name] = new
        return widened_copy(job, step, tensors)

    def check(self, inputs: Any) -> None:
        """Raises where the model cannot be run in branches."""
        self._branches.check(inputs)

    def descend(self, search: DataSearch, inputs: Any, targets: Any) -> None:
        """One step of the joint optimisation."""
        method = self._method
        self._optimizer.zero_grad()
        with torch.enable_grad():
            loss = search.loss(self._branches.outputs(inputs), targets)
            splits = sum(v.square().sum() for v, _ in self._masks)
            new = sum((w * mask).square().sum() for w, mask in self._new)
            (loss + method.penalty * (splits + method.new_penalty * new)).backward()
        for tensor, mask in [*self._masks, *self._new]:
            if tensor.grad is not None:
                tensor.grad *= mask
        self._optimizer.step()

    def score(self, search: DataSearch, inputs: Any, targets: Any) -> None:
        """Adds ∂L/∂gate of a batch."""
        like = next(iter(self.directions.values()))
        gates = torch.zeros(self.units.total, device=like.device, dtype=like.dtype).requires_grad_()
        fixed = {n: v.detach() for n, v in self.directions.items()}
        gated = Branches(
            self._twin, self._job, self.units, fixed, gates, self._is_new.to(like.device)
        )
        with torch.enable_grad():
            loss = search.loss(gated.outputs(inputs), targets)
            (gradient,) = torch.autograd.grad(loss, gates)
        self.scores += gradient.double().cpu()

    def new_units(self) -> NewUnits:
        """The twin's weights, which hold the new units."""
        parameters = dict(self._twin.named_parameters())
        specs = self._job.step.plan.groups.specs
        names = [n for n, s in specs.items() if s.kind == "weight" and self._widening.changes(s)]
        return NewUnits(self._widening.after, {n: parameters[n].detach() for n in names})


def _any_new(layouts: list[Any], axes: list[int], like: Tensor) -> Tensor:
    """Where an entry is new along one of the axes; broadcasts over the tensor."""
    is_new = torch.zeros([1] * like.dim(), dtype=torch.bool, device=like.device)
    for i in axes:
        line = layouts[i].is_new.to(like.device)
        is_new = is_new | line.reshape([-1] + [1] * (like.dim() - 1 - i))
    return is_new
