"""The matrix M of GradMax: what a group's layers read, times the gradient of what the layers after them compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from growthring.core.axes import refs
from growthring.core.widen import normal
from growthring.errors import GrowthStepError
from growthring.graph.groups import TensorSpec
from growthring.graph.trace import split_inputs
from growthring.methods.base import Job
from growthring.methods.contractions import Call, Contractions
from growthring.methods.search import Search
from growthring.methods.units import Units

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


def columns(spec: TensorSpec, widths: Mapping[int, int], group: int) -> Tensor:
    """Where a group's units are on the axis that a weight reads, in their order (width,)."""
    (axis,) = spec.read
    along = Units(widths, [group]).along(spec.axes[axis])
    return torch.argsort(along, stable=True)[int((along < 0).sum()) :]


class Taps(Contractions):
    """Keeps every call of a weight that grows, with a zero added to what it returns: its gradient is wanted.

    Args:
        is_cut: whether what layers compute is cut off from what they read, so that only the paths along
            which units are passed on stay connected.
    """

    def __init__(self, job: Job, twin: nn.Module, is_cut: bool) -> None:
        super().__init__(job.step.plan.groups, twin, job.step.growing)
        self._is_cut = is_cut
        self.calls: list[Call] = []
        self.taps: list[Tensor] = []

    def contract(self, call: Call) -> Tensor:
        """The call's result plus its tap."""
        is_cut = self._is_cut and not self.passes_on(call)
        source = call.inputs.detach() if is_cut else call.inputs
        result = call.run(source, call.weight, call.bias)
        tap = torch.zeros_like(result).requires_grad_()
        self.calls.append(call)
        self.taps.append(tap)
        return result + tap


@dataclass(frozen=True)
class _Path:
    """From a layer that writes a group to one that reads it, by number of call; the strides of filters between."""

    group: int
    writer: int
    reader: int
    stride: int


def gradient_matrices(
    job: Job, search: Search, twin: nn.Module, examples: int
) -> dict[int, tuple[Tensor, list[Reader]]]:
    """M of every growing group, (all writers' inputs, all readers' outputs), and its readers.

    Args:
        job: the growth.
        search: the batches.
        twin: of the model, in eval mode.
        examples: how many to take M over.
    """
    paths = _paths(job, twin)
    blocks: dict[tuple[int, str, str], Tensor] = {}

    def add(inputs: Any, targets: Any) -> None:
        taps = Taps(job, twin, is_cut=False)
        arguments, named = split_inputs(inputs)
        with torch.enable_grad(), taps:
            loss = search.loss(twin(*arguments, **named), targets)
        gradients = torch.autograd.grad(loss, taps.taps, allow_unused=True, materialize_grads=True)
        for path in paths:
            writer, reader = taps.calls[path.writer], taps.calls[path.reader]
            block = _block(writer, reader, gradients[path.reader], path.stride)
            key = (path.group, writer.spec.name, reader.spec.name)
            blocks[key] = blocks[key] + block if key in blocks else block

    steps = -(-examples // search.batch_size())
    search.over(steps, add)
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
            found = blocks.get((group, writer, reader.spec.name))
            like = job.tensors[writer]
            row.append(like.new_zeros(fan_in, reader.size) if found is None else found)
        rows.append(torch.cat(row, 1))
    if not rows:
        return torch.zeros(0, 0), []
    return torch.cat(rows), readers


def _paths(job: Job, twin: nn.Module) -> list[_Path]:
    """Which writers feed which readers along their group, found by differentiating on the example inputs."""
    taps = Taps(job, twin, is_cut=True)
    arguments, named = split_inputs(job.step.plan.example_inputs)
    with torch.enable_grad(), taps:
        twin(*arguments, **named)
    paths = []
    for i, reader in enumerate(taps.calls):
        read = _groups(reader.spec, taps) if taps.reads(reader.spec) else set()
        if not read or not reader.inputs.requires_grad:
            continue
        found = torch.autograd.grad(
            reader.inputs.sum(), taps.taps[:i], allow_unused=True, retain_graph=True
        )
        feeds = [k for k, gradient in enumerate(found) if gradient is not None]
        for k in feeds:
            writer = taps.calls[k]
            if taps.passes_on(writer):
                continue
            for group in read & _written(writer.spec, taps):
                stride = 1
                for d in feeds:
                    if d > k and taps.passes_on(taps.calls[d]):
                        stride *= _numbers(taps.calls[d], "stride", 1)[0]
                paths.append(_Path(group, k, i, stride))
    return paths


def _groups(spec: TensorSpec, taps: Taps) -> set[int]:
    return {r.group for i in spec.read for r in refs(spec.axes[i])} & taps.growing


def _written(spec: TensorSpec, taps: Taps) -> set[int]:
    others = [a for i, a in enumerate(spec.axes) if i not in spec.read]
    return {r.group for a in others for r in refs(a)} & taps.growing


def _block(writer: Call, reader: Call, gradient: Tensor, stride: int) -> Tensor:
    """Σ over examples and places of x ⊗ ∂L/∂h: (in · kernel, out · kernel)."""
    x = _patches(writer)  # (b, in · kernel, places)
    space = _places(writer)
    pulled = _pulled_back(reader, gradient, space, stride)  # (b, out · kernel, places)
    if x.shape[0] != pulled.shape[0] or x.shape[2] != pulled.shape[2]:
        raise GrowthStepError(
            f"method 'gradmax' cannot follow the way from '{writer.spec.name}' to '{reader.spec.name}': "
            f"{tuple(x.shape)} against {tuple(pulled.shape)} places. Nothing was changed; use another method."
        )
    left = x.movedim(1, 0).flatten(1)
    return left @ pulled.movedim(1, 0).flatten(1).T


def _patches(call: Call) -> Tensor:
    if not call.dimensions:
        return call.inputs.detach().flatten(0, -2)[..., None]
    x = _flat(call.inputs.detach(), call)
    return functional.unfold(
        x,
        _kernel(call),
        dilation=_numbers(call, "dilation", 1),
        padding=_padding(call),
        stride=_numbers(call, "stride", 1),
    )


def _places(call: Call) -> tuple[int, int]:
    """Height and width of what a call computes."""
    if not call.dimensions:
        return 1, 1
    x = _flat(call.inputs, call)
    sizes = zip(
        x.shape[2:], _kernel(call), _numbers(call, "dilation", 1), _padding(call),
        _numbers(call, "stride", 1), strict=True,
    )  # fmt: skip
    height, width = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in sizes)
    return height, width


