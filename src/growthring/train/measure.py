"""Loss and accuracy of a model on batches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from growthring.data.stream import Batch, BatchStream
from growthring.errors import InputError
from growthring.methods.base import Loss


class OnDevice:
    """The batches of a stream where the model is; a user's own stream may leave them on the CPU.

    Args:
        stream: its loops are those of the stream itself.
        device: where to.
    """

    def __init__(self, stream: BatchStream, device: torch.device) -> None:
        self._stream, self._device = stream, device

    def __iter__(self) -> Iterator[Batch]:
        for inputs, targets in self._stream:
            yield inputs.to(self._device), targets.to(self._device)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: BatchStream,
    loss: Loss,
    precision: Callable[[], AbstractContextManager[Any]],
    device: torch.device,
) -> tuple[float, float | None]:
    """Mean loss and accuracy (0 to 1; None where outputs are no classes) in eval mode."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    batches.rewind()
    for inputs, targets in OnDevice(batches, device):
        with precision():
            outputs = model(inputs)
            value = loss(outputs, targets)
        sums += batch_sums(value, outputs, targets)
    loss_sum, right, examples = sums.tolist()
    if not examples:
        raise InputError("the test data gave no batch to evaluate on.")
    return loss_sum / examples, None if math.isnan(right) else right / examples


def arithmetic_of(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context in which a model runs: plain for "float32", autocast for "bfloat16".

    Raises:
        InputError: there is no such precision.
    """
    if precision == "float32":
        return contextlib.nullcontext()
    if precision != "bfloat16":
        raise InputError(f"precision='{precision}' is not 'float32' or 'bfloat16'.")
    return torch.autocast(device.type, torch.bfloat16)


def batch_sums(loss: Tensor, outputs: Any, targets: Tensor) -> Tensor:
    """(loss · examples, right answers or nan, examples) of a batch, in double precision on the CPU.

    >>> batch_sums(torch.tensor(0.5), torch.eye(2), torch.tensor([0, 0])).tolist()
    [1.0, 1.0, 2.0]
    """
    count = len(targets)
    is_class = isinstance(outputs, Tensor) and outputs.dim() == 2 and targets.dim() == 1
    right = torch.tensor(math.nan)
    if is_class and not targets.is_floating_point():
        right = (outputs.detach().argmax(1) == targets).sum().to(torch.float32)
    sums = [
        loss.detach() * count,
        right.to(loss.device),
        torch.tensor(float(count)).to(loss.device),
    ]
    return torch.stack([v.to(torch.float64) for v in sums]).cpu()
