"""The matrix M of GradMax: what a group's layers read, times the gradient of what the layers after them compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from growthring.core.widen import normal
from growthring.errors import GrowthStepError
from growthring.graph.groups import TensorSpec
from growthring.graph.trace import split_inputs
from growthring.methods.base import Job
from growthring.methods.contractions import Call
from growthring.methods.paths import Taps, UnitPath, find_paths
from growthring.methods.search import DataSearch
from growthring.methods.silent import silent_copy

_EXACT = 1024  # largest smaller side of a matrix that is decomposed as a whole


@dataclass(frozen=True)
class Reader:
    """A weight that reads a group.

    Attributes:
        spec: of the weight (out, in, *kernel).
        shape: of one unit's part of it (out, *kernel).
    """

    spec: TensorSpec
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Entries of one unit's part."""
        return int(torch.Size(self.shape).numel())


def gradient_matrices(
    job: Job, search: DataSearch, twin: nn.Module, examples: int
) -> dict[int, tuple[Tensor, list[Reader]]]:
    """M of every growing group, (all writers' inputs, all readers' outputs), and its readers.

    Args:
        job: the growth.
        search: the batches.
        twin: of the model, in eval mode.
        examples: how many to take M over.
    """
    paths = find_paths(job, silent_copy(job))
    blocks: dict[tuple[int, str, str], Tensor] = {}

    def add(inputs: Any, targets: Any) -> None:
        taps = Taps(job, twin, is_cut=False)
        arguments, named = split_inputs(inputs)
        with torch.enable_grad(), taps:
            loss = search.loss(twin(*arguments, **named), targets)
        gradients = torch.autograd.grad(loss, taps.taps, allow_unused=True, materialize_grads=True)
        for path in paths:
            writer, reader = taps.calls[path.writer], taps.calls[path.reader]
            block = _block(writer, reader, gradients[path.reader], path)
            key = (path.group, writer.spec.name, reader.spec.name)
            blocks[key] = blocks[key] + block if key in blocks else block

    search.over(None, add, examples=examples)
    return {group: _assembled(job, group, blocks) for group in job.step.growing}


def _assembled(
    job: Job, group: int, blocks: Mapping[tuple[int, str, str], Tensor]
) -> tuple[Tensor, list[Reader]]:
    specs = job.step.plan.groups.specs
    writers = dict.fromkeys(w for g, w, _ in blocks if g == group)
    names = dict.fromkeys(r for g, _, r in blocks if g == group)
    readers = []
    for name in names:
        shape = tuple(job.tensors[name].shape)
        readers.append(Reader(specs[name], (shape[0], *shape[2:])))
    rows = []
    for writer in writers:
        fan_in = int(job.tensors[writer][0].numel())
        row = []
        for reader in readers:
            block = blocks.get((group, writer, reader.spec.name))
            like = job.tensors[writer]
            row.append(like.new_zeros(fan_in, reader.size) if block is None else block)
        rows.append(torch.cat(row, 1))
    if not rows:
        return torch.zeros(0, 0), []
    return torch.cat(rows), readers


def _block(writer: Call, reader: Call, gradient: Tensor, path: UnitPath) -> Tensor:
    """Σ over examples and places of x ⊗ ∂L/∂h: (in · kernel, out · kernel)."""
    x = _patches(writer)  # (b, in · kernel, places)
    pulled = _pulled_back(reader, gradient)  # (b, out · kernel, places of what the reader reads)
    pulled = (
        pulled * path.places if isinstance(path.places, float) else pulled @ path.places.to(pulled)
    )
    if x.shape[0] != pulled.shape[0] or x.shape[2] != pulled.shape[2]:
        raise GrowthStepError(
            f"method 'gradmax' cannot follow the way from '{writer.spec.name}' to '{reader.spec.name}': the "
            "batches have other sizes than the example inputs. Nothing was changed; use another method."
        )
    return x.movedim(1, 0).flatten(1) @ pulled.movedim(1, 0).flatten(1).T


