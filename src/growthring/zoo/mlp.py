"""The fully connected network of eight hidden layers (paper, appendix "Simple Example").

Axes: N images, D pixels of an image, K classes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .init import init_fan_in_, init_output_, untouched_rng


class MLP(nn.Module):
    """Linear layers with a ReLU after each but the last.

    Args:
        widths: units of each hidden layer.
        num_classes: number of logits.
        in_features: numbers in one flattened input.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> MLP(widths=(6, 7), num_classes=5, in_features=12)(torch.zeros(2, 3, 2, 2)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        widths: Sequence[int],
        num_classes: int,
        in_features: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        with untouched_rng(generator):
            self.hidden = nn.Sequential()
            for width in widths:
                self.hidden.append(nn.Linear(in_features, width))
                self.hidden.append(nn.ReLU())
                in_features = width
            self.classifier = nn.Linear(in_features, num_classes)
        init_fan_in_(self, generator)
        init_output_(self.classifier, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Maps inputs (N, D), or images that flatten to it, to logits (N, K)."""
        return self.classifier(self.hidden(x.flatten(1)))


def mlp8(
    num_classes: int = 10,
    width: int = 500,
    in_features: int = 3072,
    generator: torch.Generator | None = None,
) -> MLP:
    """The paper's MLP: eight hidden layers of equal width on flattened CIFAR images.

    Args:
        num_classes: number of logits.
        width: units of each hidden layer; 500 is the full size.
        in_features: numbers in one flattened input.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> mlp8(width=6)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    return MLP((width,) * 8, num_classes, in_features, generator)
