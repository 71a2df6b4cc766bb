"""Growth by copying: each unit of the grown width is a copy of one that was there.

One map per width group, so that residual streams and concatenations stay consistent. Unit i with c_i
copies is read with 1/c_i of its weight:

    W_writes'[j] = W_writes[g(j)]        W_reads'[:, j] = W_reads[:, g(j)] / c_{g(j)}

Which side divides is what the sign of a reference says (see `growthring.core.axes`): +1 is written, -1
is read, and keys are the side of q·k that divides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from growthring.core.axes import Axis, Concat, Fixed, Ref, size
from growthring.core.variance import Factors
from growthring.core.widen import normal, place_old, widen_constant
from growthring.graph.groups import TensorSpec
from growthring.methods.base import Divisors, Growth, SearchCost, Step
from growthring.methods.rescale import constant_of, is_one, old_factor, rescaled
from growthring.methods.units import Units


@dataclass(frozen=True)
class Copied:
    """Where the entries of a grown axis come from.

    Attributes:
        source: position on the old axis.
        divisor: what they are divided by: the number of copies of a unit, on the side that reads it.
        sharing: the number of copies on the side that writes it, which share the gradient.
    """

    source: torch.Tensor
    divisor: torch.Tensor
    sharing: torch.Tensor

    @cached_property
    def divides(self) -> bool:
        """Whether any entry is divided."""
        return bool((self.divisor != 1).any())

    @cached_property
    def shares(self) -> bool:
        """Whether any gradient is shared."""
        return bool((self.sharing != 1).any())

    def leads(self, size: int) -> bool:
        """Whether the entries of the old axis, so many, come first and in their order."""
        return torch.equal(self.source[:size], torch.arange(size))


@dataclass(frozen=True)
class UnitMap:
    """Which unit each unit of each grown group copies: group -> (width after,), the old ones themselves.

    >>> units = UnitMap({0: torch.tensor([0, 1, 1])})
    >>> units.copied(Ref(0, -1), {0: 2}).divisor.tolist()
    [1.0, 2.0, 2.0]
    """

    sources: Mapping[int, torch.Tensor]
    _known: dict[Axis, Copied] = field(default_factory=dict, repr=False, compare=False)

    def counts(self, group: int) -> torch.Tensor:
        """How many copies the original of each unit has, itself included."""
        source = self.sources[group]
        return torch.bincount(source)[source]

    def copied(self, axis: Axis, before: Mapping[int, int]) -> Copied:
        """Sources and divisors along an axis; `before` are always the same widths."""
        if axis not in self._known:
            self._known[axis] = self._copied(axis, before)
        return self._known[axis]

    def _copied(self, axis: Axis, before: Mapping[int, int]) -> Copied:
        if isinstance(axis, Fixed) or (isinstance(axis, Ref) and axis.group not in self.sources):
            line = torch.arange(size(axis, before))
            ones = torch.ones(len(line), dtype=torch.float64)
            return Copied(line, ones, ones)
        if isinstance(axis, Ref):
            counts = self.counts(axis.group).to(torch.float64)
            ones = torch.ones_like(counts)
            sides = (counts, ones) if axis.sign < 0 else (ones, counts)
            return Copied(self.sources[axis.group], *sides)
        parts = [self.copied(part, before) for part in axis.parts]
        sizes = [size(part, before) for part in axis.parts]
        result, length = parts[0], sizes[0]
        for part, part_size in zip(parts[1:], sizes[1:], strict=True):
            if isinstance(axis, Concat):
                result = Copied(
                    torch.cat([result.source, part.source + length]),
                    torch.cat([result.divisor, part.divisor]),
                    torch.cat([result.sharing, part.sharing]),
                )
                length += part_size
            else:
                result = Copied(
                    (result.source[:, None] * part_size + part.source[None, :]).flatten(),
                    (result.divisor[:, None] * part.divisor[None, :]).flatten(),
                    (result.sharing[:, None] * part.sharing[None, :]).flatten(),
                )
                length *= part_size
        return result


@dataclass(frozen=True)
class NewUnits:
    """Units that the copies may also be made of, beside the old ones.

    Attributes:
        widths: of the groups with all candidates.
        tensors: weight -> its values at those widths; the old entries in it do not count.
    """

    widths: Mapping[int, int]
    tensors: Mapping[str, torch.Tensor]


class CopyGrowth(Growth):
    """Copies of units, each perhaps moved a little from its original.

    Args:
        step: the growth.
        factors: the rescaling of old tensors that the model's code needs.
        units: which unit each copies.
        directions: weight -> v, in which the copies of its units move.
        offsets: group -> (width after,), how far along v each unit moves.
        candidates: new units that the map refers to, with numbers after the old ones'.
        cost: of finding all that.
        change: why the outputs change, None if they do not.
    """

    def __init__(
        self,
        step: Step,
        factors: Factors,
        units: UnitMap,
        directions: Mapping[str, torch.Tensor] | None = None,
        offsets: Mapping[int, torch.Tensor] | None = None,
        candidates: NewUnits | None = None,
        cost: SearchCost | None = None,
        change: str | None = None,
    ) -> None:
        self.step, self.factors, self.units = step, factors, units
        self._directions, self._offsets = directions or {}, offsets or {}
        self._candidates = candidates
        self._between = step.before if candidates is None else candidates.widths
        self.cost, self.change = cost or SearchCost(), change

    def tensors(
        self, old: Mapping[str, torch.Tensor], generator: torch.Generator
    ) -> dict[str, torch.Tensor]:
        """Copies, moved along their directions."""
        return dict(self.each(old, generator))

    def each(
        self, old: Mapping[str, torch.Tensor], generator: torch.Generator
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """One after the other."""
        step = self.step
        widening = Step(step.plan, step.before, self._between, step.mode)
        for spec, tensor in rescaled(step, self.factors, old):
            if self._candidates is not None:
                tensor = self._with_candidates(widening, spec, tensor)
            new = self._copy(spec, tensor)
            if spec.name in self._directions:
                direction = self._directions[spec.name].detach().to(new)
                new = new + self._moved(spec, self._copy(spec, direction))
            yield spec.name, new

    def _with_candidates(self, widening: Step, spec: TensorSpec, old: torch.Tensor) -> torch.Tensor:
        assert self._candidates is not None
        layouts = widening.layouts(spec.axes)
        if spec.name in self._candidates.tensors:
            new = self._candidates.tensors[spec.name].to(old).clone()
            place_old(old, new, layouts, 1.0)
            return new
        return widen_constant(old, layouts, constant_of(widening, spec) or 0.0)

    def _moved(self, spec: TensorSpec, direction: torch.Tensor) -> torch.Tensor:
        units = Units(self.step.after, self.step.growing)
        offsets = torch.cat([self._offsets[group] for group in self.step.growing])
        return direction * units.spread(offsets, spec.axes[0], direction, 0)

    def _copy(self, spec: TensorSpec, old: torch.Tensor) -> torch.Tensor:
        growing = [i for i, axis in enumerate(spec.axes) if self.step.layouts((axis,))[0].grows]
        by_axis = {i: self.units.copied(spec.axes[i], self._between) for i in growing}
        if not all(copied.leads(old.shape[i]) for i, copied in by_axis.items()):
            for i, copied in by_axis.items():
                old = old.index_select(i, copied.source.to(old.device))
                if copied.divides:
                    old = old / _line(copied.divisor, old, i)
            return old
        # Old entries in one pass; then along one axis after the other only what is new.
        sizes = [len(by_axis[i].source) if i in by_axis else n for i, n in enumerate(old.shape)]
        new = old.new_empty(sizes)
        block = new
        for i in growing:
            block = block.narrow(i, 0, old.shape[i])
        factor: torch.Tensor | None = None
        for i, copied in by_axis.items():
            if copied.divides:
                line = 1 / _line(copied.divisor[: old.shape[i]], old, i)
                factor = line if factor is None else factor * line
        if factor is None:
            block.copy_(old)
        else:
            torch.mul(old, factor, out=block)
        for number, (i, copied) in enumerate(by_axis.items()):
            whole = new
            for later in growing[number + 1 :]:
                whole = whole.narrow(later, 0, old.shape[later])
            size, source = old.shape[i], copied.source[old.shape[i] :].to(old.device)
            whole.narrow(i, size, len(source)).copy_(whole.index_select(i, source))
        return new

    def gradient_divisors(self, old: Mapping[str, torch.Tensor]) -> Divisors:
        """The number of copies that share a unit's gradient, on the side that writes it.

        What reads a copy has 1/c of the weight and sees the whole activation, so its gradient stays.
        """
        result: Divisors = {}
        for name, spec in self.step.plan.groups.specs.items():
            tensor = old[name]
            factor = old_factor(self.step, spec, self.factors, tensor)
            for i, axis in enumerate(spec.axes):
                layout = self.step.layouts((axis,))[0]
                if layout.grows and (copied := self.units.copied(axis, self._between)).shares:
                    factor = factor * _line(copied.sharing[layout.old], tensor, i)
            if not is_one(factor):
                result[name] = factor
        return result

    def add_noise(
        self, grown: Mapping[str, torch.Tensor], noise: float, generator: torch.Generator
    ) -> None:
        """Moves new units away from their originals: noise on what they are written with.

        Units that move along directions have parted already.
        """
        if self._directions:
            return
        for name, new in grown.items():
            spec = self.step.plan.groups.specs[name]
            if spec.kind in ("weight", "table", "direct"):
                add_to_new_rows(self.step, spec, new, noise, generator)


def add_to_new_rows(
    step: Step, spec: TensorSpec, new: torch.Tensor, noise: float, generator: torch.Generator
) -> None:
    """Adds noise, relative to a tensor's root mean square, to the new entries of its written axes, in place.

    How many numbers are drawn depends on shapes alone, and their size not on the memory format, so that
    a copy of the tensor gets the same noise.
    """
    norm = float(torch.linalg.vector_norm(new.contiguous()))
    std = noise * norm / max(1, new.numel()) ** 0.5
    for i, layout in enumerate(step.layouts(spec.axes)):
        if layout.grows and i not in spec.read:
            rows = layout.new.to(new.device)
            shape = [*new.shape[:i], len(rows), *new.shape[i + 1 :]]
            new.index_add_(i, rows, normal(shape, std, new, generator))


def _line(values: torch.Tensor, like: torch.Tensor, axis: int) -> torch.Tensor:
    """A vector along one axis of a tensor."""
    return values.to(like).reshape([-1] + [1] * (like.dim() - 1 - axis))


def split_map(scores: torch.Tensor, width: int) -> torch.Tensor:
    """Which unit each unit copies if those with the smallest scores are split; all again where that is too few.

    Args:
        scores: of the units (n,), the best to split the smallest.
        width: after the growth.

    >>> split_map(torch.tensor([0.5, -1.0, 0.0]), 5).tolist()
    [0, 1, 2, 1, 2]
    """
    order = torch.argsort(scores, stable=True)
    rounds = -(-(width - len(scores)) // len(scores))
    return torch.cat([torch.arange(len(scores)), order.repeat(rounds)])[:width]


def split_offsets(source: torch.Tensor) -> torch.Tensor:
    """How far along its direction each copy goes: +1 and -1, evenly between them where there are more copies.

    >>> split_offsets(torch.tensor([0, 1, 1, 1])).tolist()
    [0.0, 1.0, 0.0, -1.0]
    """
    offsets = torch.zeros(len(source), dtype=torch.float64)
    for unit, count in enumerate(torch.bincount(source).tolist()):
        if count > 1:
            offsets[source == unit] = torch.linspace(1.0, -1.0, count, dtype=torch.float64)
    return offsets
