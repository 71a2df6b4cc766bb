"""Every unit split in two, tried without building the split network.

A unit with weights θ split into θ + v and θ - v, each read with half the weight, gives its readers

    ½ [σ(z + v∗x) + σ(z - v∗x)]

whatever lies between (norms, activations, pooling, residual sums), as long as that treats examples and
units by themselves. So the batch is run in branches, side by side along its first axis: a layer that
reads split units averages the branches, computes z and v∗x, and hands z ± v∗x on. With a third branch
of unsplit units, gates at 0 tell what each split alone would do to the loss:

    x + gate · (½ [x₊ + x₋] - x)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from growthring.core.axes import Axis, Fixed, Product
from growthring.errors import GrowthStepError
from growthring.graph.results import output_tensors
from growthring.graph.trace import split_inputs
from growthring.methods.base import Job
from growthring.methods.contractions import Call, Contractions, Witness
from growthring.methods.units import Units

_SLACK = 1e3  # machine epsilons that splitting by nothing may change the outputs by


class Branches(Contractions):
    """Runs a model with its units split along `directions`.

    Args:
        model: a twin in eval mode.
        job: the growth.
        units: the units of the growing groups, at the model's widths.
        directions: weight -> v, of the weight's shape.
        gates: one for each unit, all 0; None splits all units at full strength.
        is_new: units (total,) that are candidates themselves: their gate adds them as a whole.
        replaced: operators to run otherwise.
    """

    def __init__(
        self,
        model: nn.Module,
        job: Job,
        units: Units,
        directions: Mapping[str, Tensor],
        gates: Tensor | None = None,
        is_new: Tensor | None = None,
        replaced: Mapping[Any, Callable[..., Any]] | None = None,
    ) -> None:
        super().__init__(job.step.plan.groups, model, job.step.growing)
        self._model, self._units, self._directions = model, units, directions
        self._gates, self._is_new, self._replaced = gates, is_new, replaced or {}
        self._num = 2 if gates is None else 3
        self._groups, self._examples = job.step.plan.groups, job.step.plan.inputs_for(model)

    def split_weights(self) -> list[str]:
        """The weights whose rows are units that grow; filters that pass units on are not among them."""
        witness = Witness(self._groups, self._model, self.growing)
        arguments, named = split_inputs(self._examples)
        with torch.no_grad(), witness:
            self._model(*arguments, **named)
        return [
            name
            for name, calls in witness.calls.items()
            if self.writes(calls[0].spec) and not any(self.passes_on(call) for call in calls)
        ]

    def outputs(self, inputs: Any) -> Any:
        """The model's outputs for a batch of inputs."""
        arguments, named = _beside(inputs, [_same] * self._num)
        with self:
            stacked = self._model(*arguments, **named)
        return pytree.tree_map_only(Tensor, self._own, stacked)

    def _own(self, outputs: Tensor) -> Tensor:
        return outputs.chunk(self._num)[0] if outputs.dim() else outputs

    def check(self, inputs: Any) -> None:
        """Raises if the model does not take its examples one by one, so that branches would mix.

        The first branch must not notice that the second has other examples: the first one again and again.
        """
        arguments, named = split_inputs(inputs)
        others, other_named = _beside(inputs, [_same, *[_first] * (self._num - 1)])
        kept, self._directions = self._directions, {}
        try:
            with torch.no_grad():
                plain = output_tensors(self._model(*arguments, **named))
                split = output_tensors(self.outputs(inputs))
                beside = output_tensors(self._model(*others, **other_named))
        finally:
            self._directions = kept
        for a, b, c in zip(plain, split, beside, strict=True):
            if not (_alike(a, b) and _alike(a, self._own(c))):
                raise GrowthStepError(
                    "the model mixes the examples of a batch, or does not take the batch on its first axis, "
                    "so splits cannot be tried side by side; nothing was changed. Use method 'paired'."
                )

    def contract(self, call: Call) -> Tensor:
        """The averaged branches' z, ± v∗x."""
        if self.passes_on(call):  # each branch by itself
            return call.run(call.inputs, call.weight, call.bias)
        parts = call.inputs.chunk(self._num)
        x = self._joined(call, parts) if self.reads(call.spec) else parts[0]
        z = call.run(x, call.weight, call.bias)
        direction = self._directions.get(call.spec.name)
        if direction is None:
            return torch.cat([z] * self._num)
        move = call.run(x, direction, None)
        halves = [z + move, z - move]
        return torch.cat(halves if self._gates is None else [z, *halves])

    def _joined(self, call: Call, parts: tuple[Tensor, ...]) -> Tensor:
        if self._gates is None:
            return 0.5 * (parts[0] + parts[1])
        plain, plus, minus = parts
        (read,) = call.spec.read
        axis: Axis = call.spec.axes[read]
        if call.groups > 1:
            axis = Product((Fixed(call.groups), axis))
        position = plain.dim() + call.channel_axis
        gates = self._units.spread(self._gates, axis, plain, position)
        gain = 0.5 * (plus + minus) - plain
        if self._is_new is not None:
            new = self._units.spread(self._is_new.to(plain), axis, plain, position)
            gain, plain = gain + new * plain, plain - new * plain
        return plain + gates * gain

    def other(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator that is replaced, or the operator itself."""
        return self._replaced.get(func, func)(*args, **kwargs)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _first(tensor: Tensor) -> Tensor:
    """The first example again and again."""
    return torch.cat([tensor[:1]] * len(tensor))


def _beside(inputs: Any, branches: Sequence[Callable[[Tensor], Tensor]]) -> tuple[Any, Any]:
    """Inputs with the branches one after the other along the first axis."""
    arguments, named = split_inputs(inputs)
    stacked: tuple[Any, Any] = pytree.tree_map_only(
        Tensor,
        lambda t: torch.cat([branch(t) for branch in branches]) if t.dim() else t,
        (tuple(arguments), named),
    )
    return stacked


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether two outputs are equal, up to rounding."""
    if a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    limit = _SLACK * torch.finfo(a.dtype).eps
    return bool((a - b).abs().max() <= limit * (1 + a.abs().max()))
