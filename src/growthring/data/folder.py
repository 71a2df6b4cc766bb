"""ImageFolder: image files sorted into one folder for each class, as ImageNet is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from growthring.data.decode import decode_image
from growthring.data.errors import DataError
from growthring.data.images import ImageData
from growthring.data.memory import check_memory
from growthring.errors import InputError

_SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
_TRAIN, _TEST = "train", ("val", "test")


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """Paths (n) of image files, labels (n,) as int64, and the classes' names in the order of labels."""

    paths: tuple[str, ...]
    labels: Tensor
    classes: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        if self.labels.dtype != torch.int64 or self.labels.shape != (len(self.paths),):
            raise InputError(
                f"ImageFolder '{self.name}': labels must be int64 of shape ({len(self.paths)},), one "
                f"for each path, got {self.labels.dtype} of shape {tuple(self.labels.shape)}."
            )

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"ImageFolder('{self.name}': {len(self)} files, {len(self.classes)} classes)"

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    @classmethod
    def scan(cls, root: str | Path, classes: Sequence[str] | None = None) -> ImageFolder:
        """Finds root/<class>/…/<image>, classes and files in the order of their names.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("cat/1.JPEG", "cat/2.JPEG", "ant/9.png"):
        ...         Path(root, name).parent.mkdir(exist_ok=True)
        ...         Path(root, name).touch()
        ...     folder = ImageFolder.scan(root)
        >>> folder.classes, folder.labels.tolist()
        (('ant', 'cat'), [0, 1, 1])

        Args:
            root: the folder.
            classes: the names in the order of their labels, as another folder has them; some may be
                without images here. By default all folders that are there.
        """
        root = Path(root)
        try:
            folders = sorted(e.name for e in root.iterdir() if e.is_dir() and e.name[0] != ".")
        except OSError as error:
            raise DataError(f"{root}: cannot be read as a folder: {error}") from error
        if not folders:
            raise DataError(
                f"{root}: has no folders; needed is one for each class, with its images."
            )
        names = tuple(folders if classes is None else classes)
        if unknown := sorted(set(folders) - set(names)):
            raise DataError(
                f"{root / unknown[0]}: there is no class '{unknown[0]}' in the training data, "
                f"which has {', '.join(names[:5])}{', …' if len(names) > 5 else ''}."
            )
        paths: list[str] = []
        labels: list[int] = []
        for label, name in enumerate(names):
            files = _images(root / name)
            if not files and name in folders:
                raise DataError(f"{root / name}: has no images ({', '.join(_SUFFIXES)}).")
            paths += files
            labels += [label] * len(files)
        return cls(tuple(paths), torch.tensor(labels), names, str(root))

    @classmethod
    def splits(cls, root: str | Path) -> tuple[ImageFolder, ImageFolder]:
        """Scans root/train and root/val (or root/test), with the classes of the first."""
        root = Path(root)
        test = next((root / name for name in _TEST if (root / name).is_dir()), None)
        if not (root / _TRAIN).is_dir() or test is None:
            raise DataError(
                f"{root}: needs the folders {_TRAIN} and {' or '.join(_TEST)}, each with one folder "
                "of images for each class."
            )
        train = cls.scan(root / _TRAIN)
        return train, cls.scan(test, train.classes)

    def read(self) -> ImageData:
        """All images in memory, (n, 3, h, w); they must be equally large."""
        first = decode_image(Path(self.paths[0]))
        check_memory(len(self) * 3 * first.height * first.width, self.name)
        images = torch.empty(len(self), 3, first.height, first.width, dtype=torch.uint8)
        for i, path in enumerate(self.paths):
            image = decode_image(Path(path))
            if image.size != first.size:
                raise DataError(
                    f"{path}: {image.width}×{image.height} pixels, but {self.paths[0]} has "
                    f"{first.width}×{first.height}. Images of different sizes need FolderBatches, "
                    "which crops them."
                )
            images[i] = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return ImageData(images, self.labels, self.num_classes, self.name, self.classes)


def _images(folder: Path) -> list[str]:
    paths = []

    def refuse(error: OSError) -> None:  # os.walk would leave the folder out
        raise DataError(f"{error.filename}: cannot be read: {error.strerror or error}") from error

    if not folder.exists():
        return []  # a class that has no images here
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders.sort()
        paths += [
            os.path.join(parent, name)
            for name in sorted(names)
            if name.lower().endswith(_SUFFIXES) and not name.startswith(".")
        ]
    return paths
