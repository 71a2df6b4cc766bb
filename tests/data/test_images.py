import pytest
import torch
import torch.nn.functional as F

from growthring.data import ImageData
from growthring.errors import InputError
from tests.data.layouts import image_data


def test_mean_and_deviation_are_those_of_the_pixels():
    data = image_data(50)
    pixels = data.images.double() / 255
    mean, std = data.mean_std()
    assert mean == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist())


def test_subset_is_the_first():
    data = image_data(10)
    part = data.subset(3)
    assert torch.equal(part.images, data.images[:3]) and torch.equal(part.labels, data.labels[:3])
    assert (part.num_classes, part.name, len(part)) == (10, "random", 3)
    assert len(data.subset(10)) == 10


@pytest.mark.parametrize("side", [1, 2, 3, 4, 5, 6, 9])
def test_resize_averages_areas(side: int):
    data = image_data(2100)  # more than one chunk
    small = data.resize(side).images
    exact = F.adaptive_avg_pool2d(data.images.double(), side)
    assert small.dtype == torch.uint8 and small.shape == (2100, 3, side, side)
    assert (small.double() - exact).abs().max() <= 0.5 + 1e-4
    if side == 6:
        assert torch.equal(small, data.images)


def test_resize_makes_squares_of_other_shapes():
    data = image_data(4, h=6, w=9)
    exact = F.adaptive_avg_pool2d(data.images.double(), 3)
    assert (data.resize(3).images.double() - exact).abs().max() <= 0.5 + 1e-4


IMAGES, LABELS = torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES.float(), LABELS, "images must be uint8 .* got torch.float32 of shape"),
        (
            IMAGES[:, 0],
            LABELS,
            r"shape \(n, channels, height, width\), got torch.uint8 of shape \(3, 4, 4\)",
        ),
        (IMAGES[:, :0], LABELS, r"of shape \(3, 0, 4, 4\)"),
        (IMAGES, LABELS.int(), "labels must be int64 .* got torch.int32"),
        (
            IMAGES,
            LABELS[:2],
            r"of shape \(3,\), one for each image, got torch.int64 of shape \(2,\)",
        ),
        (IMAGES, LABELS + 1, "labels must be from 0 to 2 .* got 1 to 3"),
        (IMAGES, LABELS - 1, "labels must be from 0 to 2 .* got -1 to 1"),
        (IMAGES.to("meta"), LABELS, "must be on the CPU, got meta and cpu"),
    ],
)
def test_what_does_not_fit_is_refused(images, labels, message):
    with pytest.raises(InputError, match=f"ImageData 'mine': .*{message}"):
        ImageData(images, labels, 3, "mine")


@pytest.mark.parametrize("n", [0, -1, 11])
def test_subset_of_another_size_is_refused(n: int):
    with pytest.raises(InputError, match=rf"subset\({n}\): 'random' has 10 images"):
        image_data(10).subset(n)


def test_resize_to_nothing_is_refused():
    with pytest.raises(
        InputError, match=r"resize\(0\): 'random' needs a side of at least one pixel"
    ):
        image_data().resize(0)


def test_no_images_have_no_mean():
    with pytest.raises(InputError, match="ImageData 'none' has no images"):
        ImageData(IMAGES[:0], LABELS[:0], 3, "none").mean_std()
