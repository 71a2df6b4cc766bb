"""Failing: what is said of a step that cannot be applied, and where the run is then."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from growthring.optim import RingOptimizer
from growthring.train.state import TrainingError


def check_number(loss: Any, kept: str) -> None:
    """Refuses what a loss returned if it is not one number.

    Args:
        loss: what it returned.
        kept: what there is to go back to.
    """
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return
    what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
    raise TrainingError(
        f"loss(outputs, targets) returned {what:.60}; needed is one number as a tensor, such as a mean "
        f"over the batch. Nothing of this step was applied; {kept}."
    )


def no_such_label(error: IndexError, place: str, kept: str) -> TrainingError:
    """Of a cross entropy whose target is no class.

    >>> "Labels count from 0" in str(
    ...     no_such_label(IndexError("Target 10 ..."), "step 3", "all is kept")
    ... )
    True
    """
    return TrainingError(
        f"{place} failed: {error} Labels count from 0 and stay below the number of outputs. Nothing of this step "
        f"was applied; {kept}."
    )


def not_finite(
    value: float,
    inputs: Any,
    place: str,
    optimizer: torch.optim.Optimizer,
    rings: RingOptimizer | None,
    kept: str,
) -> TrainingError:
    """Of a loss that is not finite.

    Args:
        value: of the loss.
        inputs: of the step.
        place: which step it is.
        optimizer: has its learning rate.
        rings: the same, if its rings have rates of their own.
        kept: what there is to go back to.
    """
    where, rest = f"the loss is {value} at {place}", f"Nothing of this step was applied; {kept}."
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        return TrainingError(
            f"{where}, as the inputs of that step are not finite: the data has NaN or infinities. {rest}"
        )
    norms = ""
    if rings is not None:
        first = list(rings.weight_norms().items())[:4]
        shown = {n: [round(v, 3) for v in f.tolist()] for n, f in first}
        norms = f" Ring norms of the first parameters: {shown}."
    rate = optimizer.param_groups[0]["lr"]
    return TrainingError(
        f"{where}, learning rate {rate:.3g}.{norms} {rest} Try a smaller lr, warmup_steps or clip_norm."
    )
