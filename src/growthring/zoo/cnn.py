"""The simple network of four convolutions (paper, section 4.4, on variance transfer).

Axes: N images, C channels, H height, W width, K classes.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .init import init_fan_in_, init_output_, untouched_rng


class CNN(nn.Module):
    """3x3 convolutions, each with BatchNorm, ReLU and max-pooling, and one linear layer.

    Args:
        widths: channels of each convolution.
        pools: size and stride of the max-pooling after each convolution.
        num_classes: number of logits.
        image_size: height and width of the images.
        in_channels: channels of the images.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> model = CNN(widths=(4, 6), pools=(2, 2), num_classes=5, image_size=8)
        >>> model(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        widths: Sequence[int],
        pools: Sequence[int],
        num_classes: int,
        image_size: int = 32,
        in_channels: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        # Flooring once equals flooring at every pooling.
        size = image_size // math.prod(pools)
        if size < 1:
            raise ValueError(
                f"images of {image_size}x{image_size} pixels vanish in poolings of {tuple(pools)}: "
                f"need at least {math.prod(pools)} pixels a side, or pass smaller pools."
            )
        with untouched_rng(generator):
            self.features = nn.Sequential()
            for width, pool in zip(widths, pools, strict=True):
                self.features.append(
                    nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False)
                )
                self.features.append(nn.BatchNorm2d(width))
                self.features.append(nn.ReLU())
                self.features.append(nn.MaxPool2d(pool))
                in_channels = width
            self.classifier = nn.Linear(in_channels * size * size, num_classes)
        init_fan_in_(self, generator)
        init_output_(self.classifier, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to logits (N, K)."""
        return self.classifier(self.features(x).flatten(1))


def cnn4(
    num_classes: int = 10,
    width: int = 64,
    in_channels: int = 3,
    image_size: int = 32,
    pools: Sequence[int] = (4, 2, 2, 2),
    generator: torch.Generator | None = None,
) -> CNN:
    """The paper's CNN: four convolutions of width, 2 width, 4 width and 8 width channels.

    Args:
        num_classes: number of logits.
        width: channels of the first convolution; 64 is the full size.
        in_channels: channels of the images.
        image_size: height and width of the images.
        pools: size and stride of the four max-poolings. Images below 32 pixels need smaller ones
            than the paper's.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> cnn4(width=4)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
        >>> cnn4(width=4, image_size=16, pools=(2, 2, 2, 2))(torch.zeros(2, 3, 16, 16)).shape
        torch.Size([2, 10])
    """
    widths = (width, 2 * width, 4 * width, 8 * width)
    return CNN(widths, pools, num_classes, image_size, in_channels, generator)
