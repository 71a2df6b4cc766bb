"""Preprocessing: what a test image goes through before a model takes it, as a few numbers to write down."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from growthring.data.augmentation import Augmentation, check_mean_std, normalise
from growthring.data.batch import Stream
from growthring.data.batches import Batches
from growthring.data.crop import Crop
from growthring.data.folder_batches import FolderBatches
from growthring.data.images import average_down
from growthring.errors import InputError

RESIZINGS = ("none", "area", "crop")


@dataclass(frozen=True)
class Preprocessing:
    """From bytes (n, channels, height, width) to floats: resized, then (pixel / 255 - mean) / std.

    Attributes:
        mean, std: of each channel, of pixels from 0 to 1.
        size: height and width that the model takes.
        resizing: "none": images have that size; "area": they are averaged down to it; "crop": their shorter side
            is resized to `shorter` (bilinear), then the centre is cut out.
        shorter: of "crop".

    >>> import torch
    >>> preprocessing = Preprocessing((0.5,), (0.25,), size=(1, 2))
    >>> preprocessing(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    tensor([[[[-2.,  2.]]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int]
    resizing: str = "none"
    shorter: int | None = None

    def __post_init__(self) -> None:
        check_mean_std(self.mean, self.std)
        if self.resizing not in RESIZINGS:
            raise InputError(f"resizing={self.resizing!r} is not one of {', '.join(RESIZINGS)}.")
        if min(self.size) < 1 or (self.resizing != "none" and len(set(self.size)) > 1):
            raise InputError(f"size={self.size}: images are resized to squares of a pixel or more.")
        if (self.shorter is None) != (self.resizing != "crop"):
            raise InputError(f"shorter={self.shorter} does not go with resizing='{self.resizing}'.")

    @classmethod
    def of(cls, stream: Stream | None, side: int | None = None) -> Preprocessing | None:
        """That of a stream's test images; None for a kind of stream that is not growthring's.

        Args:
            stream: the batches.
            side: images in memory were averaged down to this side.

        >>> from growthring.data import load
        >>> train, test = load("digits")
        >>> Preprocessing.of(Batches(test, 500, Augmentation.of(train), None)).size
        (8, 8)
        """
        if isinstance(stream, Batches):
            height, width = stream.data.images.shape[2:]
            found = stream.augmentation
            resizing = "none" if side is None else "area"
            return cls(tuple(found.mean), tuple(found.std), (height, width), resizing)
        if isinstance(stream, FolderBatches):
            crop = stream.crop
            size = (crop.size, crop.size)
            return cls(tuple(crop.mean), tuple(crop.std), size, "crop", crop.resize)
        return None

    @property
    def augmentation(self) -> Augmentation:
        """The normalisation of images in memory."""
        return Augmentation(self.mean, self.std)

    @property
    def crop(self) -> Crop:
        """The centre of photographs, and their normalisation."""
        return Crop(self.size[0], self.shorter or self.size[0], mean=self.mean, std=self.std)

    def __call__(self, images: Tensor) -> Tensor:
        """What the model takes; photographs of any size have to be cropped first, see `Crop.evaluate`."""
        size = tuple(images.shape[2:])
        if size != self.size and self.resizing == "area":
            images = average_down(images, self.size[0])
        elif size != self.size:
            hint = "; cut out their centres first (growthring.data.Crop.evaluate)"
            raise InputError(
                f"the images are {size[0]}×{size[1]} pixels, the model takes {self.size[0]}×{self.size[1]}"
                f"{hint if self.resizing == 'crop' else ''}."
            )
        return normalise(images, self.mean, self.std)

    def __str__(self) -> str:
        size = f"{self.size[0]}×{self.size[1]}"
        first = {
            "none": f"{size} pixels",
            "area": f"averaged down to {size} pixels",
            "crop": f"shorter side to {self.shorter}, centre of {size} pixels",
        }[self.resizing]
        mean, std = (", ".join(f"{v:.4g}" for v in values) for values in (self.mean, self.std))
        return f"{first}; (pixel / 255 - mean) / std, mean {mean}, std {std}"
