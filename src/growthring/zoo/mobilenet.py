"""MobileNetV1 for CIFAR and ImageNet (paper, section 4).

Each block is a 3x3 depthwise convolution (one filter a channel) and a 1x1 convolution that mixes
the channels.

Reference: Howard et al., MobileNets, 2017.

Axes: N images, C channels, H height, W width, K classes.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .init import init_fan_in_, init_output_, untouched_rng

_FACTORS = (2, 4, 4, 8, 8, 16, 16, 16, 16, 16, 16, 32, 32)
_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)


class SeparableBlock(nn.Module):
    """A depthwise 3x3 and a pointwise 1x1 convolution, each with BatchNorm and ReLU.

    Args:
        in_channels: channels of the input and of the depthwise convolution.
        out_channels: channels of the pointwise convolution.
        stride: stride of the depthwise convolution.

    Example:
        >>> SeparableBlock(4, 6, stride=2)(torch.zeros(2, 4, 8, 8)).shape
        torch.Size([2, 6, 4, 4])
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(
            in_channels,
            in_channels,
            kernel_size=3,
            stride=stride,
            padding=1,
            groups=in_channels,
            bias=False,
        )
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.pointwise = nn.Conv2d(in_channels, out_channels, kernel_size=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, C, H, W) to (N, out_channels, H / stride, W / stride)."""
        x = F.relu(self.bn1(self.depthwise(x)))
        return F.relu(self.bn2(self.pointwise(x)))


class MobileNetV1(nn.Module):
    """A 3x3 stem, separable blocks, global average pooling and a linear classifier.

    Args:
        widths: channels of the stem and of each block.
        strides: strides of the stem and of each block.
        num_classes: number of logits.
        in_channels: channels of the images.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> model = MobileNetV1(widths=(4, 8, 8), strides=(1, 1, 2), num_classes=5)
        >>> model(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        widths: Sequence[int],
        strides: Sequence[int],
        num_classes: int,
        in_channels: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        with untouched_rng(generator):
            channels = widths[0]
            self.conv1 = nn.Conv2d(
                in_channels, channels, kernel_size=3, stride=strides[0], padding=1, bias=False
            )
            self.bn1 = nn.BatchNorm2d(channels)
            self.blocks = nn.Sequential()
            for width, stride in zip(widths[1:], strides[1:], strict=True):
                self.blocks.append(SeparableBlock(channels, width, stride))
                channels = width
            self.fc = nn.Linear(channels, num_classes)
        init_fan_in_(self, generator)
        init_output_(self.fc, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to logits (N, K)."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.blocks(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def mobilenetv1(
    num_classes: int = 10,
    width: int = 32,
    stem_stride: int = 1,
    in_channels: int = 3,
    generator: torch.Generator | None = None,
) -> MobileNetV1:
    """MobileNetV1: 13 separable blocks of 2 width to 32 width channels.

    Args:
        num_classes: number of logits.
        width: channels of the stem; 32 is the full size.
        stem_stride: 1 for CIFAR, where a 32x32 image ends as 2x2; 2 for ImageNet.
        in_channels: channels of the images.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> mobilenetv1(width=4)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    widths = (width, *(factor * width for factor in _FACTORS))
    return MobileNetV1(widths, (stem_stride, *_STRIDES), num_classes, in_channels, generator)
