"""Wide ResNet 28-1 with and without BatchNorm (paper, appendix "More Comparisons with GradMax").

Blocks are pre-activated: norm and ReLU come before each convolution, so the residual stream itself
is never normalised. GradMax's network "without BatchNorm" lacks only the norm inside each block
(`inner_norm=False`) and trains at the usual learning rate of 0.1. The network without any norm
(`norm=False`) needs clipped gradients: without them it diverged at 0.1, 0.03, 0.01 and 0.003.

References: Zagoruyko and Komodakis, Wide Residual Networks, BMVC 2016; Evci et al., GradMax, ICLR
2022.

Axes: N images, C channels, H height, W width, K classes.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .init import init_fan_in_, init_output_, untouched_rng


def _norm(channels: int, norm: bool) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm else nn.Identity()


class PreActivationBlock(nn.Module):
    """Two times norm, ReLU and 3x3 convolution, beside a shortcut.

    A block that changes shape takes its 1x1 shortcut from the activated input, any other from the
    input itself.

    Args:
        in_channels: channels of the block's input.
        width: channels of both convolutions.
        stride: stride of the first convolution and of the shortcut.
        norm: BatchNorm before each ReLU; without it the convolutions have biases instead.
        inner_norm: keep the BatchNorm between a block's two convolutions. GradMax drops it.

    Example:
        >>> PreActivationBlock(4, 6, stride=2)(torch.zeros(2, 4, 8, 8)).shape
        torch.Size([2, 6, 4, 4])
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: int = 1,
        norm: bool = True,
        inner_norm: bool = True,
    ) -> None:
        super().__init__()
        self.bn1 = _norm(in_channels, norm)
        self.conv1 = nn.Conv2d(
            in_channels, width, kernel_size=3, stride=stride, padding=1, bias=not norm
        )
        self.bn2 = _norm(width, norm and inner_norm)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, padding=1, bias=not norm)
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or in_channels != width:
            self.shortcut = nn.Conv2d(
                in_channels, width, kernel_size=1, stride=stride, bias=not norm
            )

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, C, H, W) to (N, width, H / stride, W / stride)."""
        out = F.relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(out)
        out = F.relu(self.bn2(self.conv1(out)))
        return self.conv2(out) + skip


class WideResNet(nn.Module):
    """A 3x3 stem, stages of pre-activation blocks, a last norm and ReLU, and a linear classifier.

    Args:
        depths: number of blocks of each stage.
        widths: channels of the stem and of each stage.
        num_classes: number of logits.
        norm: BatchNorm before each ReLU; without it the convolutions have biases instead.
        inner_norm: keep the BatchNorm between a block's two convolutions. GradMax drops it.
        in_channels: channels of the images.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> model = WideResNet(depths=(1, 1), widths=(4, 4, 8), num_classes=5)
        >>> model(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        depths: Sequence[int],
        widths: Sequence[int],
        num_classes: int,
        norm: bool = True,
        inner_norm: bool = True,
        in_channels: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        with untouched_rng(generator):
            channels = widths[0]
            self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=3, padding=1, bias=not norm)
            self.stages = nn.Sequential()
            for stage, (depth, width) in enumerate(zip(depths, widths[1:], strict=True)):
                blocks = nn.Sequential()
                for index in range(depth):
                    stride = 2 if stage > 0 and index == 0 else 1
                    blocks.append(PreActivationBlock(channels, width, stride, norm, inner_norm))
                    channels = width
                self.stages.append(blocks)
            self.bn = _norm(channels, norm)
            self.fc = nn.Linear(channels, num_classes)
        init_fan_in_(self, generator)
        if not norm:
            _damp_branches_(self, num_blocks=sum(depths))
        init_output_(self.fc, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to logits (N, K)."""
        x = self.stages(self.conv1(x))
        x = F.relu(self.bn(x))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


@torch.no_grad()
def _damp_branches_(model: WideResNet, num_blocks: int) -> None:
    # Without a norm, a He-initialised branch adds as much variance as its block reads: the stream's
    # variance would double with each block, 4096-fold over 12. Branches of variance 1 / num_blocks
    # keep it below e-fold. Branches that start at zero (Fixup) would do too, but they carry no
    # scale that a wider network's weights could be derived from.
    for module in model.modules():
        if isinstance(module, PreActivationBlock):
            module.conv2.weight.mul_(num_blocks**-0.5)


def wrn28_1(
    num_classes: int = 10,
    width: int = 16,
    norm: bool = True,
    inner_norm: bool = True,
    in_channels: int = 3,
    generator: torch.Generator | None = None,
) -> WideResNet:
    """WRN-28-1 for CIFAR: three stages of four blocks, of width, 2 width and 4 width channels.

    Args:
        num_classes: number of logits.
        width: channels of the stem and the first stage; 16 is the full size.
        norm: BatchNorm before each ReLU; without it the convolutions have biases instead.
        inner_norm: keep the BatchNorm between a block's two convolutions. GradMax drops it.
        in_channels: channels of the images.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> wrn28_1(width=4, norm=False)(torch.zeros(2, 3, 16, 16)).shape
        torch.Size([2, 10])
    """
    widths = (width, width, 2 * width, 4 * width)
    return WideResNet((4, 4, 4), widths, num_classes, norm, inner_norm, in_channels, generator)
