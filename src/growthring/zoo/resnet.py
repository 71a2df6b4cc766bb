"""Residual networks of the paper's image experiments (section 4): ResNet-20, ResNet-18, ResNet-50.

ResNet-8, one block a stage, serves experiments that must run on a CPU. Where a block changes the
resolution or the number of channels, its shortcut is a 1x1 convolution with BatchNorm.

Reference: He et al., Deep Residual Learning for Image Recognition, CVPR 2016.

Axes: N images, C channels, H height, W width, K classes.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .init import init_fan_in_, init_output_, untouched_rng


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False),
        nn.BatchNorm2d(out_channels),
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut.

    Args:
        in_channels: channels of the block's input.
        width: channels of both convolutions.
        stride: stride of the first convolution and of the shortcut.

    Example:
        >>> BasicBlock(4, 6, stride=2)(torch.zeros(2, 4, 8, 8)).shape
        torch.Size([2, 6, 4, 4])
    """

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(
            in_channels, width, kernel_size=3, stride=stride, padding=1, bias=False
        )
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, C, H, W) to (N, width, H / stride, W / stride)."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution beside a shortcut; the last has four times the channels.

    Args:
        in_channels: channels of the block's input.
        width: channels of the first two convolutions.
        stride: stride of the 3x3 convolution and of the shortcut.

    Example:
        >>> Bottleneck(4, 2, stride=2)(torch.zeros(2, 4, 8, 8)).shape
        torch.Size([2, 8, 4, 4])
    """

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int = 1) -> None:
        super().__init__()
        out_channels = self.expansion * width
        self.conv1 = nn.Conv2d(in_channels, width, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.shortcut = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, C, H, W) to (N, 4 * width, H / stride, W / stride)."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, stages of residual blocks, global average pooling and a linear classifier.

    Args:
        block: type of the residual blocks.
        depths: number of blocks of each stage.
        widths: `width` of the blocks of each stage; the stem has that of the first.
        num_classes: number of logits.
        in_channels: channels of the images.
        imagenet_stem: a 7x7 convolution and a max-pooling, each of stride 2, instead of one 3x3
            convolution.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> model = ResNet(BasicBlock, depths=(1, 2), widths=(4, 6), num_classes=5)
        >>> model(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: Sequence[int],
        widths: Sequence[int],
        num_classes: int,
        in_channels: int = 3,
        imagenet_stem: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        with untouched_rng(generator):
            channels = widths[0]
            if imagenet_stem:
                self.conv1 = nn.Conv2d(
                    in_channels, channels, kernel_size=7, stride=2, padding=3, bias=False
                )
                self.pool1: nn.Module = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
            else:
                self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=3, padding=1, bias=False)
                self.pool1 = nn.Identity()
            self.bn1 = nn.BatchNorm2d(channels)
            self.stages = nn.Sequential()
            for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
                blocks = nn.Sequential()
                for index in range(depth):
                    stride = 2 if stage > 0 and index == 0 else 1
                    blocks.append(block(channels, width, stride))
                    channels = block.expansion * width
                self.stages.append(blocks)
            self.fc = nn.Linear(channels, num_classes)
        init_fan_in_(self, generator)
        init_output_(self.fc, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to logits (N, K)."""
        x = self.pool1(F.relu(self.bn1(self.conv1(x))))
        x = self.stages(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def resnet8(
    num_classes: int = 10,
    width: int = 16,
    in_channels: int = 3,
    generator: torch.Generator | None = None,
) -> ResNet:
    """ResNet-8 for small images: three stages of one basic block, of width, 2 width and 4 width.

    Args:
        num_classes: number of logits.
        width: channels of the stem and the first stage; 16 is the full size.
        in_channels: channels of the images.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> resnet8(width=4)(torch.zeros(2, 3, 16, 16)).shape
        torch.Size([2, 10])
    """
    widths = (width, 2 * width, 4 * width)
    return ResNet(BasicBlock, (1, 1, 1), widths, num_classes, in_channels, generator=generator)


def resnet20(
    num_classes: int = 10,
    width: int = 16,
    in_channels: int = 3,
    generator: torch.Generator | None = None,
) -> ResNet:
    """ResNet-20 for CIFAR: three stages of three basic blocks, of width, 2 width and 4 width.

    Args:
        num_classes: number of logits.
        width: channels of the stem and the first stage; 16 is the full size.
        in_channels: channels of the images.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> model = resnet20(width=4, generator=torch.Generator().manual_seed(0))
        >>> model(torch.zeros(2, 3, 16, 16)).shape
        torch.Size([2, 10])
    """
    widths = (width, 2 * width, 4 * width)
    return ResNet(BasicBlock, (3, 3, 3), widths, num_classes, in_channels, generator=generator)


def resnet18(
    num_classes: int = 100,
    width: int = 64,
    in_channels: int = 3,
    generator: torch.Generator | None = None,
) -> ResNet:
    """ResNet-18 for CIFAR: four stages of two basic blocks behind a 3x3 stem of stride 1.

    Args:
        num_classes: number of logits.
        width: channels of the stem and the first stage; 64 is the full size.
        in_channels: channels of the images.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> resnet18(width=4)(torch.zeros(2, 3, 16, 16)).shape
        torch.Size([2, 100])
    """
    widths = (width, 2 * width, 4 * width, 8 * width)
    return ResNet(BasicBlock, (2, 2, 2, 2), widths, num_classes, in_channels, generator=generator)


def resnet50(
    num_classes: int = 1000,
    width: int = 64,
    in_channels: int = 3,
    generator: torch.Generator | None = None,
) -> ResNet:
    """ResNet-50 for ImageNet: stages of 3, 4, 6 and 3 bottlenecks, stride in the 3x3 convolution.

    Args:
        num_classes: number of logits.
        width: channels of the stem and inside the first stage; 64 is the full size.
        in_channels: channels of the images.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> resnet50(width=4, num_classes=7)(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 7])
    """
    widths = (width, 2 * width, 4 * width, 8 * width)
    return ResNet(
        Bottleneck,
        (3, 4, 6, 3),
        widths,
        num_classes,
        in_channels,
        imagenet_stem=True,
        generator=generator,
    )
