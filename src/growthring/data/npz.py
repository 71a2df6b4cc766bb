"""A user's own images in one .npz file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from growthring.data.errors import DataError
from growthring.data.images import ImageData
from growthring.data.members import Header, Members
from growthring.data.memory import check_memory

_NAMES = {  # ours, then those of Keras
    "train": (("train_images", "train_labels"), ("x_train", "y_train")),
    "test": (("test_images", "test_labels"), ("x_test", "y_test")),
}
_CHANNELS = (1, 3, 4)


def load_npz(path: Path) -> tuple[ImageData, ImageData]:
    """Reads train_images, train_labels, test_images, test_labels (or x_train, y_train, …) of a .npz.

    Images are uint8 of shape (n, h, w), (n, c, h, w) or (n, h, w, c) with 1, 3 or 4 channels; labels are
    whole numbers from 0, of shape (n,) or (n, 1). There are as many classes as the largest label says, or
    as a number `num_classes` in the file.
    """
    with Members(path) as members:
        pairs = {part: _pair(members, names, path) for part, names in _NAMES.items()}
        headers = {name: members.header(name) for pair in pairs.values() for name in pair}
        for images, labels in pairs.values():  # all of them before the first is read
            _check_images(headers[images], f"{path}: {images}")
            _check_labels(headers[labels], headers[images].shape[0], f"{path}: {labels}")
        check_memory(sum(header.num_bytes for header in headers.values()), str(path))
        tables = {
            part: (_images(members, images), _labels(members, labels, f"{path}: {labels}"))
            for part, (images, labels) in pairs.items()
        }
        (train, train_labels), (test, test_labels) = tables["train"], tables["test"]
        if train.shape[1:] != test.shape[1:]:
            raise DataError(
                f"{path}: training images are {tuple(train.shape[1:])}, test images "
                f"{tuple(test.shape[1:])} (channels, height, width); they must agree."
            )
        num_classes = _num_classes(members, int(max(train_labels.max(), test_labels.max())), path)
    return (
        ImageData(train, train_labels, num_classes, path.stem),
        ImageData(test, test_labels, num_classes, path.stem),
    )


def _pair(
    members: Members, names: tuple[tuple[str, str], tuple[str, str]], path: Path
) -> tuple[str, str]:
    pair = next((pair for pair in names if pair[0] in members and pair[1] in members), None)
    if pair is None:
        raise DataError(
            f"{path}: needs {names[0][0]} and {names[0][1]} (or {names[1][0]} and "
            f"{names[1][1]}), found {', '.join(members.names()[:20]) or 'nothing'}."
        )
    return pair


def _check_images(header: Header, where: str) -> None:
    shape = header.shape
    if header.dtype != np.uint8:
        raise DataError(f"{where} must be uint8 (0 to 255), found {header.dtype}.")
    is_first = len(shape) == 4 and shape[1] in _CHANNELS
    is_last = len(shape) == 4 and shape[3] in _CHANNELS
    if not (len(shape) == 3 or is_first or is_last) or 0 in shape:
        raise DataError(
            f"{where} has shape {shape}; needed is (n, h, w), (n, c, h, w) or (n, h, w, c) "
            "with 1, 3 or 4 channels and at least one image."
        )


def _images(members: Members, name: str) -> Tensor:
    array = members.read(name)
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[1] not in _CHANNELS:
        array = array.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(array))


def _check_labels(header: Header, n: int, where: str) -> None:
    if header.shape not in ((n,), (n, 1)) or header.dtype.kind not in "iu":
        raise DataError(
            f"{where} is {header.dtype} of shape {header.shape}; needed are whole numbers of shape "
            f"({n},), one for each image."
        )


def _labels(members: Members, name: str, where: str) -> Tensor:
    array = members.read(name).reshape(-1)
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= 2**62:
        raise DataError(f"{where}: labels count from 0, found {low if low < 0 else high}.")
    return torch.from_numpy(array.astype(np.int64))


def _num_classes(members: Members, largest: int, path: Path) -> int:
    if "num_classes" not in members:
        return largest + 1
    header = members.header("num_classes")
    number = -1
    if header.shape == () and header.dtype.kind in "iu":
        number = int(members.read("num_classes").item())
    if not largest < number < 2**62:
        raise DataError(
            f"{path}: num_classes must be one whole number above the largest label, {largest}."
        )
    return number
