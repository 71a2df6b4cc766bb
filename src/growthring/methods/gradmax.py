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
filters pass their unit on; pooling by maxima counts as averaging. What else lies between two layers (padding,
resampling, the slope of a smooth activation at 0) is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from growthring.core.axes import Axis, Concat, Product, refs, size
from growthring.core.variance import Mode
from growthring.core.wording import counted
from growthring.errors import InputError
from growthring.graph.resize import named_tensors
from growthring.graph.results import output_tensors
from growthring.graph.trace import split_inputs
from growthring.methods.base import Growth, Job
from growthring.methods.contractions import understood_calls
from growthring.methods.gradients import Reader, gradient_matrices, leading_vectors
from growthring.methods.paths import find_paths
from growthring.methods.rescale import transfer
from growthring.methods.search import DataSearch, check_positive
from growthring.methods.silent import SilentGrowth, columns, silent_copy
from growthring.methods.trialcopies import present_step, searching_copy
from growthring.planning.plan import Plan


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
            if any(_is_several(spec.axes[i], growing, plan.stage_widths[-1]) for i in spec.read):
                reason = (
                    f"'{name}' reads units after a flatten or several filters per unit, each as "
                    "several columns"
                )
            elif calls[0].groups > 1 and (reads or calls[0].weight.shape[1] != 1):
                reason = f"'{name}' is a grouped convolution"
            elif calls[0].dimensions > 2:
                reason = f"'{name}' is a convolution over three axes"
            if reason is not None:
                raise InputError(
                    f"method 'gradmax' cannot grow this model: {reason}, for which its matrix is not "
                    "defined. Use another method, or freeze that width."
                )
        step = present_step(plan, model)
        if step is not None:
            job = Job(step, model, named_tensors(model), torch.Generator().manual_seed(0))
            _refuse_offset(job)
            find_paths(job, silent_copy(job))

    def grow(self, job: Job) -> Growth:
        """Takes M of every group and its leading singular vectors."""
        step = job.step
        factors = transfer(step, job.tensors)
        if not step.growing:
            return SilentGrowth(step, factors)
        search = DataSearch(job)
        matrices = gradient_matrices(job, search, searching_copy(job.model), self.examples)
        vectors: dict[tuple[str, int], Tensor] = {}
        notes = []
        for group, (matrix, readers) in matrices.items():
            count = step.after[group] - step.before[group]
            out_weights, rank = leading_vectors(matrix, count, job.generator)
            if rank < count:
                notes.append(
                    f"{count - rank} of {counted(count, 'new unit')} of a group got random out-weights: its "
                    f"gradient has rank {rank}"
                )
            out_weights = self.scale * _mean_norm(job, group, readers) * out_weights
            parts = out_weights.split([reader.size for reader in readers], 1) if readers else ()
            for reader, part in zip(readers, parts, strict=True):
                vectors[reader.spec.name, group] = part.reshape(count, *reader.shape)
        return SilentGrowth(step, factors, vectors, search.cost, notes=tuple(notes))


def _is_several(axis: Axis, growing: set[int], widths: Mapping[int, int]) -> bool:
    """Whether a unit that grows has several entries on an axis."""
    if isinstance(axis, Concat):
        return any(_is_several(part, growing, widths) for part in axis.parts)
    if not isinstance(axis, Product):
        return False
    grows = any(r.group in growing for r in refs(axis))
    return grows and sum(size(part, widths) > 1 for part in axis.parts) > 1


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
    with torch.no_grad():
        before, after = (
            output_tensors(twin(*arguments, **named))
            for twin in (searching_copy(job.model), silent_copy(job))
            for arguments, named in [split_inputs(job.step.plan.inputs_for(job.model))]
        )
    for a, b in zip(before, after, strict=True):
        if not torch.allclose(a, b, rtol=0.0, atol=1e-3 * float(a.abs().max())):
            raise InputError(
                "method 'gradmax' cannot grow this model: a new unit with in-weights 0 is not read as 0, so "
                "some activation has σ(0) ≠ 0. Use another method."
            )
