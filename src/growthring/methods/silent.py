"""Units that write nothing yet: in-weights 0, identity rows in norms, filters that pass them on."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from growthring.core.axes import refs
from growthring.core.variance import Factors
from growthring.core.widen import place_old, widen_constant
from growthring.graph.groups import TensorSpec
from growthring.methods.base import CONSTANTS, Divisors, Growth, Job, SearchCost, Step
from growthring.methods.copies import add_to_new_rows
from growthring.methods.rescale import old_factors, rescaled
from growthring.methods.trialcopies import widened_copy
from growthring.methods.units import Units

Vectors = Mapping[tuple[str, int], Tensor]


def silent_copy(job: Job) -> nn.Module:
    """A twin of the width after a growth, whose new units write nothing and are read with weight 1."""
    grown = SilentGrowth(job.step, Factors(), fill=1.0).tensors(job.tensors, job.generator)
    return widened_copy(job, job.step, grown)


def columns(spec: TensorSpec, widths: Mapping[int, int], group: int) -> Tensor:
    """Where a group's units are on the axis that a weight reads, in their order (width,)."""
    (axis,) = spec.read
    along = Units(widths, [group]).along(spec.axes[axis])
    return torch.argsort(along, stable=True)[int((along < 0).sum()) :]


class SilentGrowth(Growth):
    """New rows 0, new columns as given.

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
        step, grown = self.step, {}
        for spec, tensor in rescaled(step, self.factors, old):
            layouts = step.layouts(spec.axes)
            new = widen_constant(tensor, layouts, CONSTANTS.get(spec.kind, 0.0))
            if spec.kind == "weight" and step.changes(spec):
                self._fill_weight(spec, new)
                place_old(tensor, new, layouts, 1.0)
            grown[spec.name] = new
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
        """Whether a weight is depthwise: the number of groups of its layer follows the units that it writes.

        A layer that reads a picture of one channel looks the same, but makes units of its own.
        """
        written = {r.group for r in refs(spec.axes[0])}
        groups = self.step.plan.groups.attributes.get((spec.name.rpartition(".")[0], "groups"))
        return isinstance(groups, tuple) and any(
            r.group in written for axis in groups for r in refs(axis)
        )

    def gradient_divisors(self, old: Mapping[str, Tensor]) -> Divisors:
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
