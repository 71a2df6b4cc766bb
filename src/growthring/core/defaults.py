"""Default device and type of numbers for a while, so that what is made of them does not depend on the caller's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def default_settings(device: torch.device, dtype: torch.dtype | None = None) -> Iterator[None]:
    """Makes tensors on a device, and in a type, where nothing is said.

    Args:
        device: of new tensors.
        dtype: of new floating-point tensors; None leaves it.

    >>> with default_settings(torch.device("meta"), torch.float64):
    ...     torch.ones(1).device.type, torch.ones(1).dtype
    ('meta', torch.float64)
    """
    before = torch.get_default_dtype()
    try:
        if dtype is not None:
            torch.set_default_dtype(dtype)
        # a device as a context is seen by every call of torch: only where it makes a difference
        is_same = torch.get_default_device() == device
        with contextlib.nullcontext() if is_same else device:
            yield
    finally:
        if dtype is not None:
            torch.set_default_dtype(before)
