"""splitting: split the units that gain most, along the direction that gains most (Wu, Wang, Liu 2019).

A unit θ split into θ ± εv, each read with half the weight, changes the loss by ½ ε² vᵀSv, with the
splitting matrix of the unit

    S_i = E[ ∂L/∂σ_i · σ''(z_i) · (c_i x)(c_i x)ᵀ ] ,   c_i = γ_i / √(var_i + ε_norm)

over all the weights that write it. The smallest eigenvalue λ_i of S_i says how much a split gains, its
eigenvector which way. S is the second derivative of the loss of the split network in v at v = 0 (first
derivatives and those between units vanish there), so S·v is one more backward pass and no D×D matrix is
ever made: v minimises the Rayleigh quotient R(v) = vᵀSv / vᵀv by

    ∂R/∂v = 2 (Sv · vᵀv - v · vᵀSv) / (vᵀv)² ,   RMSprop, v from U(±0.1)

σ'' of a ReLU is replaced by β s (1 - s), s = sigmoid(β z). Norms keep their statistics. Then the units
with the smallest λ of each group are split, readers halved, norms copied. Outputs change by O(ε²).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from growthring.core.variance import Mode
from growthring.methods.base import Growth, Job
from growthring.methods.branches import Branches
from growthring.methods.contractions import understood_calls
from growthring.methods.copies import CopyGrowth, UnitMap, split_map, split_offsets
from growthring.methods.curvature import smoothed
from growthring.methods.rescale import transfer
from growthring.methods.search import DataSearch, check_positive, rmsprop, uniform
from growthring.methods.trialcopies import searching_copy
from growthring.methods.units import Units
from growthring.planning.plan import Plan


@dataclass(frozen=True)
class Splitting:
    """Splitting steepest descent, in its fast form.

    Attributes:
        epsilon: how far the halves go from the original.
        beta: sharpness of what stands in for σ'' of a ReLU.
        steps: batches to find the directions on; None is one pass over the data.
        score_steps: batches to measure λ on; None is a quarter of those.
        rate: of RMSprop.
        bound: of the random directions that it starts from.
    """

    name: ClassVar[str] = "splitting"
    searches: ClassVar[bool] = True
    mode: ClassVar[Mode] = "off"
    epsilon: float = 0.01
    beta: float = 3.0
    steps: int | None = None
    score_steps: int | None = None
    rate: float = 1e-3
    bound: float = 0.1

    def __post_init__(self) -> None:
        check_positive(self, "epsilon", "beta", "steps", "score_steps", "rate", "bound")

    def check(self, plan: Plan, model: nn.Module) -> None:
        """Refuses what is not made of convolutions and linear layers."""
        understood_calls(self.name, plan, model)

    def grow(self, job: Job) -> Growth:
        """Finds directions and eigenvalues, and splits the best of each group."""
        search, step = DataSearch(job), job.step
        if not step.growing:
            return CopyGrowth(step, transfer(step, job.tensors), UnitMap({}))
        directions = Directions(job, self)
        steps = search.over(
            self.steps, lambda x, y: directions.descend(search, x, y), check=directions.check
        )
        search.over(
            self.score_steps or max(1, steps // 4), lambda x, y: directions.score(search, x, y)
        )
        values, vectors = directions.eigenpairs()
        sources = {
            g: split_map(directions.units.part(values, g), step.after[g]) for g in step.growing
        }
        offsets = {g: self.epsilon * split_offsets(source) for g, source in sources.items()}
        return CopyGrowth(
            step,
            transfer(step, job.tensors),
            UnitMap(sources),
            vectors,
            offsets,
            cost=search.cost,
            change=f"the halves of split units lie ±{self.epsilon:g} apart, so the function changes in "
            "second order of that",
        )


class Directions:
    """The directions v of all units, and what their splits gain.

    Attributes:
        units: the units of the growing groups.
        directions: weight -> v, of the weight's shape.
    """

    def __init__(self, job: Job, method: Splitting) -> None:
        specs = job.step.plan.groups.specs
        self._twin = searching_copy(job.model)
        self.units = Units(job.step.before, job.step.growing)
        parameters = dict(self._twin.named_parameters())
        self._offsets: dict[str, Tensor] = {}
        branches = Branches(
            self._twin, job, self.units, self._offsets, replaced=smoothed(method.beta)
        )
        written = branches.split_weights()
        self.directions = {n: uniform(parameters[n], method.bound, job.generator) for n in written}
        self._offsets |= {
            n: torch.zeros_like(v).requires_grad_() for n, v in self.directions.items()
        }
        self._specs = {n: specs[n] for n in written}
        self._branches = branches
        self._optimizer = rmsprop(list(self.directions.values()), method.rate)
        self._products = {n: torch.zeros_like(v) for n, v in self.directions.items()}

    def products(self, search: DataSearch, inputs: Any, targets: Any) -> dict[str, Tensor]:
        """S·v of every unit on one batch."""
        offsets = list(self._offsets.values())
        with torch.enable_grad():
            loss = search.loss(self._branches.outputs(inputs), targets)
            first = torch.autograd.grad(
                loss, offsets, create_graph=True, allow_unused=True, materialize_grads=True
            )
            along = sum((g * v).sum() for g, v in zip(first, self.directions.values(), strict=True))
            assert isinstance(along, Tensor)
            second = torch.autograd.grad(along, offsets, allow_unused=True, materialize_grads=True)
        return dict(zip(self._offsets, second, strict=True))

    def check(self, inputs: Any) -> None:
        """Raises where the model cannot be run in branches."""
        self._branches.check(inputs)

    def descend(self, search: DataSearch, inputs: Any, targets: Any) -> None:
        """One step on the Rayleigh quotients."""
        products = self.products(search, inputs, targets)
        squares, forms = self._sums(self.directions), self._sums(products)
        for name, v in self.directions.items():
            square, form = self._spread(squares, name), self._spread(forms, name)
            v.grad = 2 * (products[name] * square - v * form) / square.square()
        self._optimizer.step()

    def score(self, search: DataSearch, inputs: Any, targets: Any) -> None:
        """Adds S·v of a batch to the sum that the eigenvalues are taken from."""
        for name, product in self.products(search, inputs, targets).items():
            self._products[name] += product

    def eigenpairs(self) -> tuple[Tensor, dict[str, Tensor]]:
        """λ of each unit, up to a common factor, and its direction with norm 1."""
        squares = self._sums(self.directions)
        values = self._sums(self._products) / squares
        unit = {n: v / self._spread(squares.sqrt(), n) for n, v in self.directions.items()}
        return values.cpu(), unit

    def _sums(self, values: dict[str, Tensor]) -> Tensor:
        """Σ v · values over all the weights of each unit."""
        result = torch.zeros(self.units.total, dtype=torch.float64)
        for name, v in self.directions.items():
            both = (v * values[name]).double()
            result += self.units.sums(both, self._specs[name].axes[0], 0).cpu()
        return result

    def _spread(self, values: Tensor, name: str) -> Tensor:
        """A value per unit along the rows of a weight; 1 for rows that belong to no unit."""
        v, axis = self.directions[name], self._specs[name].axes[0]
        is_unit = self.units.spread(torch.ones_like(values), axis, v, 0)
        return self.units.spread(values, axis, v, 0) + (1 - is_unit)
