"""CIFAR-10 and CIFAR-100 for short trials: fewer and smaller images, as floats in memory."""

from __future__ import annotations

from pathlib import Path

import torch

from growthring.data import load


def load_cifar(
    root: Path, num_train: int, side: int, name: str = "cifar10"
) -> dict[str, torch.Tensor]:
    """The first `num_train` training images and all test images, averaged down to side × side.

    Returns:
        train_images (n, 3, side, side) and test_images, normalised; train_labels, test_labels.
    """
    train, test = load(name, root)
    images, labels = train.images[:num_train], train.labels[:num_train]
    small = [torch.nn.functional.avg_pool2d(i.float(), 32 // side) for i in (images, test.images)]
    mean, std = small[0].mean((0, 2, 3), keepdim=True), small[0].std((0, 2, 3), keepdim=True)
    return {
        "train_images": (small[0] - mean) / std,
        "train_labels": labels,
        "test_images": (small[1] - mean) / std,
        "test_labels": test.labels,
    }


def augment(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random shift by up to an eighth of the side, with zeros, and mirror; (n, 3, s, s)."""
    n, _, _, side = images.shape
    pad = side // 8
    padded = torch.nn.functional.pad(images, [pad] * 4)
    shifts = torch.randint(2 * pad + 1, (2, n), generator=generator)
    flip = torch.rand(n, generator=generator) < 0.5
    line = torch.arange(side)
    rows = shifts[0][:, None] + line
    columns = shifts[1][:, None] + torch.where(flip[:, None], line.flip(0), line)
    index = torch.arange(n)[:, None, None]
    pixels = padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]]
    return pixels.permute(0, 3, 1, 2).contiguous()
