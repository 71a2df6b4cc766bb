"""Fashion-MNIST, in the idx files of MNIST, packed or not.

Xiao, Rasul and Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms, 2017.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import torch
from torch import Tensor

from growthring.data.classes import FASHION_MNIST
from growthring.data.errors import DataError
from growthring.data.files import OfficialFile, fetch
from growthring.data.images import ImageData
from growthring.data.memory import MOST_INFLATED, check_memory
from growthring.files.foreign import open_plain

_SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"  # the authors'; has no https
_MD5 = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}
OFFICIAL = {
    name: OfficialFile(f"{name}.gz", f"{_SITE}/{name}.gz", md5) for name, md5 in _MD5.items()
}
_FOLDERS = (".", "fashion-mnist", "FashionMNIST/raw")  # below root


def load_fashion_mnist(root: Path, download: bool) -> tuple[ImageData, ImageData]:
    """Reads Fashion-MNIST below `root`: images (n, 1, 28, 28).

    The files train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-… with or without .gz may lie in
    `root`, `root`/fashion-mnist or `root`/FashionMNIST/raw. With `download` the missing ones are fetched.
    """

    def part(prefix: str) -> ImageData:
        paths = [
            _find(f"{prefix}-{kind}-ubyte", root, download)
            for kind in ("images-idx3", "labels-idx1")
        ]
        images, labels = read_idx(paths[0], num_axes=3), read_idx(paths[1], num_axes=1)
        if images.shape[1:] != (28, 28) or len(images) != len(labels) or not len(images):
            raise DataError(
                f"{paths[0]}: images of shape {tuple(images.shape)} with {len(labels)} labels in "
                f"{paths[1].name}; needed are (n, 28, 28) and n labels."
            )
        if int(labels.max()) >= len(FASHION_MNIST):
            raise DataError(f"{paths[1]}: labels must be from 0 to 9, found {int(labels.max())}.")
        names = FASHION_MNIST
        return ImageData(images.unsqueeze(1), labels.long(), len(names), "fashion-mnist", names)

    return part("train"), part("t10k")


def _find(name: str, root: Path, download: bool) -> Path:
    for folder in _FOLDERS:
        for path in (root / folder / name, root / folder / f"{name}.gz"):
            if path.is_file():
                return path
    if download:
        return fetch(OFFICIAL[name], root / _FOLDERS[1])
    raise DataError(
        f"fashion-mnist: found neither {root / name} nor {name}.gz there, nor in the folders "
        f"{' or '.join(_FOLDERS[1:])} below {root}. Put the official files there "
        f"({OFFICIAL[name].url} and so on), or pass download=True."
    )


def read_idx(path: Path, num_axes: int) -> Tensor:
    """Reads an idx file of bytes with so many axes; a name in .gz is unpacked."""
    start = 4 + 4 * num_axes
    try:
        with open_plain(path) as file, _unpacked(file, path) as stream:
            head = stream.read(start)
            # Two zeros, 8 for unsigned bytes, the number of axes; then the sizes, big end first.
            if len(head) < start or head[:4] != bytes([0, 0, 8, num_axes]):
                raise DataError(
                    f"{path}: not an idx file of bytes with {num_axes} axes, it starts with "
                    f"{head[:4].hex(' ') or 'nothing'} in place of 00 00 08 {num_axes:02x}."
                )
            shape = struct.unpack(f">{num_axes}I", head[4:])
            size = math.prod(shape)
            _check_size(size, path)
            content = stream.read(size + 1)  # a byte more shows that there are more
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read, truncated or damaged: {error}") from error
    if len(content) != size:
        amount = f"{len(content)} bytes{' or more' if len(content) > size else ''}"
        raise DataError(
            f"{path}: truncated or damaged: {amount} for the shape {shape}, which takes {size}."
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8).reshape(shape).copy())


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _unpacked(file: BinaryIO, path: Path) -> AbstractContextManager[_Readable]:
    return gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else nullcontext(file)


def _check_size(size: int, path: Path) -> None:
    """Refuses a shape that the file cannot hold, before anything is allocated for it."""
    most = path.stat().st_size * (MOST_INFLATED if path.suffix == ".gz" else 1)
    if size > most:
        raise DataError(
            f"{path}: truncated or damaged: the header claims {size:,} bytes, the file can hold {most:,}."
        )
    check_memory(2 * size, str(path))
