"""What a test image goes through, written down; and what the classes of data sets are called."""

import pytest
import torch

from growthring.data import (
    Augmentation,
    Batches,
    Crop,
    FolderBatches,
    ImageData,
    ImageFolder,
    Preprocessing,
    load,
)
from growthring.data.classes import CIFAR10, CIFAR100, FASHION_MNIST
from growthring.errors import InputError


def test_it_gives_what_the_batches_give():
    train, test = load("digits")
    batches = Batches(test, 500, Augmentation.of(train, shift=1), None)
    found = Preprocessing.of(batches)
    assert found(test.images).equal(next(iter(batches))[0])
    assert Preprocessing(**vars(found)) == found


def test_images_that_are_averaged_down(generator):
    images = torch.randint(256, (6, 3, 12, 12), dtype=torch.uint8, generator=generator)
    data = ImageData(images, torch.arange(6), 6, "mine")
    small = data.resize(4)
    batches = Batches(small, 6, Augmentation.of(small), None)
    found = Preprocessing.of(batches, side=4)
    assert found.resizing == "area" and found(images).equal(next(iter(batches))[0])
    assert "averaged down to 4×4" in str(found)


def test_photographs():
    pytest.importorskip("PIL")
    folder = ImageFolder(("a.png",), torch.zeros(1).long(), ("a",), "mine")
    crop = Crop(32, 36)
    found = Preprocessing.of(FolderBatches(folder, 1, crop, None))
    assert found == Preprocessing(crop.mean, crop.std, (32, 32), "crop", 36)
    assert (found.crop.size, found.crop.resize, found.crop.mean) == (32, 36, crop.mean)
    with pytest.raises(InputError, match=r"takes 32×32; cut out their centres first \(.*\)\."):
        found(torch.zeros(1, 3, 40, 40, dtype=torch.uint8))


def test_a_stream_of_another_kind():
    assert Preprocessing.of(None) is None


WRONG = {
    "size": ({"size": (0, 8)}, "squares of a pixel or more"),
    "no square": ({"size": (4, 8), "resizing": "area"}, "squares"),
    "resizing": ({"resizing": "magic"}, "not one of none, area, crop"),
    "shorter": ({"shorter": 9}, "does not go with resizing='none'"),
    "std": ({"std": (0.0,)}, "above 0"),
}


@pytest.mark.parametrize(("changes", "says"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be(changes, says):
    with pytest.raises(InputError, match=says):
        Preprocessing(**{"mean": (0.5,), "std": (0.5,), "size": (8, 8)} | changes)


def test_images_of_another_size():
    with pytest.raises(InputError, match="the images are 9×9 pixels, the model takes 8×8"):
        Preprocessing((0.5,), (0.5,), (8, 8))(torch.zeros(1, 1, 9, 9, dtype=torch.uint8))


def test_names_of_classes():
    assert load("digits")[1].classes == tuple("0123456789")
    assert len(CIFAR10) == len(FASHION_MNIST) == 10 and list(CIFAR10) == sorted(CIFAR10)
    assert len(set(CIFAR100)) == 100 and list(CIFAR100) == sorted(CIFAR100)
    assert CIFAR100[8] == "bicycle" and CIFAR100[99] == "worm"
    with pytest.raises(InputError, match="classes has 1 names for num_classes=2"):
        ImageData(torch.zeros(1, 1, 1, 1).byte(), torch.zeros(1).long(), 2, "x", ("a",))
