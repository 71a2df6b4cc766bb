"""Fresh inputs of the example's kind: other values, another batch size, another length.

A growth that is exact on the example inputs alone proves little: they may be short, constant, or the very
case in which two sizes are equal by chance. So it is looked at on others, as far as the model takes them.
Nothing is known of what inputs mean; entries are drawn from the example's own, so that token numbers stay
token numbers and masks stay masks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from growthring.graph.trace import ExampleInputs, split_inputs


def resized(
    inputs: ExampleInputs, batch: int | None = None, sizes: Mapping[int, int] | None = None
) -> ExampleInputs:
    """The inputs with another batch size, and with other sizes of axes beyond the first.

    Args:
        inputs: example inputs; every tensor whose first axis is as long as the first tensor's has a batch.
        batch: the new batch size.
        sizes: old size -> new size, of all axes but the first.

    >>> resized(torch.ones(2, 5), batch=3, sizes={5: 7}).shape
    torch.Size([3, 7])
    """
    leaves, tree = _leaves(inputs)
    first = next((t.shape[0] for t in leaves if isinstance(t, torch.Tensor) and t.dim()), 0)

    def wanted(tensor: torch.Tensor) -> Iterator[int]:
        for axis, n in enumerate(tensor.shape):
            if axis == 0:
                yield batch if batch is not None and n == first else n
            else:
                yield (sizes or {}).get(n, n)

    return tree_unflatten([_repeat(t, list(wanted(t))) if _is_data(t) else t for t in leaves], tree)


def redrawn(inputs: ExampleInputs, generator: torch.Generator, whole: bool = True) -> ExampleInputs:
    """The inputs with entries drawn from their own; a floating-point tensor of one value gets normal ones.

    Masks (truth values, infinities) stay, and so do whole numbers unless `whole`.

    >>> drawn = redrawn(torch.tensor([1, 2, 2]), torch.Generator().manual_seed(0))
    >>> set(drawn.tolist()) <= {1, 2}
    True
    """
    leaves, tree = _leaves(inputs)
    drawn = [_is_data(t) and (whole or t.is_floating_point() or t.is_complex()) for t in leaves]
    pairs = zip(leaves, drawn, strict=True)
    return tree_unflatten([_redraw(t, generator) if is_drawn else t for t, is_drawn in pairs], tree)


def lengths(inputs: ExampleInputs) -> list[int]:
    """The different sizes of axes beyond the first: any of them may be a length that can change."""
    sizes = {n for t in _leaves(inputs)[0] if _is_data(t) for n in t.shape[1:]}
    return sorted(n for n in sizes if n > 1)


def batch_size(inputs: ExampleInputs) -> int | None:
    """The length of the first axis of the first tensor that has one."""
    return next((t.shape[0] for t in _leaves(inputs)[0] if _is_data(t)), None)


def fresh_inputs(
    inputs: ExampleInputs, generator: torch.Generator, runs: Callable[[ExampleInputs], bool]
) -> ExampleInputs:
    """Fresh inputs that a model takes: if it can be in a larger batch, and twice as long or half as long.

    Args:
        inputs: the example.
        generator: source of the entries.
        runs: whether the model takes an input.
    """
    # whole numbers may have an order of their own (offsets, edges sorted by node); then they stay
    for whole in (True, False):
        draw = functools.partial(redrawn, generator=generator, whole=whole)
        drawn = _fresh(inputs, draw, runs)
        if drawn is not None:
            return drawn
    return inputs


def _fresh(
    inputs: ExampleInputs,
    draw: Callable[[ExampleInputs], ExampleInputs],
    runs: Callable[[ExampleInputs], bool],
) -> ExampleInputs | None:
    """The first that the model takes, the most different ones first; None if it takes none."""
    number = batch_size(inputs)
    drawn = draw(inputs)
    if number is None:
        return drawn if runs(drawn) else None
    larger = draw(resized(inputs, number + 1))
    if has_run := runs(larger):
        drawn, number = larger, number + 1
    for factor in (2.0, 0.5):
        for n in lengths(inputs):
            other = int(n * factor)
            changed = draw(resized(inputs, number, {n: other}))
            if other > 1 and runs(changed):
                return changed
    return drawn if has_run or runs(drawn) else None


def _leaves(inputs: ExampleInputs) -> tuple[list[Any], Any]:
    split_inputs(inputs)  # refuses what is no input
    return tree_flatten(inputs)


def _is_data(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dim() > 0 and item.numel() > 0


def _repeat(tensor: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """Cuts a tensor, or begins it again where it ends, along every axis."""
    for axis, n in enumerate(shape):
        if n != tensor.shape[axis]:
            index = torch.arange(n, device=tensor.device) % tensor.shape[axis]
            tensor = tensor.index_select(axis, index)
    return tensor


def _redraw(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    entries = tensor.detach().reshape(-1)
    is_number = tensor.is_floating_point() or tensor.is_complex()
    if tensor.dtype == torch.bool or (is_number and not bool(torch.isfinite(entries).all())):
        return tensor  # a mask: at random, it might leave nothing
    if is_number and bool((entries == entries[0]).all()):
        kind = tensor.dtype if tensor.dtype.itemsize >= 4 else torch.float32
        drawn = torch.randn(tensor.shape, generator=generator, dtype=kind)
        return drawn.to(tensor)
    index = torch.randint(entries.numel(), (entries.numel(),), generator=generator)
    return entries[index.to(entries.device)].reshape(tensor.shape)
