"""A user's own images in one .npz file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from growthring.data.errors import DataError
from growthring.data.images import ImageData

_NAMES = {  # ours, then those of Keras
    "train": (("train_images", "train_labels"), ("x_train", "y_train")),
    "test": (("test_images", "test_labels"), ("x_test", "y_test")),
}
_CHANNELS = (1, 3, 4)


def load_npz(path: Path) -> tuple[ImageData, ImageData]:
    """Read train_images, train_labels, test_images, test_labels (or x_train, y_train, …) of a .npz.

    Images are uint8 of shape (n, h, w), (n, c, h, w) or (n, h, w, c) with 1, 3 or 4 channels; labels are
    whole numbers from 0, of shape (n,) or (n, 1). There are as many classes as the largest label says, or
    as a number `num_classes` in the file.
    """
    arrays = _arrays(path)
    tables = {}
    for part, names in _NAMES.items():
        pair = next((pair for pair in names if set(pair) <= set(arrays)), None)
        if pair is None:
            raise DataError(
                f"{path}: needs {names[0][0]} and {names[0][1]} (or {names[1][0]} and "
                f"{names[1][1]}), found {', '.join(sorted(arrays)) or 'nothing'}."
            )
        images = _images(arrays[pair[0]], f"{path}: {pair[0]}")
        tables[part] = images, _labels(arrays[pair[1]], len(images), f"{path}: {pair[1]}")
    (train, train_labels), (test, test_labels) = tables["train"], tables["test"]
    if train.shape[1:] != test.shape[1:]:
        raise DataError(
            f"{path}: training images are {tuple(train.shape[1:])}, test images "
            f"{tuple(test.shape[1:])} (channels, height, width); they must agree."
        )
    largest = int(max(train_labels.max(), test_labels.max()))
    num_classes = _num_classes(arrays, largest, path)
    return (
        ImageData(train, train_labels, num_classes, path.stem),
        ImageData(test, test_labels, num_classes, path.stem),
    )


def _arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.lib.npyio.NpzFile):
            with content:
                return dict(content)
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: there is no such file; pass the path of a .npz as root."
        ) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: not a .npz of plain arrays, or damaged: {error}") from error
    raise DataError(f"{path}: a single array; needed is a .npz, see numpy.savez.")


def _images(array: NDArray[np.generic], where: str) -> Tensor:
    if array.dtype != np.uint8:
        raise DataError(f"{where} must be uint8 (0 to 255), found {array.dtype}.")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] not in _CHANNELS and array.shape[3] in _CHANNELS:
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in _CHANNELS or 0 in array.shape:
        raise DataError(
            f"{where} has shape {array.shape}; needed is (n, h, w), (n, c, h, w) or (n, h, w, c) "
            "with 1, 3 or 4 channels and at least one image."
        )
    return torch.from_numpy(np.array(array, order="C"))


def _labels(array: NDArray[np.generic], n: int, where: str) -> Tensor:
    if array.shape == (n, 1):
        array = array[:, 0]
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise DataError(
            f"{where} is {array.dtype} of shape {array.shape}; needed are whole numbers of shape "
            f"({n},), one for each image."
        )
    labels = torch.from_numpy(array.astype(np.int64))
    if int(labels.min()) < 0:
        raise DataError(f"{where}: labels count from 0, found {int(labels.min())}.")
    return labels


def _num_classes(arrays: dict[str, NDArray[np.generic]], largest: int, path: Path) -> int:
    if "num_classes" not in arrays:
        return largest + 1
    number = arrays["num_classes"]
    if number.shape != () or number.dtype.kind not in "iu" or int(number.item()) <= largest:
        raise DataError(
            f"{path}: num_classes must be one whole number above the largest label, {largest}."
        )
    return int(number.item())
