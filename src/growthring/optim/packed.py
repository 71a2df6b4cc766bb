"""State in fewer bits (bitsandbytes, torchao): unpacked into numbers, grown like any other, packed again.

Both keep one scale for each block of neighbouring entries, so a widened tensor has other blocks, and what is
packed again is rounded once more. What a tensor of the new shape is packed into, the optimizer is asked, as in
`firststate`: small ones are kept as plain numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from growthring.core.wording import counted
from growthring.optim.firststate import state_of_new

_LIBRARIES = ("bitsandbytes", "torchao")
_MOST_PER_BLOCK = 1 << 20


def packs(optimizer: Optimizer) -> bool:
    """Whether the optimizer is of a library that keeps state in fewer bits.

    >>> packs(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    False
    """
    return any(kind.__module__.split(".")[0] in _LIBRARIES for kind in type(optimizer).__mro__)


class Packing:
    """Takes one optimizer's packed state apart, and packs what became of it.

    Args:
        optimizer: any; of one that packs nothing, state stays as it is.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer, self._packs = optimizer, packs(optimizer)
        self._count, self._error = 0, 0.0

    def unpacked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """State with the numbers in place of what they were packed into."""
        result = dict(state)
        for key, value in state.items() if self._packs else ():
            if _is_subclass(value):
                result[key] = value.dequantize()
            elif _has_blocks(key, state):
                result[key] = _numbers(value, *(state[name] for name in _tables(key)))
                for name in _tables(key):
                    del result[name]
        return result

    def packed(
        self,
        group: dict[str, Any],
        parameter: Tensor,
        state: Mapping[str, Any],
        old: tuple[Mapping[str, Any], tuple[int, ...]],
    ) -> dict[str, Any]:
        """Grown state, packed as the optimizer packs that of a new parameter of this shape.

        Args:
            group: of the parameter.
            parameter: after the growth.
            state: unpacked.
            old: the state as it was before, and the parameter's shape then.

        Raises:
            CannotTell: the optimizer does not step a parameter of this shape.
        """
        fresh = state_of_new(self._optimizer, group, parameter)
        result = dict(state)
        for key, value in state.items():
            like = fresh.get(key)
            if not isinstance(value, Tensor) or not isinstance(like, Tensor):
                continue
            if value.shape != parameter.shape or not _is_packed(key, fresh):
                result[key] = value.to(like.dtype) if _is_packed(key, old[0]) else value
            elif _is_packed(key, old[0]) or not self._kept_plain(key, group, parameter, old[1]):
                result |= self._pack(key, value, like, fresh)
        return result

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The parameter groups in which there is something to pack."""
        return self._optimizer.param_groups if self._packs else []

    @property
    def notes(self) -> list[str]:
        """For the growth's report: how much of the kept state the packing changed."""
        if not self._count:
            return []
        name = type(self._optimizer).__name__
        return [
            f"{name}: packed state of {counted(self._count, 'tensor')} was packed again, in other blocks: rounded "
            f"by {self._error:.1%} of its norm at most"
        ]

    def _kept_plain(
        self, key: str, group: dict[str, Any], parameter: Tensor, shape: tuple[int, ...]
    ) -> bool:
        """Whether the parameter's state is plain though its size would have it packed: the user's choice."""
        before = state_of_new(self._optimizer, group, parameter.new_zeros(shape))
        return _is_packed(key, before)

    def _pack(
        self, key: str, value: Tensor, like: Tensor, fresh: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        if _is_subclass(like):
            result, again = {key: like.copy_(value)}, like.dequantize()
        else:
            codes, book, scales = like, *(fresh[name] for name in _tables(key))
            block = _block(codes, scales)
            flat = value.reshape(-1).to(scales.dtype)
            whole = torch.nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
            scales = whole.abs().amax(dim=1)
            shares = whole / scales.clamp_min(torch.finfo(scales.dtype).tiny)[:, None]
            nearest = torch.bucketize(shares, (book[1:] + book[:-1]) / 2)
            codes = nearest.flatten()[: len(flat)].view(value.shape).to(like.dtype)
            result = {key: codes, **dict(zip(_tables(key), (book, scales), strict=True))}
            again = _numbers(codes, book, scales)
        norm = float(value.norm())
        self._count += 1
        self._error = max(self._error, float((again - value).norm()) / norm if norm else 0.0)
        return result


def _is_subclass(value: Any) -> bool:
    """Whether it is a tensor of torchao's, which knows how to unpack itself."""
    return isinstance(value, Tensor) and type(value).__module__.startswith("torchao.")


def _tables(key: str) -> Iterator[str]:
    """Where bitsandbytes keeps the code book and the scales of 'state1'."""
    number = key.removeprefix("state")
    yield from (f"qmap{number}", f"absmax{number}")


def _has_blocks(key: str, state: Mapping[str, Any]) -> bool:
    """Whether it is state of bitsandbytes in bytes, with one scale for each block of its memory."""
    if not key.startswith("state") or not all(name in state for name in _tables(key)):
        return False
    codes, (book, scales) = state[key], (state[name] for name in _tables(key))
    return bool(
        codes.dtype == torch.uint8 and codes.is_contiguous() and scales.dim() == book.dim() == 1
    )


def _is_packed(key: str, state: Mapping[str, Any]) -> bool:
    return _is_subclass(state.get(key)) or (key in state and _has_blocks(key, state))


def _block(codes: Tensor, scales: Tensor) -> int:
    """Entries of a block: the power of 2 that gives so many blocks."""
    size = 1
    while -(-codes.numel() // size) > len(scales) and size < _MOST_PER_BLOCK:
        size *= 2
    return size


def _numbers(codes: Tensor, book: Tensor, scales: Tensor) -> Tensor:
    each = scales.repeat_interleave(_block(codes, scales))[: codes.numel()]
    return book[codes.flatten().long()].mul_(each).view(codes.shape)
