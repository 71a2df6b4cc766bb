"""VGG with BatchNorm for CIFAR (paper, section 4): VGG-11 for CIFAR-10, VGG-19 for CIFAR-100.

The classifier is one linear layer, and the convolutions keep their biases, as in the usual CIFAR
ports.

Reference: Simonyan and Zisserman, Very Deep Convolutional Networks, ICLR 2015.

Axes: N images, C channels, H height, W width, K classes.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .init import init_fan_in_, init_output_, untouched_rng


class VGG(nn.Module):
    """Blocks of 3x3 convolutions, each block ending in a 2x2 max-pooling, and a linear classifier.

    Args:
        widths: for each block, the channels of its convolutions. Images measure at least 2^blocks
            pixels a side.
        num_classes: number of logits.
        in_channels: channels of the images.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> model = VGG(widths=[[4], [6, 6]], num_classes=5)
        >>> model(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        widths: Sequence[Sequence[int]],
        num_classes: int,
        in_channels: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        with untouched_rng(generator):
            self.features = nn.Sequential()
            for block in widths:
                for width in block:
                    self.features.append(nn.Conv2d(in_channels, width, kernel_size=3, padding=1))
                    self.features.append(nn.BatchNorm2d(width))
                    self.features.append(nn.ReLU())
                    in_channels = width
                self.features.append(nn.MaxPool2d(kernel_size=2))
            self.classifier = nn.Linear(in_channels, num_classes)
        init_fan_in_(self, generator)
        init_output_(self.classifier, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to logits (N, K)."""
        x = F.adaptive_avg_pool2d(self.features(x), 1)  # does nothing to a CIFAR image: 1x1 already
        return self.classifier(x.flatten(1))


def _widths(width: int, convs_per_block: Sequence[int]) -> list[list[int]]:
    factors = (1, 2, 4, 8, 8)
    return [[f * width] * n for f, n in zip(factors, convs_per_block, strict=True)]


def vgg11(
    num_classes: int = 10,
    width: int = 64,
    in_channels: int = 3,
    generator: torch.Generator | None = None,
) -> VGG:
    """VGG-11 for CIFAR: 8 convolutions of width to 8 width channels, and a linear classifier.

    Args:
        num_classes: number of logits.
        width: channels of the first convolution; 64 is the full size.
        in_channels: channels of the images, which measure at least 32x32.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> vgg11(width=4)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    return VGG(_widths(width, (1, 1, 2, 2, 2)), num_classes, in_channels, generator)


def vgg19(
    num_classes: int = 100,
    width: int = 64,
    in_channels: int = 3,
    generator: torch.Generator | None = None,
) -> VGG:
    """VGG-19 for CIFAR: 16 convolutions of width to 8 width channels, and a linear classifier.

    Args:
        num_classes: number of logits.
        width: channels of the first convolution; 64 is the full size.
        in_channels: channels of the images, which measure at least 32x32.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> vgg19(width=4)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 100])
    """
    return VGG(_widths(width, (2, 2, 4, 4, 4)), num_classes, in_channels, generator)
