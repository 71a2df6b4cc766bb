"""Running a user's model without leaving traces on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def fixed_random(model: nn.Module) -> Iterator[None]:
    """One fixed seed inside, the random state as it was afterwards: a model may draw numbers in forward."""
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(d.index or 0 for d in devices)):
        torch.manual_seed(0)
        yield


@contextlib.contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Buffers as they were afterwards, whatever the forward pass does to them."""
    kept = [
        (module, name, buffer, buffer.detach().clone(), buffer._version)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for module, name, buffer, value, version in kept:
            # batch norm updates its statistics without raising their version
            if buffer._version != version or not torch.equal(buffer, value):
                buffer.detach().copy_(value)
            module._buffers[name] = buffer
