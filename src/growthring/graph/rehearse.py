"""Rehearsals: a forward pass on fake tensors that notes operators and shapes, and nothing else.

Much cheaper than a trace, and enough to see whether two copies of a model do the same: with and without an
attribute that follows a width, on the example inputs and on longer and shorter ones.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from growthring.graph.isolation import call, fixed_random, untouched
from growthring.graph.results import output_tensors
from growthring.graph.trace import ExampleInputs, _mode, _quiet, split_inputs

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Move:
    """One operator of a rehearsal: its name, the shapes it returns, its numbers, the module that calls it."""

    name: str
    shapes: tuple[Shape, ...]
    numbers: tuple[float, ...]
    module: str


@dataclass(frozen=True)
class Rehearsal:
    """The operators of one forward pass; `error` says why it ended early, and `module` where."""

    moves: tuple[Move, ...]
    outputs: tuple[Shape, ...]
    error: str = ""
    module: str = ""

    def same_shapes(self, other: Rehearsal) -> bool:
        """Whether both ran the same operators to shapes that are the same."""
        pairs = zip(self.moves, other.moves, strict=False)
        return (
            self.error == other.error == ""
            and len(self.moves) == len(other.moves)
            and all(a.name == b.name and a.shapes == b.shapes for a, b in pairs)
        )

    def same_numbers(self, other: Rehearsal) -> bool:
        """Whether both computed with the same numbers."""
        return [m.numbers for m in self.moves] == [m.numbers for m in other.moves]


class _Recorder(TorchDispatchMode):
    def __init__(self, paths: dict[int, str]) -> None:
        super().__init__()
        self.moves: list[Move] = []
        self._paths = paths

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        shapes = tuple(tuple(t.shape) for t in tree_leaves(out) if isinstance(t, torch.Tensor))
        plain = tree_leaves((args, kwargs or {}))
        numbers = tuple(float(n) for n in plain if type(n) in (int, float))
        self.moves.append(Move(str(func), shapes, numbers, self._caller()))
        return out

    def _caller(self) -> str:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            path = self._paths.get(id(frame.f_locals.get("self")))
            if path is not None:
                return path
            frame = frame.f_back
        return ""


def rehearse(
    model: nn.Module,
    inputs: ExampleInputs,
    training: bool = False,
    outputs: Sequence[str] | None = None,
    look: Callable[[], None] | None = None,
) -> Rehearsal:
    """Runs a model on fake tensors. The model is used up: pass a copy that shares nothing but tensors.

    `look` is called after the pass, before what it changed is put back.
    """
    args, kwargs = split_inputs(inputs)
    paths = {id(module): path for path, module in model.named_modules()}
    recorder = _Recorder(paths)
    contexts = (untouched(model), _mode(model, training), _quiet(), fixed_random())
    try:
        with contextlib.ExitStack() as stack:
            for context in (*contexts, FakeTensorMode(allow_non_fake_inputs=True), recorder):
                stack.enter_context(context)
            tensors = output_tensors(call(model, args, kwargs), outputs)
            if look is not None:
                look()
            shapes = tuple(tuple(t.shape) for t in tensors)
    except Exception as error:  # whatever the model's code or torch raises
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Rehearsal(tuple(recorder.moves), (), text or "?", innermost(paths, error)[0])
    return Rehearsal(tuple(recorder.moves), shapes)


def innermost(paths: dict[int, str], error: BaseException) -> tuple[str, int]:
    """The innermost module on the stack of an error, and the line in its code."""
    module, line = "", 0
    entry = error.__traceback__
    while entry is not None:
        holder = entry.tb_frame.f_locals.get("self")
        if id(holder) in paths:
            module, line = paths[id(holder)], entry.tb_lineno
        entry = entry.tb_next
    return module, line


def other_inputs(inputs: ExampleInputs, beyond: int) -> Iterator[list[tuple[str, ExampleInputs]]]:
    """Inputs of other sizes: for each axis, alternatives of which the first that the model takes is enough.

    Args:
        inputs: the example.
        beyond: a size that longer inputs should go beyond.
    """
    args, kwargs = split_inputs(inputs)
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    axes = dict.fromkeys((i, n) for t in tensors for i, n in enumerate(t.shape))
    for axis, n in axes:
        if n == 0:
            continue
        longer, shorter = (n + beyond, 2 * n, n + 1), (n // 2, n - 1)
        for sizes in (longer, shorter):
            alternatives = []
            for m in dict.fromkeys(sizes):
                if m < 2 or m == n:  # an axis of one entry is broadcast, and einsum leaves it out
                    continue
                for everywhere in (False, True):  # masks have the length on several axes
                    chosen = [
                        [d for d, s in enumerate(t.shape) if s == n and (everywhere or d == axis)]
                        for t in tensors
                    ]
                    text = f"axis {axis} of the inputs {m} long instead of {n}"
                    resized = iter(
                        [_resized(t, dims, m) for t, dims in zip(tensors, chosen, strict=True)]
                    )

                    def swap(item: Any, resized: Iterator[torch.Tensor] = resized) -> Any:
                        return next(resized) if isinstance(item, torch.Tensor) else item

                    alternatives.append((text, _like(inputs, tree_map(swap, (args, kwargs)))))
            if alternatives:
                yield alternatives


def _like(inputs: ExampleInputs, split: tuple[tuple[Any, ...], dict[str, Any]]) -> ExampleInputs:
    args, kwargs = split
    return kwargs if not args and kwargs else args


def _resized(tensor: torch.Tensor, dims: Iterable[int], length: int) -> torch.Tensor:
    for d in dims:
        index = torch.arange(length, device=tensor.device) % tensor.shape[d]
        tensor = tensor.index_select(d, index)
    return tensor


def stray(
    full: Rehearsal, copy: Rehearsal, other_full: Rehearsal, other_copy: Rehearsal
) -> tuple[str, str] | None:
    """Where a copy strays on inputs of another size: (module, what is wrong), or None.

    `full` and `copy` are the model and its copy on the example, `other_*` on the other inputs. A size that does not
    depend on the inputs must be the copy's own on the example, one that does not depend on the widths must be the
    full model's, and one that depends on both changes in proportion (or by as much, where they are added).
    """
    if other_copy.error:
        return other_copy.module, other_copy.error
    for a, b in zip(other_full.moves, other_copy.moves, strict=False):
        if a.name != b.name:
            return b.module, f"{b.name} runs instead of {a.name}"
    if len(other_full.moves) != len(other_copy.moves):
        return "", "another number of operators runs"
    if len(full.moves) == len(other_full.moves):
        for moves in zip(full.moves, copy.moves, other_full.moves, other_copy.moves, strict=False):
            if moves[0].name != moves[2].name:
                break
            for shapes in zip(*(m.shapes for m in moves), strict=False):
                if any(len(s) != len(shapes[0]) for s in shapes):
                    continue
                for sizes in zip(*shapes, strict=True):
                    if not _in_keeping(*sizes):
                        given, wanted = shapes[3], _wanted(shapes)
                        return moves[3].module, f"{moves[3].name} gives {given}, not {wanted}"
    results = other_full.outputs
    if full.outputs != copy.outputs and len(copy.outputs) == len(results):  # of fewer classes
        results = tuple((*w[:-1], *c[-1:]) for w, c in zip(results, copy.outputs, strict=True))
    if results != other_copy.outputs:
        return "", f"its outputs are {other_copy.outputs} where {results} is needed"
    return None


def _in_keeping(full: int, copy: int, other_full: int, other_copy: int) -> bool:
    if full == other_full:
        return copy == other_copy
    if full == copy:
        return other_full == other_copy
    in_proportion = full * other_copy == copy * other_full
    return in_proportion or other_copy - copy == other_full - full  # w · t, w + t


def _wanted(shapes: Sequence[Shape]) -> Shape:
    wanted = []
    for full, copy, other_full, _ in zip(*shapes, strict=True):
        same = copy if full == other_full else other_full
        wanted.append(
            same if copy == full or full == other_full else math.ceil(copy * other_full / full)
        )
    return tuple(wanted)
