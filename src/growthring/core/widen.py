"""Grow one tensor: pairs, constants, zeros (tensor -> tensor; paper, eqs. 2-4).

For a weight with written axis o and read axis i:

    W'[old, old] = c · W                                old block, rescaled
    W'[old, new] = +Z on first halves, -Z on second     the new units cancel in what they write to
    W'[new,   :] =  V on both halves                    new units come in equal pairs

A unit without a partner is read with weight 0. Along an axis of odd parity (keys of attention) the
halves of V are opposite.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from growthring.core.axes import Layout


def _is_run(positions: torch.Tensor) -> bool:
    n = len(positions)
    if n == 0 or int(positions[-1]) - int(positions[0]) != n - 1:
        return False
    return bool((positions[1:] - positions[:-1] == 1).all())


def _put(target: torch.Tensor, axis: int, positions: torch.Tensor, values: torch.Tensor) -> None:
    """Writes values to target[…, positions, …]."""
    if _is_run(positions):
        target.narrow(axis, int(positions[0]), len(positions)).copy_(values)
    elif len(positions):
        target.index_copy_(axis, positions.to(target.device), values.to(target.dtype))


def _take(tensor: torch.Tensor, axis: int, positions: torch.Tensor) -> torch.Tensor:
    if _is_run(positions):
        return tensor.narrow(axis, int(positions[0]), len(positions))
    return tensor.index_select(axis, positions.to(tensor.device))


def normal(
    shape: Sequence[int], std: float, like: torch.Tensor, generator: torch.Generator | None
) -> torch.Tensor:
    """N(0, std²) in the type and on the device of `like`, drawn on the generator's device."""
    device = generator.device if generator is not None else like.device
    dtype = torch.float32 if like.dtype in (torch.float16, torch.bfloat16) else like.dtype
    drawn = torch.empty(tuple(shape), dtype=dtype, device=device)
    return drawn.normal_(0.0, std, generator=generator).to(like)


def place_old(
    old: torch.Tensor, new: torch.Tensor, layouts: Sequence[Layout], factor: float | torch.Tensor
) -> None:
    """Writes `factor · old` into the old entries of `new`."""
    unscaled = isinstance(factor, float) and factor == 1.0
    scaled = old if unscaled else old * factor
    block, scattered = _old_block(new, [i for i, lay in enumerate(layouts) if lay.grows], layouts)
    _scatter(block, scaled, scattered, layouts)


def _old_block(
    tensor: torch.Tensor, axes: Sequence[int], layouts: Sequence[Layout]
) -> tuple[torch.Tensor, list[int]]:
    """A view of the old entries along `axes`, and those of the axes whose old entries are no single run."""
    scattered = []
    for i in axes:
        old = layouts[i].old
        if _is_run(old):
            tensor = tensor.narrow(i, int(old[0]), len(old))
        else:
            scattered.append(i)
    return tensor, scattered


def _scatter(
    target: torch.Tensor, source: torch.Tensor, axes: Sequence[int], layouts: Sequence[Layout]
) -> None:
    """Target at the old positions of `axes` = source."""
    if not axes:
        target.copy_(source)
    elif len(axes) == 1:
        _put(target, axes[0], layouts[axes[0]].old, source)
    else:
        front = tuple(range(len(axes)))
        index = torch.meshgrid(*[layouts[i].old.to(target.device) for i in axes], indexing="ij")
        target.movedim(tuple(axes), front)[index] = source.movedim(tuple(axes), front)


def widen_constant(
    old: torch.Tensor, layouts: Sequence[Layout], value: float, factor: float | torch.Tensor = 1.0
) -> torch.Tensor:
    """New entries hold one value: biases, gains, running statistics, optimizer state.

    >>> from growthring.core.axes import Ref, layout
    >>> widen_constant(torch.ones(2), [layout(Ref(0), {0: 2}, {0: 4})], 0.0).tolist()
    [1.0, 1.0, 0.0, 0.0]
    """
    new = old.new_full([len(lay.source) for lay in layouts], value)
    place_old(old, new, layouts, factor)
    return new


