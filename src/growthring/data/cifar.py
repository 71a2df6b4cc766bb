"""CIFAR-10 and CIFAR-100 in their official Python layout, as a folder or as the archive.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from growthring.data.classes import CIFAR10, CIFAR100
from growthring.data.errors import DataError
from growthring.data.files import OfficialFile, check_md5, fetch, read_members, write_folder
from growthring.data.images import ImageData
from growthring.data.pickles import read_pickle
from growthring.files.foreign import read_plain

_MOST = 1 << 29  # bytes of a file; the largest official one has 155 MB
_SITE = "https://www.cs.toronto.edu/~kriz"


@dataclass(frozen=True)
class CifarLayout:
    """Where one of the two data sets keeps what."""

    folder: str
    archive: OfficialFile
    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: str
    classes: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)


LAYOUTS = {
    "cifar10": CifarLayout(
        folder="cifar-10-batches-py",
        archive=OfficialFile(
            "cifar-10-python.tar.gz",
            f"{_SITE}/cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
        ),
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test=("test_batch",),
        labels="labels",
        classes=CIFAR10,
    ),
    "cifar100": CifarLayout(
        folder="cifar-100-python",
        archive=OfficialFile(
            "cifar-100-python.tar.gz",
            f"{_SITE}/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
        ),
        train=("train",),
        test=("test",),
        labels="fine_labels",
        classes=CIFAR100,
    ),
}


def load_cifar(name: str, root: Path, download: bool) -> tuple[ImageData, ImageData]:
    """Reads "cifar10" or "cifar100" below `root`: images (n, 3, 32, 32).

    Looked for, in this order: the official folder (`root` may be that folder itself), the official
    archive, which is then unpacked beside itself, and with `download` the official site.
    """
    layout = LAYOUTS[name]
    folder = root / layout.folder
    archive = root / layout.archive.name
    names = layout.train + layout.test
    contents: dict[str, bytes] | None = None
    if not folder.is_dir():
        if (root / layout.test[0]).is_file() and (root / layout.train[0]).is_file():
            folder = root
        elif archive.is_file() or download:
            if not archive.is_file():
                fetch(layout.archive, root)  # checks the md5
            else:
                check_md5(archive, layout.archive)
            contents = read_members(archive, layout.folder, names)
            write_folder(folder, contents)
        else:
            raise DataError(
                f"{name}: found neither {folder} nor {archive}. Put the official archive there "
                f"({layout.archive.url}), or pass download=True."
            )

    def part(members: tuple[str, ...]) -> ImageData:
        tables = []
        for member in members:
            path = folder / member
            content = contents[member] if contents is not None else _content(path, archive)
            tables.append(_table(content, path, layout))
        images, labels = (torch.cat(tensors) for tensors in zip(*tables, strict=True))
        return ImageData(images, labels, layout.num_classes, name, layout.classes)

    return part(layout.train), part(layout.test)


def _content(path: Path, archive: Path) -> bytes:
    try:
        return read_plain(path, _MOST)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error}). To unpack all files anew, delete the folder and "
            f"keep the official archive as {archive}."
        ) from error


def _table(content: bytes, path: Path, layout: CifarLayout) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) and labels (n,) of one official file."""
    try:
        table = read_pickle(content)
    except ValueError as error:
        raise DataError(f"{path}: truncated, damaged or not an official file: {error}.") from error
    data, labels = table.get("data"), table.get(layout.labels)
    if not isinstance(data, np.ndarray) or not isinstance(labels, list):
        raise DataError(
            f"{path}: not an official file: needed are 'data' and '{layout.labels}', found {sorted(table)}."
        )
    if data.shape != (len(labels), 3072) or not labels:
        raise DataError(
            f"{path}: images of shape {data.shape} and {len(labels)} labels; needed are one label "
            "and 3 · 32 · 32 = 3072 bytes for each image."
        )
    if not all(type(label) is int and 0 <= label < layout.num_classes for label in labels):
        raise DataError(f"{path}: labels must be from 0 to {layout.num_classes - 1}.")
    return torch.from_numpy(data.reshape(-1, 3, 32, 32).copy()), torch.tensor(labels)
