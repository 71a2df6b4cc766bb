"""Stand-ins for operators that torch cannot run on fake tensors: packed sequences, grouped products.

A packed sequence has a shape that depends on the lengths in it. What happens to widths does not, so it is
traced as if every sequence had the full length. torch's grouped product knows shapes for bfloat16 only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_LIBRARY = torch.library.Library("growthring", "FRAGMENT")
_LIBRARY.define("grouped_mm(Tensor a, Tensor b, Tensor? offs=None, Tensor? bias=None) -> Tensor")
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


@torch.library.register_fake("growthring::grouped_mm", lib=_LIBRARY)
def _grouped_shape(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    groups: tuple[int, ...] = ()
    if a.dim() == b.dim():
        groups = tuple(a.shape[:-2]) if a.dim() == 3 or offs is None else tuple(offs.shape)
    return a.new_empty((*groups, a.shape[-2], b.shape[-1]))


def grouped_flops(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Floating-point operations of a grouped product, from the shapes of its factors.

    >>> grouped_flops((10, 8), (4, 8, 12))
    1920
    """
    first = a[1:] if len(a) == 3 and len(b) == 2 else a
    return 2 * int(torch.Size(first).numel()) * int(b[-1])


GROUPED_FLOPS: Mapping[Any, Callable[..., int]] = {
    torch.ops.aten._grouped_mm: grouped_flops,
    torch.ops.growthring.grouped_mm: grouped_flops,
}


class StandIns(TorchFunctionMode):
    """While it is active, packed sequences are of full length and grouped products take any floating-point type."""

    def __init__(self) -> None:
        super().__init__()
        # by the id of a packed sequence's batch_sizes: that tensor (which keeps its id), steps, batch
        self._packed: dict[int, tuple[torch.Tensor, int, int]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch._grouped_mm and args[0].dtype != torch.bfloat16:
            kwargs = {k: v for k, v in kwargs.items() if k != "out_dtype"}
            return torch.ops.growthring.grouped_mm(*args, **kwargs)
        if func is torch._pack_padded_sequence:
            return self._pack(*args, **kwargs)
        if func is torch._pad_packed_sequence:
            return self._pad(*args, **kwargs)
        if func in _RECURRENT and id(args[1]) in self._packed:
            return self._recurrent(func, *args, **kwargs)
        if func is torch.Tensor.__getitem__ and id(args[0]) in self._packed and args[1] == 0:
            return self._packed[id(args[0])][2]  # the largest batch, as a number
        return func(*args, **kwargs)

    def _pack(
        self, sequence: torch.Tensor, lengths: torch.Tensor, batch_first: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        steps_first = sequence.transpose(0, 1) if batch_first else sequence
        steps, batch = steps_first.shape[:2]
        sizes = torch.full((steps,), batch, dtype=torch.int64)
        self._packed[id(sizes)] = (sizes, steps, batch)
        return steps_first.reshape(steps * batch, *steps_first.shape[2:]), sizes

    def _unpacked(self, data: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        _, steps, batch = self._packed[id(sizes)]
        return data.reshape(steps, batch, *data.shape[1:])

    def _recurrent(
        self,
        func: Any,
        data: torch.Tensor,
        sizes: torch.Tensor,
        state: Any,
        weights: Any,
        *others: Any,
    ) -> tuple[torch.Tensor, ...]:
        result, *states = func(self._unpacked(data, sizes), state, weights, *others, False)
        return (result.reshape(data.shape[0], result.shape[-1]), *states)

    def _pad(
        self,
        data: torch.Tensor,
        sizes: torch.Tensor,
        batch_first: bool,
        padding: float,
        total_length: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        padded = self._unpacked(data, sizes)
        steps, batch = padded.shape[:2]
        missing = total_length - steps
        if missing > 0:
            around = [0, 0] * (padded.dim() - 1) + [0, missing]
            padded = nn.functional.pad(padded, around, value=padding)
        lengths = torch.full((batch,), steps, dtype=torch.int64)
        return padded.transpose(0, 1) if batch_first else padded, lengths


def may_pack(model: nn.Module) -> bool:
    """Whether the model has layers that take packed sequences."""
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


def would_help(error: Exception) -> bool:
    """Whether what torch.export failed with has a stand-in."""
    return "inputs of BF16 type" in str(error)
