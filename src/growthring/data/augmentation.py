"""Augmentation of images in memory: random shift and mirror on bytes, then normalisation.

The random numbers (`draw`) are apart from the work (`apply`), so that both can be checked alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from growthring.data.images import ImageData
from growthring.errors import InputError


def check_mean_std(mean: Sequence[float], std: Sequence[float]) -> None:
    """Refuses what cannot normalise images.

    >>> check_mean_std((0.5,), (0.0,))
    Traceback (most recent call last):
    growthring.errors.InputError: std=(0.0,): every channel needs a deviation above 0.
    """
    if not mean or len(mean) != len(std):
        raise InputError(
            f"mean={mean}, std={std}: both need one number for each channel, of pixels from 0 to 1."
        )
    if not all(s > 0 for s in std):
        raise InputError(f"std={std}: every channel needs a deviation above 0.")


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Bytes (n, c, h, w) of any strides to floats (pixel / 255 - mean) / std, plainly contiguous.

    >>> normalise(torch.full((1, 1, 1, 2), 255, dtype=torch.uint8), (0.5,), (0.25,))
    tensor([[[[2., 2.]]]])
    """
    if images.shape[1] != len(mean):
        raise InputError(
            f"mean={tuple(mean)} is for {len(mean)} channels, the images have {images.shape[1]}."
        )
    # Not .contiguous(): with one channel it keeps strides that a convolution takes for
    # channels_last. A fresh tensor has those of NCHW.
    out = torch.empty(images.shape, dtype=torch.float32, device=images.device).copy_(images)
    scale = torch.tensor([1 / (255 * s) for s in std], device=out.device).view(-1, 1, 1)
    offset = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=out.device)
    return out.mul_(scale).add_(offset.view(-1, 1, 1))


@dataclass(frozen=True)
class Augmentation:
    """Shifts by up to `shift` pixels each way (black moves in), mirrors half of the images, normalises.

    `mean` and `std` are per channel, of pixels from 0 to 1. Do not mirror what has a direction,
    such as digits.

    >>> augmentation = Augmentation(mean=(0.5,), std=(0.25,), shift=1)
    >>> moves = augmentation.draw(5, torch.Generator().manual_seed(0))
    >>> moves.shape  # rows down, columns right, mirrored
    torch.Size([3, 5])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    shift: int = 0
    mirror: bool = False

    def __post_init__(self) -> None:
        check_mean_std(self.mean, self.std)
        if self.shift < 0:
            raise InputError(
                f"shift={self.shift}: the largest shift is a number of pixels, 0 or more."
            )

    @classmethod
    def of(cls, data: ImageData, *, shift: int = 0, mirror: bool = False) -> Augmentation:
        """Normalises by the mean and deviation of `data`, which should be the training set.

        >>> from growthring.data import load
        >>> train, test = load("digits")
        >>> Augmentation.of(train, shift=1).shift
        1
        """
        mean, std = data.mean_std()
        return cls(mean, tuple(s or 1.0 for s in std), shift, mirror)

    def check(self, data: ImageData) -> None:
        """Refuses data with another number of channels, or images that a shift would empty."""
        _, c, h, w = data.images.shape
        if c != len(self.mean):
            raise InputError(
                f"mean={self.mean} is for {len(self.mean)} channels, '{data.name}' has {c}."
            )
        if self.shift >= min(h, w):
            raise InputError(
                f"shift={self.shift} would move images of '{data.name}' ({h}×{w}) out of sight."
            )

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """The moves (3, n) of n images: rows from above, columns from the left, mirrored (0 or 1).

        The first two are from 0 to 2 · shift; `shift` itself leaves an image in its place.
        """
        moves = torch.zeros(3, n, dtype=torch.int64)
        if self.shift:
            moves[:2] = torch.randint(2 * self.shift + 1, (2, n), generator=generator)
        if self.mirror:
            moves[2] = torch.randint(2, (n,), generator=generator)
        return moves

    @property
    def moves_images(self) -> bool:
        """Whether images are shifted or mirrored at all."""
        return self.shift > 0 or self.mirror

    def only(self, chosen: Tensor, moves: Tensor) -> Tensor:
        """The moves (3, n) of chosen (n,) images; the others stay in their places.

        >>> augmentation = Augmentation(mean=(0.5,), std=(0.25,), shift=2, mirror=True)
        >>> augmentation.only(torch.tensor([True, False]), torch.tensor([[0, 1], [4, 3], [1, 1]])).T
        tensor([[0, 4, 1],
                [2, 2, 0]])
        """
        return torch.where(chosen, moves, torch.tensor([[self.shift], [self.shift], [0]]))

    def apply(self, images: Tensor, moves: Tensor) -> Tensor:
        """Moves images (n, c, h, w), uint8, as `draw` says: cut out of a black frame, then mirrored."""
        n, _, h, w = images.shape
        if self.shift:
            # numpy copies a window per image as runs of bytes; torch's indexing goes element by
            # element and takes six times as long.
            windows = F.pad(images, [self.shift] * 4).unfold(2, h, 1).unfold(3, w, 1).numpy()
            rows, columns = moves[0].numpy(), moves[1].numpy()
            images = torch.from_numpy(windows[np.arange(n), :, rows, columns])
        if self.mirror:
            mirrored = moves[2].nonzero()[:, 0].numpy()
            pixels = images.numpy() if self.shift else images.numpy().copy()
            pixels[mirrored] = pixels[mirrored][..., ::-1]
            images = torch.from_numpy(pixels)
        return images

    def normalise(self, images: Tensor) -> Tensor:
        """Bytes (n, c, h, w) to normalised floats, plainly contiguous."""
        return normalise(images, self.mean, self.std)
