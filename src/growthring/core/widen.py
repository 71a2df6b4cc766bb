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

from growthring.core.axes import Layout, Places, places


def _put(target: torch.Tensor, axis: int, where: Places, values: torch.Tensor) -> None:
    """Writes values to target[…, where, …]."""
    if where.run is not None:
        target.narrow(axis, *where.run).copy_(values)
    elif len(where):
        target.index_copy_(axis, where.index.to(target.device), values.to(target.dtype))


def _take(tensor: torch.Tensor, axis: int, where: Places) -> torch.Tensor:
    if where.run is not None:
        return tensor.narrow(axis, *where.run)
    return tensor.index_select(axis, where.index.to(tensor.device))


def normal(
    shape: Sequence[int], std: float, like: torch.Tensor, generator: torch.Generator | None
) -> torch.Tensor:
    """N(0, std²) in the type and on the device of `like`, drawn on the generator's device.

    The variance of complex numbers is that of both parts together. The numbers are the same in every
    floating-point type, so that a copy of a weight in another type (master weights, an average in float64)
    gets those that the weight gets.
    """
    device = generator.device if generator is not None else like.device
    dtype = torch.complex64 if like.is_complex() else torch.float32
    drawn = torch.empty(tuple(shape), dtype=dtype, device=device)
    return drawn.normal_(0.0, std, generator=generator).to(like)


def place_old(
    old: torch.Tensor, new: torch.Tensor, layouts: Sequence[Layout], factor: float | torch.Tensor
) -> None:
    """Writes `factor · old` into the old entries of `new`."""
    block, scattered = _old_block(new, [i for i, lay in enumerate(layouts) if lay.grows], layouts)
    if isinstance(factor, float) and factor == 1.0:
        _scatter(block, old, scattered, layouts)
    elif scattered:
        _scatter(block, old * factor, scattered, layouts)
    else:
        torch.mul(old, factor, out=block)


def old_part(tensor: torch.Tensor, layouts: Sequence[Layout]) -> torch.Tensor:
    """The old entries of a tensor that has the new widths: the way back from growing.

    >>> from growthring.core.axes import Ref, layout
    >>> old_part(torch.arange(4), [layout(Ref(0), {0: 2}, {0: 4})])
    tensor([0, 1])
    """
    for i, lay in enumerate(layouts):
        if lay.grows:
            tensor = tensor.index_select(i, lay.old.to(tensor.device))
    return tensor


def _old_block(
    tensor: torch.Tensor, axes: Sequence[int], layouts: Sequence[Layout]
) -> tuple[torch.Tensor, list[int]]:
    """A view of the old entries along `axes`, and those of the axes whose old entries are no single run."""
    scattered = []
    for i in axes:
        run = layouts[i].old_places.run
        if run is not None:
            tensor = tensor.narrow(i, *run)
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
        _put(target, axes[0], layouts[axes[0]].old_places, source)
    else:
        front = tuple(range(len(axes)))
        index = torch.meshgrid(*[layouts[i].old.to(target.device) for i in axes], indexing="ij")
        target.movedim(tuple(axes), front)[index] = source.movedim(tuple(axes), front)


def formatted(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """`new` in the memory format (channels_last) of `old`.

    >>> old = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    >>> formatted(torch.ones(4, 3, 4, 4), old).is_contiguous()
    False
    """
    if old.is_contiguous():
        return new
    for axes, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if old.dim() == axes and old.is_contiguous(memory_format=memory_format):
            return new.contiguous(memory_format=memory_format)
    return new


def widen_constant(
    old: torch.Tensor,
    layouts: Sequence[Layout],
    value: complex,
    factor: float | torch.Tensor = 1.0,
) -> torch.Tensor:
    """New entries hold one value: biases, gains, running statistics, optimizer state.

    >>> from growthring.core.axes import Ref, layout
    >>> widen_constant(torch.ones(2), [layout(Ref(0), {0: 2}, {0: 4})], 0.0).tolist()
    [1.0, 1.0, 0.0, 0.0]
    """
    shape = [len(lay.source) for lay in layouts]
    growing = [i for i, lay in enumerate(layouts) if lay.grows]
    if all(layouts[i].new_places.run is not None for i in growing):
        new = old.new_empty(shape)  # filling only what is new saves a pass over large tables
        for i in growing:
            _take(new, i, layouts[i].new_places).fill_(value)
    else:
        new = old.new_full(shape, value)
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
            target = _take(target, i, layouts[i].old_places)
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
    pairs = layout.pairs
    shape = list(new.shape)
    shape[axis] = len(pairs.leaders)
    drawn = normal(shape, std, new, generator)
    if pairs.alone is not None:
        drawn = drawn * _along(pairs.alone, drawn, axis)
    _put(new, axis, pairs.leaders, drawn)
    if not len(pairs.followers):
        return
    copies = _take(drawn, axis, pairs.order)
    if isinstance(pairs.signs, torch.Tensor):
        copies = copies * _along(pairs.signs, copies, axis)
    elif pairs.signs == -1:
        if pairs.followers.run is not None:
            torch.neg(copies, out=new.narrow(axis, *pairs.followers.run))
            return
        copies = -copies
    _put(new, axis, pairs.followers, copies)


def _along(vector: torch.Tensor, like: torch.Tensor, axis: int) -> torch.Tensor:
    return vector.to(like).reshape([-1] + [1] * (like.dim() - 1 - axis))


def _mirror(tensor: torch.Tensor, axis: int, layout: Layout) -> torch.Tensor:
    """Every entry takes its partner's value × sign, along one axis."""
    return _take(tensor, axis, places(layout.partner)) * _along(layout.sign, tensor, axis)


def break_symmetry(
    new: torch.Tensor,
    layouts: Sequence[Layout],
    read: frozenset[int],
    std: float,
    generator: torch.Generator | None = None,
) -> bool:
    """Adds noise to second halves of written pairs, in place; True if the function cannot have changed.

    Where the tensor also reads new pairs, the noise is +N on the first and -N on the second half of
    those, which hold equal values: the pair of weights differs and its outputs do not.
    """
    written = [i for i, lay in enumerate(layouts) if lay.grows and i not in read]
    reading = [i for i, lay in enumerate(layouts) if lay.grows and i in read]
    if len(written) != 1 or std == 0.0:
        return True
    (o,) = written
    followers = layouts[o].pairs.followers
    if not len(followers):
        return True
    rows = _take(new, o, followers)
    shape = list(rows.shape)
    if len(reading) != 1:
        rows += normal(shape, std, new, generator)
    else:
        i = reading[0]
        columns = layouts[i].pairs
        shape[i] = len(columns.leaders)
        drawn = normal(shape, std, new, generator)
        if columns.alone is not None:
            drawn = drawn * _along(columns.alone, drawn, i)
        copies = _take(drawn, i, columns.order)
        if isinstance(columns.signs, torch.Tensor):
            copies = copies * _along(columns.signs, copies, i)
        elif columns.signs == -1:
            copies = -copies
        _add(rows, i, columns.leaders, drawn)
        _add(rows, i, columns.followers, copies)
    if followers.run is None:
        _put(new, o, followers, rows)
    return len(reading) == 1


def _add(target: torch.Tensor, axis: int, where: Places, values: torch.Tensor) -> None:
    """Adds values to target[…, where, …]."""
    if where.run is not None:
        target.narrow(axis, *where.run).add_(values)
    elif len(where):
        target.index_add_(axis, where.index.to(target.device), values.to(target.dtype))
