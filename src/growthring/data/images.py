"""ImageData: a labelled set of equally large images in memory.

Axes: n images, c channels, h rows, w columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from growthring.errors import InputError

_CHUNK = 2048  # images that are turned to floats at a time: CIFAR as floats would take 0.6 GB


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images (n, c, h, w) as uint8 on the CPU, labels (n,) as int64 from 0 to num_classes - 1.

    `classes` are the classes' names in the order of labels, where the data set has names for them.

    >>> data = ImageData(
    ...     images=torch.zeros(4, 1, 8, 8, dtype=torch.uint8),
    ...     labels=torch.tensor([0, 1, 2, 1]),
    ...     num_classes=3,
    ...     name="nothing",
    ... )
    >>> data
    ImageData('nothing': 4 images of 1×8×8, 3 classes)
    >>> len(data.subset(2)), data.resize(4).images.shape
    (2, torch.Size([4, 1, 4, 4]))
    """

    images: Tensor
    labels: Tensor
    num_classes: int
    name: str
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        where = f"ImageData '{self.name}'"
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8 or images.ndim != 4 or 0 in images.shape[1:]:
            raise InputError(
                f"{where}: images must be uint8 of shape (n, channels, height, width), "
                f"got {images.dtype} of shape {tuple(images.shape)}."
            )
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise InputError(
                f"{where}: labels must be int64 of shape ({len(images)},), one for each image, "
                f"got {labels.dtype} of shape {tuple(labels.shape)}."
            )
        if images.device.type != "cpu" or labels.device.type != "cpu":
            raise InputError(
                f"{where}: images and labels must be on the CPU, got {images.device} and "
                f"{labels.device}; Batches(device=...) moves each batch."
            )
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.num_classes:
            raise InputError(
                f"{where}: labels must be from 0 to {self.num_classes - 1} (num_classes={self.num_classes}), "
                f"got {int(labels.min())} to {int(labels.max())}."
            )
        if self.classes is not None and len(self.classes) != self.num_classes:
            raise InputError(
                f"{where}: classes has {len(self.classes)} names for num_classes={self.num_classes}."
            )

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        size = "×".join(str(s) for s in self.images.shape[1:])
        return f"ImageData('{self.name}': {len(self)} images of {size}, {self.num_classes} classes)"

    def mean_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel, with pixels counted from 0 to 1.

        >>> images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
        >>> ImageData(images, torch.zeros(2).long(), 1, "black and white").mean_std()
        ((0.5,), (0.5,))
        """
        if not len(self):
            raise InputError(f"ImageData '{self.name}' has no images to take a mean of.")
        means, deviations = [], []
        values = torch.arange(256, dtype=torch.float64) / 255
        for channel in self.images.unbind(1):
            # From the histogram: exact, and without a copy of all images as floats.
            share = torch.bincount(channel.reshape(-1), minlength=256).double() / channel.numel()
            mean = (share * values).sum()
            means.append(mean.item())
            deviations.append((share * (values - mean).square()).sum().sqrt().item())
        return tuple(means), tuple(deviations)

    def subset(self, n: int) -> ImageData:
        """The first n images, sharing memory with all of them."""
        if not 1 <= n <= len(self):
            raise InputError(
                f"subset({n}): '{self.name}' has {len(self)} images; ask for 1 or more."
            )
        return replace(self, images=self.images[:n], labels=self.labels[:n])

    def resize(self, side: int) -> ImageData:
        """The images at side × side, each pixel the rounded mean over the area that it covers."""
        if side < 1:
            raise InputError(f"resize({side}): '{self.name}' needs a side of at least one pixel.")
        return replace(self, images=average_down(self.images, side))


def average_down(images: Tensor, side: int) -> Tensor:
    """Bytes (n, c, h, w) at side × side, each pixel the rounded mean over the area that it covers.

    >>> average_down(torch.tensor([[[[0, 4], [8, 12]]]], dtype=torch.uint8), 1)
    tensor([[[[6]]]], dtype=torch.uint8)
    """
    n, c, h, w = images.shape
    small = torch.empty(n, c, side, side, dtype=torch.uint8)
    for start in range(0, n, _CHUNK):
        chunk = images[start : start + _CHUNK].float()
        if h % side == 0 and w % side == 0:
            means = F.avg_pool2d(chunk, (h // side, w // side))
        else:
            means = F.interpolate(chunk, size=(side, side), mode="area")
        small[start : start + _CHUNK] = means.round_().clamp_(0, 255)
    return small