def widen_paired(
    old: torch.Tensor,
    layouts: Sequence[Layout],
    read: frozenset[int],
    std: float,
    factor: float | torch.Tensor = 1.0,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Grows a tensor by pairs.

    Args:
        old: the tensor before.
        layouts: one per axis.
        read: the axes that its operator contracts over.
        std: deviation of the new entries.
        factor: c, the factor on the old entries (variance transfer).
        generator: source of the new entries.

    >>> from growthring.core.axes import Ref, layout
    >>> axes = [layout(Ref(0), {0: 1}, {0: 3}), layout(Ref(1, -1), {1: 1}, {1: 3})]
    >>> w = widen_paired(torch.ones(1, 1), axes, frozenset([1]), 1.0)
    >>> bool(w[0, 1] == -w[0, 2]), bool((w[1] == w[2]).all())
    (True, True)
    """
    new = old.new_empty([len(lay.source) for lay in layouts])
    written = [i for i, lay in enumerate(layouts) if lay.grows and i not in read]
    reading = [i for i, lay in enumerate(layouts) if lay.grows and i in read]
    if written:  # V
        if len(written) == 1:
            (i,) = written
            _pairs(new, i, layouts[i], std, generator)
        else:
            new.copy_(normal(new.shape, std, old, generator))
            for i in written:
                new = _mirror(new, i, layouts[i])
    if reading:  # Z, in what the old written units read
        block, scattered = _old_block(new, written, layouts)
        target = block
        for i in scattered:
            target = _take(target, i, layouts[i].old)
        if len(reading) == 1:
            _pairs(target, reading[0], layouts[reading[0]], std, generator)
        else:
            drawn = normal(target.shape, std, old, generator)
            for i in reading:
                drawn = _mirror(drawn, i, layouts[i])
            target.copy_(drawn)
        if scattered:
            _scatter(block, target, scattered, layouts)
    place_old(old, new, layouts, factor)
    return new


def _pairs(
    new: torch.Tensor, axis: int, layout: Layout, std: float, generator: torch.Generator | None
) -> None:
    """Fills the new positions of one axis: drawn values on first halves, their copies × sign on second ones."""
    leaders = layout.new[layout.partner[layout.new] == layout.new]
    followers = layout.new[layout.partner[layout.new] != layout.new]
    shape = list(new.shape)
    shape[axis] = len(leaders)
    drawn = normal(shape, std, new, generator)
    alone = layout.sign[leaders] == 0
    if bool(alone.any()):
        drawn = drawn * _along(layout.sign[leaders], drawn, axis)
    _put(new, axis, leaders, drawn)
    if not len(followers):
        return
    order = torch.searchsorted(leaders, layout.partner[followers])
    copies = _take(drawn, axis, order)
    signs = layout.sign[followers]
    if bool((signs == 1).all()):
        _put(new, axis, followers, copies)
    elif bool((signs == -1).all()):
        _put(new, axis, followers, -copies)
    else:
        _put(new, axis, followers, copies * _along(signs, copies, axis))


def _along(vector: torch.Tensor, like: torch.Tensor, axis: int) -> torch.Tensor:
    return vector.to(like).reshape([-1] + [1] * (like.dim() - 1 - axis))


def _mirror(tensor: torch.Tensor, axis: int, layout: Layout) -> torch.Tensor:
    """Every entry takes its partner's value × sign, along one axis."""
    return _take(tensor, axis, layout.partner) * _along(layout.sign, tensor, axis)


def break_symmetry(
    new: torch.Tensor,
    layouts: Sequence[Layout],
    read: frozenset[int],
    std: float,
    generator: torch.Generator | None = None,
) -> bool:
    """Adds noise to second halves of written pairs, in place; True if the function cannot have changed.

    Where the tensor also reads new pairs, the noise is +N on the first and -N on the second half of
    those, which hold
    equal values: the pair of weights differs and its outputs do not.
    """
    written = [i for i, lay in enumerate(layouts) if lay.grows and i not in read]
    reading = [i for i, lay in enumerate(layouts) if lay.grows and i in read]
    if len(written) != 1 or std == 0.0:
        return True
    (o,) = written
    layout = layouts[o]
    followers = layout.new[layout.partner[layout.new] != layout.new]
    if not len(followers):
        return True
    rows = _take(new, o, followers)
    if len(reading) != 1:
        _put(new, o, followers, rows + normal(rows.shape, std, new, generator))
        return False
    i = reading[0]
    columns = layouts[i]
    rows = rows.clone()
    inner = columns.new
    leaders = columns.partner[inner] == inner
    shape = list(rows.shape)
    shape[i] = int(leaders.sum())
    drawn = normal(shape, std, new, generator)
    order = torch.searchsorted(inner[leaders], columns.partner[inner])
    noise = _take(drawn, i, order) * _along(columns.sign[inner], drawn, i)
    _put(rows, i, inner, _take(rows, i, inner) + noise)
    _put(new, o, followers, rows)
    return True
