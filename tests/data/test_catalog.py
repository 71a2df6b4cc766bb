from pathlib import Path

import pytest
import torch

from growthring.data import NAMES, DataError, load
from growthring.errors import GrowthError, InputError
from tests.data.layouts import random_bytes, write_cifar10, write_images


def test_an_unknown_name_lists_the_known():
    with pytest.raises(InputError) as error:
        load("imagenet")
    assert str(error.value) == (
        "there is no data set 'imagenet'; there are digits, cifar10, cifar100, fashion-mnist, npz, folder."
    )
    assert len(NAMES) == 6


@pytest.mark.parametrize("name", ["npz", "folder"])
@pytest.mark.parametrize("arguments", [(), ("x", True)])
def test_your_own_data_needs_a_path(name: str, arguments):
    with pytest.raises(InputError, match=f"'{name}' is your own data: pass its path as root"):
        load(name, *arguments)


def test_the_default_root_is_data(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_cifar10(Path("data"))
    train, _ = load("cifar10")
    assert len(train) == 10


def test_home_is_understood(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_cifar10(tmp_path / "sets")
    assert len(load("cifar10", "~/sets")[0]) == 10


@pytest.mark.parametrize("test", ["val", "test"])
def test_a_folder_of_equally_large_images(test: str, tmp_path: Path):
    from PIL import Image

    pixels = random_bytes(4, 5, 6, 3)
    names = ["train/cat/1.png", "train/dog/1.png", "train/dog/2.png", f"{test}/dog/9.png"]
    for name, image in zip(names, pixels, strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / name)
    found = load("folder", tmp_path)
    expected = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    assert torch.equal(torch.cat([part.images for part in found]), expected)
    assert [part.labels.tolist() for part in found] == [[0, 1, 1], [1]]
    assert [part.num_classes for part in found] == [2, 2]


def test_a_folder_of_different_sizes_names_the_way_out(tmp_path: Path):
    for part in ("train", "val"):
        write_images(tmp_path / part, 2)
    with pytest.raises(
        DataError, match=r"image.png: 19×13 pixels, but .*image.png has 20×12. .*FolderBatches"
    ):
        load("folder", tmp_path)


def test_data_errors_are_growth_errors():
    assert issubclass(DataError, GrowthError) and issubclass(DataError, ValueError)
