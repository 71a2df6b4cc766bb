"""Digests of tensors: whether two processes hold the same bits, in one number each."""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PORTION = 1 << 20
_ODD = 0x2545F4914F6CDD1D


def digest_of(tensor: Tensor) -> Tensor:
    """A whole number (int64, on the tensor's device) that depends on every bit and on where it stands.

    Σ_i bits_i · (2i + 1) · K modulo 2^64. `torch.hash_tensor` xors all entries, wherever they stand: of a growth in
    pairs, Z beside −Z and V twice, it would see nothing but signs.

    >>> pair = torch.tensor([1.0, -1.0])
    >>> (
    ...     int(digest_of(pair)) == int(digest_of(-pair)),
    ...     int(digest_of(pair)) == int(digest_of(pair.clone())),
    ... )
    (False, True)
    """
    with torch.no_grad():
        dense = tensor.detach()
        if dense.layout is not torch.strided:
            dense = dense.to_dense()
        if dense.is_complex():
            dense = torch.view_as_real(dense.resolve_conj())
        flat = dense.resolve_neg().contiguous().reshape(-1)
        bits = flat.view(_INTEGERS[flat.element_size()])
        total = torch.zeros((), dtype=torch.int64, device=flat.device)
        for start in range(0, len(bits), _PORTION):
            portion = bits[start : start + _PORTION].to(torch.int64)
            places = torch.arange(start, start + len(portion), device=flat.device)
            total += (portion * (2 * places + 1)).sum()
        return total * _ODD
