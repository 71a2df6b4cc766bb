"""Log-probabilities of next tokens, and the best of them in an order that does not depend on chance."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from growthring.errors import InputError


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returns: a tensor, or an object that has them as `.logits`.

    Raises:
        InputError: there are none.

    Example:
        >>> from types import SimpleNamespace
        >>> logits_of(SimpleNamespace(logits=torch.zeros(1, 2, 3))).shape
        torch.Size([1, 2, 3])
    """
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.dim() != 3:
        found = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits)
        raise InputError(
            f"the model returned {found} where decoding needs logits (batch, positions, vocabulary): return "
            "such a tensor, or an object that has it as `.logits`."
        )
    return logits


def log_probabilities(logits: Tensor, banned: Collection[int] = ()) -> Tensor:
    """Log-probabilities (N, V) of logits (N, V), -inf at tokens that must not come.

    The others are as the model has them, so what is banned takes its share of 1.

    Example:
        >>> log_probabilities(torch.zeros(1, 4), banned=[0]).exp()
        tensor([[0.0000, 0.2500, 0.2500, 0.2500]])
    """
    if logits.dtype in (torch.float16, torch.bfloat16):  # too coarse for sums over a sentence
        logits = logits.float()
    # Rounding must not make a probability of more than 1: a search relies on sums that only fall.
    found = torch.log_softmax(logits, dim=-1).clamp_(max=0.0)
    if banned:
        found[:, sorted(banned)] = -torch.inf
    return found


def best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest scores of each row (B, n), the largest first; of equal ones the first first.

    `torch.topk` alone leaves open which of equal scores it takes, and in which order.

    Returns:
        Their values and places, (B, count) each.

    Example:
        >>> best(torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0]]), 3)
        (tensor([[3., 3., 2.]]), tensor([[1, 3, 2]]))
    """
    values, places = scores.topk(count, dim=1)
    edge = values[:, -1:]
    tied = ((scores >= edge) & (edge > -torch.inf)).sum(1) > count  # no one takes -inf
    if tied.any():  # at the edge, where topk may take the wrong ones
        order = scores[tied].sort(dim=1, descending=True, stable=True).indices
        places[tied] = order[:, :count]
    places = places.sort(dim=1).values
    values, order = scores.gather(1, places).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)
