import re
from pathlib import Path

import numpy as np
import pytest
import torch

from growthring.data import DataError, load
from tests.data.layouts import random_bytes

GREY, COLOUR = random_bytes(5, 7, 9), random_bytes(5, 3, 7, 9)
LABELS = np.array([0, 4, 1, 2, 0])


def arrays(images=COLOUR, labels=LABELS, **more):
    return {
        "train_images": images[:3],
        "train_labels": labels[:3],
        "test_images": images[3:],
        "test_labels": labels[3:],
        **more,
    }


def write(path: Path, content) -> Path:
    with path.open("wb") as file:
        np.savez_compressed(file, **content)
    return path


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (COLOUR, COLOUR),
        (GREY, GREY[:, None]),
        (GREY[:, None], GREY[:, None]),
        (COLOUR.transpose(0, 2, 3, 1), COLOUR),
        (GREY[..., None], GREY[:, None]),
    ],
)
@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_layouts_of_images(images, expected, dtype, tmp_path: Path):
    path = write(tmp_path / "mine.npz", arrays(images, LABELS.astype(dtype)))
    train, test = load("npz", path)
    assert torch.equal(torch.cat([train.images, test.images]), torch.from_numpy(expected.copy()))
    assert train.images.is_contiguous()
    assert train.labels.tolist() + test.labels.tolist() == LABELS.tolist()
    assert (train.num_classes, test.num_classes, train.name) == (5, 5, "mine")


def test_names_of_keras_and_columns_of_labels(tmp_path: Path):
    ours = arrays(labels=LABELS[:, None])
    keras = {
        "x_train": ours["train_images"],
        "y_train": ours["train_labels"],
        "x_test": ours["test_images"],
        "y_test": ours["test_labels"],
    }
    train, test = load("npz", write(tmp_path / "mine.npz", keras))
    assert train.labels.tolist() == [0, 4, 1] and test.labels.tolist() == [2, 0]


def test_a_stated_number_of_classes(tmp_path: Path):
    train, test = load("npz", write(tmp_path / "mine.npz", arrays(num_classes=7)))
    assert train.num_classes == test.num_classes == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"images": COLOUR},
            r"needs train_images and train_labels \(or x_train and y_train\), found images",
        ),
        (
            {"train_images": COLOUR, "train_labels": LABELS},
            "needs test_images and test_labels .* found train_images, train_labels",
        ),
        (arrays(COLOUR / 255), "train_images must be uint8 .* found float64"),
        (arrays(random_bytes(5, 63)), r"train_images has shape \(3, 63\); needed is \(n, h, w\)"),
        (arrays(random_bytes(5, 2, 7, 9)), r"train_images has shape \(3, 2, 7, 9\)"),
        (arrays(train_images=COLOUR[:0], train_labels=LABELS[:0]), r"has shape \(0, 3, 7, 9\)"),
        (arrays(test_labels=LABELS), r"test_labels is int64 of shape \(5,\); needed .* \(2,\)"),
        (arrays(labels=LABELS / 2), "train_labels is float64 of shape"),
        (arrays(labels=LABELS - 1), "train_labels: labels count from 0, found -1"),
        (arrays(test_images=GREY[3:]), r"training images are \(3, 7, 9\), test images \(1, 7, 9\)"),
        (arrays(num_classes=4), "num_classes must be one whole number above the largest label, 4"),
        (arrays(num_classes=[9]), "num_classes must be one whole number"),
        (
            arrays(labels=np.array([0, 1, None, 2, 3])),
            "not a .npz of plain arrays, or damaged: Object",
        ),
    ],
)
def test_what_does_not_fit_is_named(content, message, tmp_path: Path):
    path = write(tmp_path / "mine.npz", content)
    with pytest.raises(DataError, match=f"{re.escape(str(path))}: .*{message}"):
        load("npz", path)


def test_damage_is_named(tmp_path: Path):
    path = write(tmp_path / "mine.npz", arrays())
    whole = path.read_bytes()
    for content in (
        whole[:-30],
        whole[: len(whole) // 2],
        b"",
        b"text",
        whole[:200] + b"!!!" + whole[203:],
    ):
        path.write_bytes(content)
        with pytest.raises(
            DataError, match=f"{re.escape(str(path))}: not a .npz of plain arrays, or"
        ):
            load("npz", path)


def test_a_file_that_is_not_a_npz(tmp_path: Path):
    with pytest.raises(DataError, match=r"none\.npz: there is no such file; pass the path of a"):
        load("npz", tmp_path / "none.npz")
    np.save(tmp_path / "one.npy", COLOUR)
    with pytest.raises(DataError, match=r"one\.npy: a single array; needed is a .npz"):
        load("npz", tmp_path / "one.npy")
    with pytest.raises(DataError, match=r"not a \.npz of plain arrays"):
        load("npz", tmp_path)
