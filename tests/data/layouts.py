"""Tiny files in the official layouts, and images to put into them."""

import gzip
import io
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from growthring.data import ImageData

Bytes = NDArray[np.uint8]
CIFAR10 = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def random_bytes(*shape: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def image_data(n: int = 10, c: int = 3, h: int = 6, w: int = 6, seed: int = 0) -> ImageData:
    """Random images whose labels are their indices."""
    images = torch.from_numpy(random_bytes(n, c, h, w, seed=seed))
    return ImageData(images, torch.arange(n), n, "random")


def python2_pickle(table: dict[str, object]) -> bytes:
    """What Python 2 and the numpy of 2009 wrote: byte strings, old names."""
    out = b"\x80\x02}("
    for key, value in table.items():
        out += b"U" + bytes([len(key)]) + key.encode()
        if isinstance(value, np.ndarray):
            raw = value.tobytes()
            out += b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
            out += b"(K\x01" + b"".join(b"J" + struct.pack("<i", s) for s in value.shape) + b"\x86"
            out += b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            out += b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
        else:
            out += pickle.dumps(value, protocol=2)[2:-1]
    return out + b"u."


def write_cifar10(root: Path, per_file: int = 2) -> tuple[Bytes, list[int]]:
    """Write the folder; returns the images (n, 3072) and labels of all files in their order."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    images = random_bytes(6 * per_file, 3072)
    labels = [i % 10 for i in range(len(images))]
    for i, name in enumerate(CIFAR10):
        part = slice(i * per_file, (i + 1) * per_file)
        table = {"batch_label": b"x", "labels": labels[part], "data": images[part]}
        (folder / name).write_bytes(python2_pickle(table))
    return images, labels


def write_cifar100(root: Path) -> tuple[Bytes, list[int]]:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    images, labels = random_bytes(5, 3072), [99, 0, 7, 50, 3]
    for name, part in {"train": slice(0, 3), "test": slice(3, 5)}.items():
        # As Python 3 writes it with protocol 2.
        table = {b"fine_labels": labels[part], b"coarse_labels": [0], b"data": images[part]}
        (folder / name).write_bytes(pickle.dumps(table, protocol=2))
    return images, labels


def write_archive(
    path: Path, contents: dict[str, bytes], links: dict[str, str] | None = None
) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)


def idx_bytes(array: Bytes) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def write_fashion_mnist(folder: Path, packed: bool) -> tuple[Bytes, Bytes]:
    """Write the four files; returns images (5, 28, 28), three of them for training, and labels."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = random_bytes(5, 28, 28), np.array([9, 0, 4, 3, 3], dtype=np.uint8)
    for prefix, part in {"train": slice(0, 3), "t10k": slice(3, 5)}.items():
        for kind, array in {"images-idx3": images, "labels-idx1": labels}.items():
            content = idx_bytes(array[part])
            path = folder / f"{prefix}-{kind}-ubyte"
            if packed:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
            else:
                path.write_bytes(content)
    return images, labels


def write_images(root: Path, n: int = 10, mode: str = "RGB", suffix: str = ".png") -> None:
    """Write n images of different sizes, each a class of its own, so that labels tell them apart."""
    from PIL import Image

    for i in range(n):
        folder = root / f"class{i:02d}"
        folder.mkdir(parents=True)
        pixels = random_bytes(12 + i, 20 - i, 3, seed=i)
        Image.fromarray(pixels).convert(mode).save(folder / f"image{suffix}")
