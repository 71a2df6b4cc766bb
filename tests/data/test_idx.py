import gzip
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from growthring.data import DataError, load
from growthring.data.idx import OFFICIAL
from tests.data.layouts import idx_bytes, random_bytes, write_fashion_mnist


def check(found, images, labels):
    train, test = found
    pixels = torch.from_numpy(images).unsqueeze(1)
    assert torch.equal(train.images, pixels[:3]) and torch.equal(test.images, pixels[3:])
    assert train.labels.tolist() + test.labels.tolist() == labels.tolist()
    assert (train.num_classes, train.name) == (10, "fashion-mnist")


@pytest.mark.parametrize("folder", [".", "fashion-mnist", "FashionMNIST/raw"])
@pytest.mark.parametrize("packed", [False, True])
def test_layouts(folder: str, packed: bool, tmp_path: Path):
    expected = write_fashion_mnist(tmp_path / folder, packed)
    check(load("fashion-mnist", tmp_path), *expected)


def test_download(tmp_path: Path, monkeypatch):
    expected = write_fashion_mnist(tmp_path / "site", packed=True)
    for name, file in OFFICIAL.items():
        path = tmp_path / "site" / f"{name}.gz"
        md5 = hashlib.md5(path.read_bytes()).hexdigest()
        monkeypatch.setitem(OFFICIAL, name, replace(file, url=path.as_uri(), md5=md5))
    check(load("fashion-mnist", tmp_path / "root", download=True), *expected)
    files = sorted(p.name for p in (tmp_path / "root" / "fashion-mnist").iterdir())
    assert files == sorted(f"{name}.gz" for name in OFFICIAL)
    check(load("fashion-mnist", tmp_path / "root"), *expected)


def test_nothing_there_says_what_to_put_where(tmp_path: Path):
    with pytest.raises(DataError) as error:
        load("fashion-mnist", tmp_path)
    for part in (
        f"found neither {tmp_path / 'train-images-idx3-ubyte'} nor train-images-idx3-ubyte.gz there",
        "fashion-mnist or FashionMNIST/raw below",
        OFFICIAL["train-images-idx3-ubyte"].url,
        "pass download=True",
    ):
        assert part in str(error.value)


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            IMAGES,
            idx_bytes(random_bytes(3, 28, 28))[:-1],
            r"2351 bytes for the shape \(3, 28, 28\)",
        ),
        (IMAGES, idx_bytes(random_bytes(3, 28, 28)) + b"x", "truncated or damaged: 2353 bytes"),
        (IMAGES, b"\0\0\x08", "starts with 00 00 08 in place of 00 00 08 03"),
        (IMAGES, b"", "starts with nothing in place of 00 00 08 03"),
        (IMAGES, idx_bytes(random_bytes(3)), "not an idx file of bytes with 3 axes"),
        (IMAGES, b"<html>", "not an idx file of bytes with 3 axes, it starts with 3c 68 74 6d"),
        (
            IMAGES,
            idx_bytes(random_bytes(3, 32, 32)),
            r"images of shape \(3, 32, 32\) with 3 labels",
        ),
        (
            IMAGES,
            idx_bytes(random_bytes(2, 28, 28)),
            r"images of shape \(2, 28, 28\) with 3 labels",
        ),
        (LABELS, idx_bytes(np.array([1, 2, 10], np.uint8)), "labels must be from 0 to 9, found 10"),
    ],
)
def test_a_foreign_file_is_named(name, content, message, tmp_path: Path):
    write_fashion_mnist(tmp_path, packed=False)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{re.escape(str(tmp_path / name))}: .*{message}"):
        load("fashion-mnist", tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-12], lambda c: c[:20], lambda c: b"x" + c, lambda c: c[:-4] + b"xxxx"]
)
def test_a_damaged_packed_file_is_named(damage, tmp_path: Path):
    write_fashion_mnist(tmp_path, packed=True)
    path = tmp_path / f"{IMAGES}.gz"
    path.write_bytes(damage(gzip.compress(idx_bytes(random_bytes(3, 28, 28)))))
    with pytest.raises(
        DataError, match=f"{re.escape(str(path))}: cannot be read, truncated or damaged"
    ):
        load("fashion-mnist", tmp_path)
