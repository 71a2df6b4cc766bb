import math

import numpy as np
import pytest
import torch
from PIL import Image

from growthring.data import Crop
from growthring.errors import InputError
from tests.data.layouts import random_bytes


@pytest.mark.parametrize(("width", "height"), [(500, 375), (64, 64), (30, 200), (1, 1), (2000, 3)])
def test_boxes_lie_inside(width: int, height: int, generator):
    crop = Crop()
    for numbers in crop.draw(500, generator).tolist():
        left, top, right, bottom = crop.box(width, height, numbers)
        assert 0 <= left < right <= width and 0 <= top < bottom <= height


def test_areas_ratios_and_places_are_spread_as_asked(generator):
    crop, width, height = Crop(), 1000, 800
    boxes = [crop.box(width, height, numbers) for numbers in crop.draw(4000, generator).tolist()]
    left, top, right, bottom = np.array(boxes).T
    areas = (right - left) * (bottom - top) / (width * height)
    ratios = (right - left) / (bottom - top)
    assert 0.079 < areas.min() < 0.085 and 0.97 < areas.max() <= 1
    # Large crops that do not fit are drawn again, so small areas are a little more frequent.
    assert 0.4 < areas.mean() < 0.54
    assert 0.74 < ratios.min() < 0.76 and 1.31 < ratios.max() < 1.35
    small = areas < 0.4
    assert abs(np.log(ratios[small]).mean()) < 0.02
    middle = ((left + right) / 2 / width, (top + bottom) / 2 / height)
    assert all(abs(m.mean() - 0.5) < 0.02 for m in middle)
    assert min(left) == min(top) == 0 and max(right) == width and max(bottom) == height


def test_where_no_crop_fits_it_is_the_centre():
    crop = Crop(scale=(1.0, 1.0), ratio=(1.0, 1.0))
    assert crop.box(100, 40, [0.5] * 41) == (30, 0, 70, 40)
    assert crop.box(40, 100, [0.5] * 41) == (0, 30, 40, 70)
    wide = Crop(scale=(1.0, 1.0))
    left, top, right, bottom = wide.box(100, 30, [0.5] * 41)
    assert (top, bottom, right - left) == (0, 30, 40)


def test_training_resizes_the_box_and_mirrors(generator):
    image = Image.fromarray(random_bytes(40, 50, 3))
    crop = Crop(16, 20)
    rows = crop.draw(200, generator)
    mirrored = 0
    for numbers in rows.tolist():
        expected = image.crop(crop.box(50, 40, numbers)).resize((16, 16), Image.Resampling.BILINEAR)
        found = np.asarray(crop.train(image, numbers))
        if numbers[-1] < 0.5:
            mirrored += 1
            found = found[:, ::-1]
        assert np.array_equal(found, np.asarray(expected))
    assert 70 < mirrored < 130
    plain = Crop(16, 20, mirror=False)
    numbers = [*rows[0, :-1].tolist(), 0.0]
    unmirrored = np.asarray(plain.train(image, numbers))
    assert np.array_equal(unmirrored[:, ::-1], np.asarray(crop.train(image, numbers)))


@pytest.mark.parametrize("size", [(50, 40), (40, 50), (20, 20), (10, 33), (7, 5)])
def test_evaluation_takes_the_centre(size):
    image = Image.fromarray(random_bytes(size[1], size[0], 3))
    found = Crop(16, 20).evaluate(image)
    assert found.size == (16, 16)
    scale = 20 / min(size)
    large = image.resize([math.floor(s * scale + 1e-9) for s in size], Image.Resampling.BILINEAR)
    left, top = (round((s - 16) / 2) for s in large.size)
    assert np.array_equal(np.asarray(found), np.asarray(large)[top : top + 16, left : left + 16])


def test_numbers_do_not_depend_on_how_they_are_asked_for(generator):
    assert torch.equal(
        Crop().draw(5, generator)[:2], Crop().draw(2, torch.Generator().manual_seed(0))
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size=0, resize=256: the crop must be at least 1 pixel"),
        ({"size": 300}, "size=300, resize=256: the crop must .* fit into the resized image"),
        ({"scale": (0.0, 1.0)}, r"scale=\(0.0, 1.0\): needed are shares of the area"),
        ({"scale": (0.5, 1.5)}, "needed are shares of the area"),
        ({"ratio": (2.0, 1.0)}, r"ratio=\(2.0, 1.0\): needed is 0 < low ≤ high"),
        ({"mean": (0.5,), "std": (0.5,)}, "images are read as RGB, so 3 numbers are needed"),
        ({"std": (0.5, 0.5, 0.0)}, "every channel needs a deviation above 0"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        Crop(**options)
