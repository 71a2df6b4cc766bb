"""Loss and accuracy of a model on batches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from growthring.data.batch import Batch, Stream, examples_in, moved
from growthring.errors import InputError
from growthring.graph.trace import split_inputs
from growthring.methods.base import Loss

IGNORED = -100  # a target that torch's cross entropy passes over
_WITH_NUMPY = (torch.float32, torch.float64)


class OnDevice:
    """Batches where the model is; a user's own data may leave them on the CPU.

    Args:
        batches: the loops are theirs.
        device: where to.
    """

    def __init__(self, batches: Iterable[Batch], device: torch.device) -> None:
        self._batches, self._device = batches, device

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            yield moved(batch, self._device)


def counts_nothing(batch: Batch) -> bool:
    """Whether there is no example in it, or only such as do not count: padding.

    >>> (
    ...     counts_nothing((torch.ones(0, 3), torch.ones(0))),
    ...     counts_nothing((torch.ones(1, 3), torch.tensor([-100]))),
    ... )
    (True, True)
    """
    targets = batch[1]
    are_whole = isinstance(targets, Tensor) and not targets.is_floating_point()
    return examples_in(batch) == 0 or (are_whole and bool((targets == IGNORED).all()))


def apply(model: Callable[..., Any], inputs: Any) -> Any:
    """Calls a model with the inputs of a batch: a tensor, positional arguments, or keywords.

    >>> apply(torch.add, (torch.ones(1), torch.ones(1)))
    tensor([2.])
    """
    args, kwargs = split_inputs(inputs)
    return model(*args, **kwargs)


def predictions(outputs: Any) -> Any:
    """What a model says of its inputs: its outputs, or their `.logits`, as models of transformers return them.

    >>> from types import SimpleNamespace
    >>> predictions(SimpleNamespace(logits=torch.ones(1), loss=None)), predictions(torch.ones(1))
    (tensor([1.]), tensor([1.]))
    """
    logits = getattr(outputs, "logits", None)
    return logits if isinstance(logits, Tensor) else outputs


def evaluate(
    model: nn.Module,
    batches: Stream,
    loss: Loss,
    precision: Callable[[], AbstractContextManager[Any]],
    device: torch.device,
) -> tuple[float, float | None]:
    """Mean loss and accuracy (0 to 1; None where outputs are no classes) in eval mode.

    The data comes in the same order each time, and a loader that draws random numbers takes none from training.
    """
    return means(sums_of(model, batches.fork(0), loss, precision, device))


@torch.no_grad()
def sums_of(
    model: nn.Module,
    batches: Iterable[Batch],
    loss: Loss,
    precision: Callable[[], AbstractContextManager[Any]],
    device: torch.device,
) -> Tensor:
    """The sums of `batch_sums` over batches, in eval mode."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    for inputs, targets in OnDevice(batches, device):
        if counts_nothing((inputs, targets)):  # the mean over nothing is no number
            continue
        with precision():
            outputs = apply(model, inputs)
            value = loss(outputs, targets)
        sums += batch_sums(value, outputs, (inputs, targets)).cpu()
    return sums


def means(sums: Tensor) -> tuple[float, float | None]:
    """Mean loss and accuracy of what `sums_of` gave."""
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


def batch_sums(loss: Tensor, outputs: Any, batch: Batch) -> Tensor:
    """(loss · n, right answers or nan, n) of a batch, in double precision, on the loss's device.

    n is what the loss is a mean of: places with a class, or where targets are no classes, examples.

    >>> batch_sums(torch.tensor(0.5), torch.eye(2), (torch.eye(2), torch.tensor([0, 0]))).tolist()
    [1.0, 1.0, 2.0]
    """
    count, right = _counts(outputs, batch)
    if loss.device.type == "cpu":
        loss_sum = float(loss.detach()) * float(count)
        return torch.tensor([loss_sum, float(right), float(count)], dtype=torch.float64)
    values = [torch.as_tensor(v, dtype=torch.float64, device=loss.device) for v in (right, count)]
    return torch.stack([loss.detach().to(torch.float64) * values[1], *values])


def _counts(outputs: Any, batch: Batch) -> tuple[Any, Any]:
    """What a mean loss is a mean of, and right answers or nan; as numbers where they need not be waited for."""
    outputs, targets = predictions(outputs), batch[1]
    if not _are_classes(outputs, targets):
        return examples_in(batch), math.nan
    # A mean cross entropy is one over places that are not padding, which batches have different numbers of.
    if type(outputs) is Tensor and outputs.device.type == "cpu" and outputs.dtype in _WITH_NUMPY:
        # numpy finds the largest in a seventh of torch's time, which of a large vocabulary is a part of a step
        found, known = outputs.numpy(force=True).argmax(-1), targets.numpy(force=True)
        return np.count_nonzero(known != IGNORED), np.count_nonzero(found == known)
    return (targets != IGNORED).sum(), (outputs.detach().argmax(-1) == targets).sum()


def _are_classes(outputs: Any, targets: Any) -> bool:
    """Whether there is a number for each of several classes and a whole number as target, of examples or places.

    Outputs (n, k, k) for targets (n, k) could have their classes on either axis, and are not counted.
    """
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return False
    is_number = targets.is_floating_point() or targets.is_complex()
    is_whole = targets.dim() in (1, 2) and not is_number and targets.dtype is not torch.bool
    is_clear = outputs.dim() == 2 or (outputs.dim() == 3 and outputs.shape[1] != outputs.shape[2])
    return is_whole and is_clear and outputs.shape[:-1] == targets.shape and outputs.shape[-1] > 1
