"""TokenTask: what tasks share whose models foretell one token after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from growthring.methods.base import Loss
from growthring.runs.metrics import PERPLEXITY
from growthring.train.measure import predictions
from growthring.train.tasks.base import Task


class TokenTask(Task):
    """A task judged by the perplexity of a token."""

    def loss(self, label_smoothing: float) -> Loss:
        """The cross entropy of each next token; padding does not count."""
        return TokenCrossEntropy(label_smoothing)

    def test_loss(self, label_smoothing: float) -> Loss:
        """Without smoothing, so that it is the perplexity's logarithm."""
        return TokenCrossEntropy()

    def scores(self, test_loss: float) -> Mapping[str, float]:
        """The perplexity of a token."""
        return {PERPLEXITY.key: perplexity(test_loss)}


def perplexity(loss: float) -> float:
    """Of a mean cross entropy.

    >>> perplexity(0.0), perplexity(1e9)
    (1.0, inf)
    """
    return math.exp(loss) if loss < 700 else math.inf


class TokenCrossEntropy(nn.Module):
    """The mean cross entropy of logits (b, t, v) for targets (b, t); targets of -100, padding, do not count.

    >>> import torch
    >>> TokenCrossEntropy()(torch.zeros(1, 2, 4), torch.tensor([[1, -100]])).exp().round().item()
    4.0
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        """A mean over all places; outputs are the logits, or have them as `.logits`."""
        logits = predictions(outputs)
        return nn.functional.cross_entropy(
            logits.flatten(0, -2), targets.flatten(), label_smoothing=self.label_smoothing
        )
