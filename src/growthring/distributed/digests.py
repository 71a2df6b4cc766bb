"""Digests of tensors: whether two processes hold the same bits, in one number each."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_ROW = 1 << 16  # words of 8 bytes that a cache holds twice
_ODD = 0x2545F4914F6CDD1D


def digest_of(tensor: Tensor) -> Tensor:
    """A whole number (int64, on the tensor's device) that depends on every bit and on where it stands.

    Σ_i w_i · bits_i modulo 2^64, with odd w drawn once and for all. `torch.hash_tensor` xors all entries, wherever
    they stand: of a growth in pairs, Z beside −Z and V twice, it would see nothing but signs.

    >>> pair = torch.tensor([1.0, -1.0])
    >>> (
    ...     int(digest_of(pair)) == int(digest_of(-pair)),
    ...     int(digest_of(pair)) == int(digest_of(pair.clone())),
    ... )
    (False, True)
    """
    with torch.no_grad():
        dense: Any = tensor.detach()
        if is_traceable_wrapper_subclass(dense):  # numbers of few bits and their scales, say
            total = torch.zeros((), dtype=torch.int64, device=tensor.device)
            for name in dense.__tensor_flatten__()[0]:
                total = total * _ODD + digest_of(getattr(dense, name))
            return total
        if dense.layout is not torch.strided:
            dense = dense.to_dense()
        if dense.is_complex():
            dense = torch.view_as_real(dense.resolve_conj())
        stored = dense.resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        if stored.storage_offset() % 8:
            stored = stored.clone()
        whole = len(stored) // 8 * 8
        words, total, level = stored[:whole].view(torch.int64), _dot(stored[whole:].long(), 0), 1
        while len(words) > _ROW:
            rest = len(words) % _ROW
            total = total * _ODD + _dot(words[len(words) - rest :], level)
            words = _dot(words[: len(words) - rest].view(-1, _ROW), level)
            level += 1
        return total * _ODD + _dot(words, level)


def _dot(words: Tensor, level: int) -> Tensor:
    """Σ_i w_i · words_i over the last axis."""
    weights = _weights(level, words.device)[: words.shape[-1]]
    if words.device.type == "cpu":
        return words @ weights
    return (words * weights).sum(-1)  # elsewhere torch multiplies no matrices of whole numbers


@functools.cache
def _weights(level: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(level)
    drawn = torch.randint(-(2**63), 2**63 - 1, (_ROW,), generator=generator, device="cpu")
    return (drawn | 1).to(device)
