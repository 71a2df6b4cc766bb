"""Convolutions and linear layers, caught as the model runs: what methods that search on data understand.

The model is not changed. While it runs, torch shows every call to a `TorchFunctionMode`; those whose
weight is a parameter that grows are handed to `Contractions.contract`, whatever module or function made
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from growthring.core.axes import refs
from growthring.errors import InputError
from growthring.graph.groups import TensorSpec, WidthGroups
from growthring.graph.trace import split_inputs
from growthring.methods.net2net import refuse_classes, refuse_tied
from growthring.methods.trialcopies import searching_copy
from growthring.planning.plan import Plan

_CONVOLUTIONS = {
    torch.conv1d: 1, functional.conv1d: 1, torch.conv2d: 2, functional.conv2d: 2, torch.conv3d: 3,
    functional.conv3d: 3,
}  # fmt: skip
_PARAMETERS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


@dataclass(frozen=True)
class Call:
    """One call of a convolution or linear layer whose weight is a parameter.

    Attributes:
        spec: of the weight.
        inputs: (batch, channels, *space), or (*, features) of a linear layer.
        weight: the parameter.
        bias: if there is one.
        options: stride, padding, dilation, groups of a convolution.
        dimensions: of space: 0 for a linear layer.
        function: what was called.
    """

    spec: TensorSpec
    inputs: Tensor
    weight: Tensor
    bias: Tensor | None
    options: Mapping[str, Any]
    dimensions: int
    function: Callable[..., Tensor]

    @property
    def groups(self) -> int:
        """Of a grouped convolution."""
        return int(self.options.get("groups", 1))

    @property
    def channel_axis(self) -> int:
        """Which axis of the inputs the weight contracts over."""
        return -1 - self.dimensions

    def run(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The same operator on other tensors."""
        return self.function(inputs, weight, bias, **self.options)


class Contractions(TorchFunctionMode):
    """Shows `contract` the convolutions and linear layers that read or write a width that grows.

    Args:
        groups: of the model.
        model: that will run, at whatever widths.
        growing: the groups that grow.
    """

    def __init__(self, groups: WidthGroups, model: nn.Module, growing: Iterable[int]) -> None:
        super().__init__()
        self._specs, self.growing = groups.specs, frozenset(growing)
        self._names = {id(p): name for name, p in model.named_parameters()}
        # a depthwise convolution of a single unit is called like any other, but its module knows
        self._filters = {
            f"{path}.weight".lstrip(".") for path, name in groups.attributes if name == "groups"
        }

    def passes_on(self, call: Call) -> bool:
        """Whether each unit is filtered by itself (depthwise), so that units are passed on and not mixed."""
        return (call.groups > 1 or call.spec.name in self._filters) and not self.reads(call.spec)

    def contract(self, call: Call) -> Tensor:
        """What the call returns."""
        return call.run(call.inputs, call.weight, call.bias)

    def reads(self, spec: TensorSpec) -> bool:
        """Whether a weight contracts over a width that grows."""
        return any(r.group in self.growing for i in spec.read for r in refs(spec.axes[i]))

    def writes(self, spec: TensorSpec) -> bool:
        """Whether a weight writes a width that grows."""
        written = [a for i, a in enumerate(spec.axes) if i not in spec.read | spec.kernel]
        return any(r.group in self.growing for a in written for r in refs(a))

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CONVOLUTIONS or func is functional.linear:
            given = dict(zip(_PARAMETERS, args, strict=False)) | kwargs
            name = self._names.get(id(given.get("weight")))
            if name is not None and self._specs[name].groups() & self.growing:
                options = {k: v for k, v in given.items() if k in _PARAMETERS[3:]}
                return self.contract(
                    Call(
                        self._specs[name], given["input"], given["weight"], given.get("bias"), options,
                        _CONVOLUTIONS.get(func, 0), func,
                    )
                )  # fmt: skip
        return self.other(func, args, kwargs)

    def other(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What any other operator returns."""
        return func(*args, **kwargs)


class Witness(Contractions):
    """Takes down which weights are used in a way that is understood."""

    def __init__(self, groups: WidthGroups, model: nn.Module, growing: Iterable[int]) -> None:
        super().__init__(groups, model, growing)
        self.calls: dict[str, list[Call]] = {}

    def contract(self, call: Call) -> Tensor:
        """The call as it is."""
        self.calls.setdefault(call.spec.name, []).append(call)
        return super().contract(call)


def understood_calls(method: str, plan: Plan, model: nn.Module) -> dict[str, list[Call]]:
    """The calls of every weight that grows, by name; raises where the model has anything else that grows.

    The model is run once on the plan's example inputs, as a twin in eval mode.
    """
    refuse_tied(method, plan)
    refuse_classes(method, plan)
    groups = plan.groups
    growing = {g.key for g in groups.growable}
    names = {g.key: g.name for g in groups.growable}

    def refuse(what: str) -> InputError:
        return InputError(
            f"method '{method}' cannot grow this model: {what}. It understands convolutions and linear layers "
            "with BatchNorm and pointwise activations; use method 'paired', or freeze the widths concerned."
        )

    for pair in groups.factors:
        count, size = (
            f"'{names[key]}' ({word})"
            for key, word in zip((pair.count, pair.size), pair.words, strict=True)
        )
        raise refuse(
            f"both {count} and {size} grow, factors of one axis, so a unit is not a slice of its weights"
        )
    for norm in groups.statistics:
        if any(r.group in growing for r in refs(norm.axis)):
            raise refuse(f"the norm '{norm.module}' takes its statistics over units that are added")
    for name, spec in groups.specs.items():
        if not spec.groups() & growing:
            continue
        if spec.kind in ("table", "direct", "buffer"):
            raise refuse(f"'{name}' is used as an activation, not as the weight of a layer")
        others = [a for i, a in enumerate(spec.axes) if i not in spec.read]
        odd = [r.group for a in others for r in refs(a) if r.sign < 0 and r.group in growing]
        if odd:
            raise refuse(
                f"the units of '{names[odd[0]]}' are contracted with each other (attention, tied weights)"
            )
    twin = searching_copy(model)
    witness = Witness(groups, twin, growing)
    arguments, named = split_inputs(plan.inputs_for(model))
    with torch.no_grad(), witness:
        twin(*arguments, **named)
    for name, spec in groups.specs.items():
        if spec.kind == "weight" and spec.groups() & growing and name not in witness.calls:
            raise refuse(f"'{name}' is the weight of something else")
    for name, calls in witness.calls.items():
        for call in calls:
            if call.dimensions and call.inputs.dim() != call.dimensions + 2:
                raise refuse(f"'{name}' takes inputs without a batch axis")
    return witness.calls
