"""What a trace is made of: operators on values of known shape."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from growthring.graph.traits import Traits, traits_of

BRANCH = "(branch)"  # begins the call of an operator that only runs under a condition

# Operators that change where entries lie in memory, which may depend on the mode, and nothing else.
_LAYOUT = ("aten.contiguous", "aten.clone")


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor in the traced graph. Compared by identity.

    `storage` names the memory that it lies in: views of one tensor share it (0: not known).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    storage: int = field(default=0, repr=False)


@dataclass(frozen=True, eq=False)
class Op:
    """One operator call.

    Attributes:
        name: `aten.linear.default` and the like.
        args: positional arguments, tensors replaced by `Value`.
        kwargs: keyword arguments, likewise.
        outputs: the values it returns.
        module: qualified name of the module whose forward called it ("" is the model itself).
        call: names the call of that module (a module may be called several times).
        writes: those of its inputs that it changes in place.
        site: of a reduction that the code calls by name: the module that runs it, and where in its code.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Value, ...]
    module: str
    call: str = ""
    writes: tuple[Value, ...] = ()
    site: tuple[str, str] | None = None

    def where(self) -> str:
        """For messages: the operator and the module that calls it."""
        return f"operator '{self.name.rsplit('.', 1)[0]}' in '{self.module or '(model)'}'"

    @property
    def base(self) -> str:
        """The name without its overload: `aten.linear`, in place `aten.relu_`."""
        return ".".join(self.name.split(".")[:2])

    @property
    def traits(self) -> Traits:
        """What the operator is, as said where its rule is registered."""
        return traits_of(self.name)

    def arg(self, index: int, name: str, default: Any = None) -> Any:
        """An argument by position or, failing that, by name."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(name, default)

    def inputs(self) -> Iterator[Value]:
        """The tensors it takes."""
        yield from values_in((self.args, dict(self.kwargs)))


@dataclass(frozen=True)
class Trace:
    """The operators of one forward pass, in order.

    Attributes:
        ops: the operators.
        parameters: value -> name of the parameter, a tied one under its first name.
        buffers: value -> name of the buffer.
        inputs: value -> description of the model input.
        outputs: the tensors that the model returns.
        left: value -> name of the attribute that the forward pass leaves it in (an auxiliary loss, features).
        constants: value -> the tensor that the model's code made or holds by itself.
        reads: (module, attribute) of whole numbers that the modules' code read during the pass.
    """

    ops: list[Op] = field(default_factory=list)
    parameters: dict[Value, str] = field(default_factory=dict)
    buffers: dict[Value, str] = field(default_factory=dict)
    inputs: dict[Value, str] = field(default_factory=dict)
    outputs: list[Value] = field(default_factory=list)
    left: dict[Value, str] = field(default_factory=dict)
    constants: dict[Value, torch.Tensor] = field(default_factory=dict)
    reads: set[tuple[str, str]] = field(default_factory=set)

    def used_parameters(self) -> set[str]:
        """Parameters that some operator takes (every parameter of the model is an input of the graph)."""
        used = {value for op in self.ops for value in op.inputs()}
        return {name for value, name in self.parameters.items() if value in used}

    def signature(self) -> list[Any]:
        """The operators, their arguments and shapes, without what train mode changes in torch's own layers.

        Two traces with one signature run the same operators on the same values, called from the same places.
        """
        numbers: dict[Value, int] = {}
        fresh = itertools.count()

        def visit(item: Any) -> Any:
            if isinstance(item, Value):
                if item not in numbers:
                    numbers[item] = next(fresh)
                return (numbers[item], item.shape, item.dtype)
            if isinstance(item, (list, tuple)):
                return tuple(visit(child) for child in item)
            return repr(item)

        result: list[Any] = []
        named = {**self.parameters, **self.buffers, **self.inputs}
        for value, name in named.items():
            result.append((name, visit(value)))
        for op in self.ops:
            if op.name == "aten.add_.Tensor" and self.buffers.get(op.args[0], "").endswith(
                "num_batches_tracked"
            ):
                continue  # batch norm counts its batches in train mode
            if op.name.startswith(_LAYOUT):
                numbers[op.outputs[0]] = visit(op.args[0])[0]
                continue
            tensors = tuple(op.inputs()) if op.traits.modal else (op.args, *op.kwargs.items())
            result.append((op.name, op.module, op.site, visit(tensors), visit(op.outputs)))
        return [*result, visit(self.outputs), visit(list(self.left)), tuple(self.left.values())]

    @cached_property
    def consumers(self) -> dict[Value, list[Op]]:
        """Which operators take each value."""
        result: dict[Value, list[Op]] = {}
        for op in self.ops:
            for value in op.inputs():
                result.setdefault(value, []).append(op)
        return result


def values_in(item: Any) -> Iterator[Value]:
    """The values in nested lists, tuples and dicts."""
    if isinstance(item, Value):
        yield item
    elif isinstance(item, (list, tuple)):
        for child in item:
            yield from values_in(child)
    elif isinstance(item, dict):
        for child in item.values():
            yield from values_in(child)
