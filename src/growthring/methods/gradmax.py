"""gradmax: new units that write nothing yet and whose gradient is as large as can be (Evci et al. 2022).

New in-weights are 0, so the outputs stay the same. The gradient of the in-weights of a new unit with
out-weights u is M u, with

    M = E[ x ⊗ ∂L/∂h ]        x: what the units' layers read, h: what the layers after them compute

summed over the places that a convolution goes over: M[(in, i1, j1), (out, i2, j2)] = Σ x at an offset of
(i1, j1) from a place of the new unit, times ∂L/∂h where the kernel's entry (i2, j2) takes that place. So
‖M u‖ is largest for the right singular vectors of M, and those are the new out-weights, with norm
`scale` × the mean norm of the old units' ones. A unit of a residual stream is written and read by several
layers; M then has a block for each pair of which one feeds the other.

σ'(0) counts as 1, though torch's ReLU has 0 there: the Grower's noise lifts the new units' biases (or, where
there are none, their in-weights) off 0, or they would never learn. Norms get identity rows, depthwise
filters pass their unit on. Pooling in between counts as averaging.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from growthring.core.axes import Axis, Fixed, Product, refs
from growthring.core.variance import Factors, Mode
from growthring.core.widen import place_old, widen_constant
from growthring.errors import InputError
from growthring.graph.groups import TensorSpec
from growthring.graph.trace import output_tensors, split_inputs
from growthring.methods.base import CONSTANTS, Growth, Job, OldFactors, SearchCost, Step
from growthring.methods.contractions import understood_calls
from growthring.methods.copies import add_to_new_rows
from growthring.methods.gradients import Reader, columns, gradient_matrices, leading_vectors
from growthring.methods.rescale import (
    is_one,
    old_factor,
    old_factors,
    rescaled_stat,
    stat_factors,
    transfer,
)
from growthring.methods.search import Search, check_positive
from growthring.methods.twins import searching_twin, widened_twin
from growthring.plan import Plan

Vectors = Mapping[tuple[str, int], Tensor]


@dataclass(frozen=True)
class GradMax:
    """GradMax.

    Attributes:
        scale: norm of new out-weights relative to the old units' mean.
        examples: how many the matrix is taken over (rounded up to whole batches).
    """

    name: ClassVar[str] = "gradmax"
    searches: ClassVar[bool] = True
    mode: ClassVar[Mode] = "off"
    scale: float = 0.5
    examples: int = 512

    def __post_init__(self) -> None:
        check_positive(self, "scale", "examples")

    def check(self, plan: Plan, model: nn.Module) -> None:
        """Refuses flattens, gates, grouped and 3-d convolutions, and whatever is no convolution or linear layer."""
        gate = next((r.where for r in plan.groups.records if r.kind == "product"), None)
        if gate is not None:
            raise InputError(
                f"method 'gradmax' cannot grow this model: {gate} multiplies activations, so a new unit's "
                "gradient is not linear in what reads it. Use another method."
            )
        growing = {g.key for g in plan.groups.growable}
        for name, calls in understood_calls(self.name, plan, model).items():
            spec = plan.groups.specs[name]
            reads = any(r.group in growing for i in spec.read for r in refs(spec.axes[i]))
            reason = None
            if any(_is_flattened(spec.axes[i], growing) for i in spec.read):
                reason = f"'{name}' reads units after a flatten, each as several columns"
            elif calls[0].groups > 1 and (reads or calls[0].weight.shape[1] != 1):
                reason = f"'{name}' is a grouped convolution"
            elif calls[0].dimensions > 2:
                reason = f"'{name}' is a convolution over three axes"
            if reason is not None:
                raise InputError(
                    f"method 'gradmax' cannot grow this model: {reason}, for which its matrix is not "
                    "defined. Use another method, or freeze that width."
                )

    def grow(self, job: Job) -> Growth:
        """Takes M of every group and its leading singular vectors."""
        step = job.step
        factors = transfer(step, job.tensors)
        if not step.growing:
            return GradMaxGrowth(step, factors)
        _refuse_offset(job)
        search = Search(job)
        matrices = gradient_matrices(job, search, searching_twin(job.model), self.examples)
        vectors: dict[tuple[str, int], Tensor] = {}
        notes = []
        for group, (matrix, readers) in matrices.items():
            count = step.after[group] - step.before[group]
            found, rank = leading_vectors(matrix, count, job.generator)
            if rank < count:
                notes.append(
                    f"{count - rank} of {count} new units of a group have random out-weights: its gradient "
                    f"has rank {rank}"
                )
            found = self.scale * _mean_norm(job, group, readers) * found
            parts = found.split([reader.size for reader in readers], 1) if readers else ()
            for reader, part in zip(readers, parts, strict=True):
                vectors[reader.spec.name, group] = part.reshape(count, *reader.shape)
        return GradMaxGrowth(step, factors, vectors, search.cost, notes=tuple(notes))


def _is_flattened(axis: Axis, growing: set[int]) -> bool:
    if not isinstance(axis, Product):
        return False
    grows = any(r.group in growing for r in refs(axis))
    return grows and any(isinstance(part, Fixed) and part.size > 1 for part in axis.parts)


def _mean_norm(job: Job, group: int, readers: list[Reader]) -> float:
    """Mean over the old units of the norm of all the weights that read them."""
    squares = torch.zeros(job.step.before[group], dtype=torch.float64)
    for reader in readers:
        weight = job.tensors[reader.spec.name].detach().double().cpu()
        units = weight.movedim(1, 0)[columns(reader.spec, job.step.before, group)]
        squares += units.flatten(1).square().sum(1)
    return float(squares.sqrt().mean())


def _refuse_offset(job: Job) -> None:
    """Raises where a unit that writes nothing is read as something: an activation with σ(0) ≠ 0."""
    grown = GradMaxGrowth(job.step, Factors(), fill=1.0).tensors(job.tensors, job.generator)
    arguments, named = split_inputs(job.step.plan.example_inputs)
    with torch.no_grad():
        before = output_tensors(searching_twin(job.model)(*arguments, **named))
        after = output_tensors(widened_twin(job, job.step, grown)(*arguments, **named))
    for a, b in zip(before, after, strict=True):
        if not torch.allclose(a, b, rtol=0.0, atol=1e-3 * float(a.abs().max())):
            raise InputError(
                "method 'gradmax' cannot grow this model: a new unit with in-weights 0 is not read as 0, so "
                "some activation has σ(0) ≠ 0. Nothing was changed; use another method."
            )


class GradMaxGrowth(Growth):
    """New rows 0, new columns as found.

    Args:
        step: the growth.
        factors: the rescaling of old tensors that the model's code needs.
        vectors: (reader, group) -> out-weights of the group's new units (new units, out, *kernel).
        cost: of finding them.
        fill: what new columns hold that no vector is for.
        notes: for the report.
    """

    def __init__(
        self,
        step: Step,
        factors: Factors,
        vectors: Vectors | None = None,
        cost: SearchCost | None = None,
        fill: float = 0.0,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.step, self.factors, self.cost, self.notes = step, factors, cost or SearchCost(), notes
        self._vectors, self._fill = vectors or {}, fill

    def tensors(self, old: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The grown tensors."""
        step, stats = self.step, stat_factors(self.factors)
        grown: dict[str, Tensor] = {}
        for name, spec in step.plan.groups.specs.items():
            tensor, layouts = old[name].detach(), step.layouts(spec.axes)
            factor = old_factor(step, spec, self.factors, tensor)
            if name in stats:
                tensor = rescaled_stat(spec, tensor, *stats[name])
            elif not is_one(factor):
                tensor = tensor * factor
            elif not step.changes(spec):
                continue
            new = widen_constant(tensor, layouts, CONSTANTS.get(spec.kind, 0.0))
            if spec.kind == "weight" and step.changes(spec):
                self._fill_weight(spec, new)
                place_old(tensor, new, layouts, 1.0)
            grown[name] = new
        return grown

    def _fill_weight(self, spec: TensorSpec, new: Tensor) -> None:
        """Puts the new columns in place, or the filters that pass a unit on where there are none to read."""
        step, layouts = self.step, self.step.layouts(spec.axes)
        if not any(r.group in step.growing for i in spec.read for r in refs(spec.axes[i])):
            if new.dim() > 2 and new.shape[1] == 1 and self._is_filter(spec):
                middle = new[:, 0]
                for size in new.shape[2:]:
                    middle = middle.select(1, size // 2)
                middle[layouts[0].new.to(new.device)] = 1.0
            return
        rows = layouts[0].old.to(new.device)
        for group in {r.group for i in spec.read for r in refs(spec.axes[i])} & set(step.growing):
            where = columns(spec, step.after, group)[step.before[group] :].to(new.device)
            vectors = self._vectors.get((spec.name, group))
            if vectors is None:
                new[rows[:, None], where[None, :]] = self._fill
            else:
                new[rows[:, None], where[None, :]] = vectors.to(new).movedim(0, 1)

    def _is_filter(self, spec: TensorSpec) -> bool:
        """Whether a weight is depthwise: another weight writes the same units."""
        written = {r.group for r in refs(spec.axes[0])}
        return any(
            other.kind == "weight"
            and other.name != spec.name
            and written & {r.group for r in refs(other.axes[0])}
            and 0 not in other.read
            for other in self.step.plan.groups.specs.values()
        )

    def old_factors(self, old: Mapping[str, Tensor]) -> OldFactors:
        """What the model's code needs."""
        return old_factors(self.step, self.factors, old)

    def add_noise(
        self, grown: Mapping[str, Tensor], noise: float, generator: torch.Generator
    ) -> None:
        """Lifts new units off 0, where a ReLU has no slope."""
        step, specs = self.step, self.step.plan.groups.specs
        biases = [n for n in grown if specs[n].kind == "bias"]
        for name in biases:
            for i, layout in enumerate(step.layouts(specs[name].axes)):
                grown[name].index_add_(
                    i,
                    layout.new.to(grown[name].device),
                    _constant(grown[name], i, layout.new, noise),
                )
        lifted = {group for name in biases for group in specs[name].groups()}
        for name, new in grown.items():
            spec = specs[name]
            written = {r.group for r in refs(spec.axes[0])} & set(step.growing)
            if spec.kind == "weight" and 0 not in spec.read and written - lifted:
                add_to_new_rows(step, spec, new, noise, generator)


def _constant(like: Tensor, axis: int, where: Tensor, value: float) -> Tensor:
    shape = list(like.shape)
    shape[axis] = len(where)
    return like.new_full(shape, value)
