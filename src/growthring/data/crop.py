"""Crop: what is cut out of photographs of any size, and how it is normalised.

Training: a random part of the area at a random ratio, mirrored half of the time (Szegedy et al., Going Deeper with
Convolutions, section 6); evaluation: the centre. The usual settings of ImageNet are the defaults.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from growthring.data.augmentation import check_mean_std
from growthring.data.decode import pillow
from growthring.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

_TRIES = 10
CropBox = tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True)
class Crop:
    """Cut `size` × `size` pixels out of an image.

    For training: a part of the area between the two numbers of `scale`, at a ratio of width to height
    between those of `ratio`. For evaluation: the shorter side resized to `resize`, then the centre.

    >>> crop = Crop(size=32, resize=36)
    >>> numbers = crop.draw(2, torch.Generator().manual_seed(0))
    >>> left, top, right, bottom = crop.box(640, 480, numbers[0].tolist())
    >>> 0 <= left < right <= 640 and 0 <= top < bottom <= 480
    True
    """

    size: int = 224
    resize: int = 256
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    mirror: bool = True
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        check_mean_std(self.mean, self.std)
        if len(self.mean) != 3:
            raise InputError(f"mean={self.mean}: images are read as RGB, so 3 numbers are needed.")
        if not 1 <= self.size <= self.resize:
            raise InputError(
                f"size={self.size}, resize={self.resize}: the crop must be at least 1 pixel and fit "
                "into the resized image."
            )
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(
                f"scale={self.scale}: needed are shares of the area, 0 < low ≤ high ≤ 1."
            )
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise InputError(f"ratio={self.ratio}: needed is 0 < low ≤ high.")

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """The random numbers (n, 41) of n images, whatever their sizes: from 0 to 1, float64."""
        return torch.rand(n, 4 * _TRIES + 1, dtype=torch.float64, generator=generator)

    def box(self, width: int, height: int, numbers: Sequence[float]) -> CropBox:
        """The random crop of a training image; the largest allowed at the centre if ten tries fail."""
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for t in range(_TRIES):
            area, ratio, x, y = numbers[4 * t : 4 * t + 4]
            pixels = width * height * (self.scale[0] + area * (self.scale[1] - self.scale[0]))
            aspect = math.exp(low + ratio * (high - low))
            w, h = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
            if 0 < w <= width and 0 < h <= height:
                left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
                return left, top, left + w, top + h
        w = max(1, min(width, round(height * self.ratio[1])))
        h = max(1, min(height, round(width / self.ratio[0])))
        left, top = (width - w) // 2, (height - h) // 2
        return left, top, left + w, top + h

    def train(self, image: Image, numbers: Sequence[float]) -> Image:
        """The random crop that a row of `draw` gives: size × size."""
        module = pillow()
        box = self.box(image.width, image.height, numbers)
        # Not resize(box=...), which also takes in pixels around the box.
        image = image.crop(box).resize((self.size, self.size), module.Resampling.BILINEAR)
        if self.mirror and numbers[-1] < 0.5:
            image = image.transpose(module.Transpose.FLIP_LEFT_RIGHT)
        return image

    def evaluate(self, image: Image) -> Image:
        """The centre: size × size."""
        shorter = min(image.size)
        width, height = (self.resize * side // shorter for side in image.size)
        image = image.resize((width, height), pillow().Resampling.BILINEAR)
        left, top = round((width - self.size) / 2), round((height - self.size) / 2)
        return image.crop((left, top, left + self.size, top + self.size))