def _pulled_back(call: Call, gradient: Tensor, space: tuple[int, int], stride: int) -> Tensor:
    """∂L/∂h as each entry of the reader's kernel hands it to the places of the units it reads."""
    if not call.dimensions:
        flat = gradient.flatten(0, -2)[..., None, None]
        spread = _spread(flat, space, stride)
        return spread.flatten(2)
    h, x = _flat(gradient, call), _flat(call.inputs, call)
    strides, dilation, padding = (
        _numbers(call, "stride", 1),
        _numbers(call, "dilation", 1),
        _padding(call),
    )
    kernel, size = _kernel(call), x.shape[2:]
    parts = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            canvas = h.new_zeros(
                *h.shape[:2], *(n + 2 * p for n, p in zip(size, padding, strict=True))
            )
            top, left = dilation[0] * i, dilation[1] * j
            canvas[
                :, :, top : top + strides[0] * (h.shape[2] - 1) + 1 : strides[0],
                left : left + strides[1] * (h.shape[3] - 1) + 1 : strides[1],
            ] = h  # fmt: skip
            inner = canvas[
                :, :, padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]
            ]
            parts.append(_spread(inner, space, stride))
    return torch.stack(parts, 2).flatten(3).flatten(1, 2)


def _spread(values: Tensor, space: tuple[int, int], stride: int) -> Tensor:
    """Values at the places that a reader sees, at those that a writer computes: strides skip, pooling averages."""
    if tuple(values.shape[2:]) == space:
        return values
    inner = tuple(-(-n // stride) for n in space)
    if tuple(values.shape[2:]) != inner:
        share = values.shape[2] * values.shape[3] / (inner[0] * inner[1])
        values = share * functional.interpolate(values, size=inner, mode="nearest")
    if stride == 1:
        return values
    wide = values.new_zeros(*values.shape[:2], *space)
    wide[:, :, ::stride, ::stride] = values
    return wide


def _flat(tensor: Tensor, call: Call) -> Tensor:
    """Two axes of space, also where there is one."""
    return tensor[:, :, None] if call.dimensions == 1 else tensor


def _kernel(call: Call) -> tuple[int, int]:
    shape = tuple(call.weight.shape[2:])
    return (1, shape[0]) if call.dimensions == 1 else (shape[0], shape[1])


def _numbers(call: Call, name: str, default: int) -> tuple[int, int]:
    value = call.options.get(name, default)
    listed = tuple(value) if isinstance(value, (tuple, list)) else (value,) * call.dimensions
    if len(listed) < call.dimensions:
        listed = listed * call.dimensions
    if call.dimensions == 1:
        return (0 if name == "padding" else 1, int(listed[0]))
    return int(listed[0]), int(listed[1])


def _padding(call: Call) -> tuple[int, int]:
    given = call.options.get("padding", 0)
    if given == "valid":
        return 0, 0
    if given == "same":
        (high, wide), (a, b) = _kernel(call), _numbers(call, "dilation", 1)
        return a * (high - 1) // 2, b * (wide - 1) // 2
    return _numbers(call, "padding", 0)


def leading_vectors(matrix: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, int]:
    """The `count` leading right singular vectors of M as rows, and how many of them M has.

    Where its rank is smaller, the rest are random, of norm 1.
    """
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
            _, values, found = torch.svd_lowrank(matrix, q=count + 16, niter=4)
        rows = found.T
    limit = values[0] * max(matrix.shape) * torch.finfo(matrix.dtype).eps
    rank = min(count, int((values > limit).sum()))
    drawn[:rank] = rows[:rank]
    return drawn, rank
