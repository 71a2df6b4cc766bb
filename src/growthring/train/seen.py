"""What a model knows of the classes that have come so far, and of those that each stage brought."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from growthring.data.batch import Batch
from growthring.runs import Result
from growthring.runs.forgetting import forgetting
from growthring.runs.log import read_log
from growthring.runs.metrics import FORGETTING, Metric
from growthring.train.measure import OnDevice, apply, predictions


@torch.no_grad()
def right_by_class(
    model: nn.Module,
    batches: Iterable[Batch],
    num_classes: int,
    precision: Callable[[], AbstractContextManager[Any]],
    device: torch.device,
) -> Tensor | None:
    """(right answers, examples) of each class (num_classes, 2), in eval mode.

    None where targets are no classes, one for each example, or outputs no scores of them.

    Args:
        model: gives scores (n, classes).
        batches: of (inputs, labels).
        num_classes: labels beyond are not counted.
        precision: in which it runs.
        device: where it is.
    """
    model.eval()
    counts = torch.zeros(num_classes, 2, dtype=torch.float64)
    for inputs, targets in OnDevice(batches, device):
        with precision():
            outputs = predictions(apply(model, inputs))
        if not _are_scores(outputs, targets):
            return None
        if not len(targets):  # one of several processes may have none
            continue
        is_right = outputs.argmax(1) == targets
        known = (targets >= 0) & (targets < num_classes)
        for column, chosen in enumerate((known & is_right, known)):
            counts[:, column] += torch.bincount(targets[chosen], minlength=num_classes).cpu()
    return counts


def accuracy_of(counts: Tensor, classes: Sequence[int]) -> float | None:
    """Of the examples of some classes; None where there are none.

    >>> accuracy_of(torch.tensor([[1.0, 2.0], [3.0, 3.0]]), [0, 1])
    0.8
    """
    right, examples = counts[list(classes)].sum(0).tolist()
    return right / examples if examples else None


def with_forgetting(result: Result, metrics: Sequence[Metric], log_file: Path) -> Result:
    """The result with what was forgotten, if that is a metric of the run: its log knows all stages."""
    value = forgetting(read_log(log_file, []).stages) if FORGETTING in metrics else None
    if value is None:
        return result
    return replace(result, scores={**result.scores, FORGETTING.key: value})


def _are_scores(outputs: Any, targets: Any) -> bool:
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return False
    is_whole = not (targets.is_floating_point() or targets.is_complex())
    return is_whole and targets.ndim == 1 and outputs.ndim == 2 and len(outputs) == len(targets)