def _patches(call: Call) -> Tensor:
    """What each place of a call reads."""
    x = call.inputs.detach()
    if not call.dimensions:
        return x.flatten(1, -2).movedim(1, 2) if x.dim() > 2 else x[..., None]
    (top, bottom), (left, right) = _padding(call)
    padded = functional.pad(_flat(x, call), (left, right, top, bottom))
    dilation, stride = _numbers(call, "dilation"), _numbers(call, "stride")
    return functional.unfold(padded, _kernel(call), dilation=dilation, stride=stride)


def _pulled_back(call: Call, gradient: Tensor) -> Tensor:
    """∂L/∂h as each entry of a reader's kernel hands it to the places that it reads."""
    if not call.dimensions:
        return gradient.flatten(1, -2).movedim(1, 2) if gradient.dim() > 2 else gradient[..., None]
    h, (rows, cols) = _flat(gradient, call), _flat(call.inputs, call).shape[2:]
    (top, bottom), (left, right) = _padding(call)
    (down, across), (tall, wide) = _numbers(call, "stride"), _numbers(call, "dilation")
    kernel, parts = _kernel(call), []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            canvas = h.new_zeros(*h.shape[:2], rows + top + bottom, cols + left + right)
            canvas[
                :, :, tall * i : tall * i + down * (h.shape[2] - 1) + 1 : down,
                wide * j : wide * j + across * (h.shape[3] - 1) + 1 : across,
            ] = h  # fmt: skip
            parts.append(canvas[:, :, top : top + rows, left : left + cols].flatten(2))
    return torch.stack(parts, 2).flatten(1, 2)


def _flat(tensor: Tensor, call: Call) -> Tensor:
    """Two axes of space, also where there is one."""
    return tensor[:, :, None] if call.dimensions == 1 else tensor


def _kernel(call: Call) -> tuple[int, int]:
    shape = tuple(call.weight.shape[2:])
    return (1, shape[0]) if call.dimensions == 1 else (shape[0], shape[1])


def _numbers(call: Call, name: str, default: int = 1) -> tuple[int, int]:
    """An option along both axes of space."""
    value = call.options.get(name, default)
    listed = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    first, last = int(listed[0]), int(listed[-1])
    return (default, last) if call.dimensions == 1 else (first, last)


def _padding(call: Call) -> tuple[tuple[int, int], tuple[int, int]]:
    """(top, bottom), (left, right); torch's "same" puts the odd one at the end."""
    given = call.options.get("padding", 0)
    if given == "valid":
        return (0, 0), (0, 0)
    if given == "same":
        sizes = zip(_kernel(call), _numbers(call, "dilation"), strict=True)
        (a, b), (c, d) = ((d * (k - 1) // 2, d * (k - 1) - d * (k - 1) // 2) for k, d in sizes)
        return (a, b), (c, d)
    high, wide = _numbers(call, "padding", 0)
    return (high, high), (wide, wide)


def leading_vectors(matrix: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, int]:
    """The `count` leading right singular vectors of M as rows, and how many of them M has.

    Where its rank is smaller, the rest are random, of norm 1.
    """
    if matrix.dtype not in (torch.float32, torch.float64):
        matrix = matrix.float()
    drawn = normal((count, matrix.shape[1]), 1.0, matrix, generator)
    drawn = drawn / drawn.norm(dim=1, keepdim=True).clamp_min(1e-30)
    smaller = min(matrix.shape)
    if smaller == 0 or not bool(matrix.any()):
        return drawn, 0
    if smaller <= _EXACT or count + 16 > smaller:
        _, values, rows = torch.linalg.svd(matrix, full_matrices=False)
    else:
        # a random projection, from a seed that the generator gives
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(seed))
            _, values, columns = torch.svd_lowrank(matrix, q=count + 16, niter=4)
        rows = columns.T
    limit = values[0] * 100 * torch.finfo(matrix.dtype).eps
    rank = min(count, int((values > limit).sum()))
    drawn[:rank] = rows[:rank]
    return drawn, rank
