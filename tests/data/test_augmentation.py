import pytest
import torch
from torch import Tensor

from growthring.data import Augmentation
from growthring.data.augmentation import normalise
from growthring.errors import InputError
from tests.data.layouts import image_data

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def naive(image: Tensor, row: int, column: int, mirrored: int, shift: int) -> Tensor:
    """One image (c, h, w), pixel by pixel."""
    _, h, w = image.shape
    out = torch.zeros_like(image)
    for y in range(h):
        for x in range(w):
            v = y + row - shift
            u = (w - 1 - x if mirrored else x) + column - shift
            if 0 <= v < h and 0 <= u < w:
                out[:, y, x] = image[:, v, u]
    return out


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("shift", [0, 1, 3])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("width", [6, 9])
def test_pixels_are_those_of_a_loop_over_images(shift, mirror, channels, width, generator):
    images = image_data(40, channels, 6, width).images
    before = images.clone()
    augmentation = Augmentation(MEAN[:channels], STD[:channels], shift, mirror)
    moves = augmentation.draw(40, generator)
    moved = augmentation.apply(images, moves)
    expected = [naive(i, *m, shift) for i, m in zip(images, moves.T.tolist(), strict=True)]
    assert moved.dtype == torch.uint8
    assert torch.equal(moved, torch.stack(expected))
    assert torch.equal(images, before)


def test_every_shift_is_as_likely_and_half_are_mirrored(generator):
    n, shift = 20_000, 4
    rows, columns, mirrored = Augmentation(MEAN, STD, shift, mirror=True).draw(n, generator)
    pairs = torch.bincount(rows * 9 + columns, minlength=81)
    assert len(pairs) == 81
    assert (pairs - n / 81).abs().max() < 5 * (n / 81) ** 0.5
    for value in (0, 1):
        assert abs((mirrored == value).sum().item() - n / 2) < 4 * (n / 4) ** 0.5
    # Mirroring does not depend on the shift.
    assert abs(torch.corrcoef(torch.stack([rows, columns, mirrored]).double())[2, :2]).max() < 0.03


def test_without_shift_and_mirror_nothing_is_drawn(generator):
    before = generator.get_state()
    images = image_data().images
    augmentation = Augmentation(MEAN, STD)
    moves = augmentation.draw(10, generator)
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(augmentation.apply(images, moves), images)


@pytest.mark.parametrize("channels", [1, 3])
def test_normalised_floats_are_plain_nchw(channels: int):
    data = image_data(8, channels)
    mean, std = MEAN[:channels], STD[:channels]
    expected = (data.images.double() / 255 - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(
        std
    ).view(-1, 1, 1)
    last = data.images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # channels_last
    for images in (data.images, last):
        out = normalise(images, mean, std)
        assert out.dtype == torch.float32
        assert out.stride() == (36 * channels, 36, 6, 1)
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-6)


def test_the_mean_of_the_data_normalises_it():
    data = image_data(200)
    augmentation = Augmentation.of(data, shift=2, mirror=True)
    assert (augmentation.shift, augmentation.mirror) == (2, True)
    out = augmentation.normalise(data.images)
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(out.std((0, 2, 3)), torch.ones(3), rtol=0, atol=1e-3)


def test_a_constant_channel_is_not_divided_by_zero():
    data = image_data(4, 1)
    data.images.fill_(7)
    augmentation = Augmentation.of(data)
    assert augmentation.std == (1.0,)
    assert augmentation.normalise(data.images).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mean": (), "std": ()}, "both need one number for each channel"),
        ({"mean": (0.5,), "std": (1.0, 1.0)}, "both need one number for each channel"),
        ({"mean": (0.5,), "std": (0.0,)}, r"std=\(0.0,\): every channel needs a deviation above 0"),
        ({"mean": (0.5,), "std": (float("nan"),)}, "every channel needs a deviation above 0"),
        (
            {"mean": (0.5,), "std": (1.0,), "shift": -1},
            "shift=-1: the largest shift is a number of",
        ),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Augmentation(**arguments)


def test_images_that_do_not_fit_are_refused():
    data = image_data(2, 1)
    with pytest.raises(InputError, match="is for 3 channels, 'random' has 1"):
        Augmentation(MEAN, STD).check(data)
    with pytest.raises(InputError, match="is for 3 channels, the images have 1"):
        Augmentation(MEAN, STD).normalise(data.images)
    with pytest.raises(InputError, match=r"shift=6 would move images of 'random' \(6×6\) out of"):
        Augmentation((0.5,), (0.5,), shift=6).check(data)
    Augmentation((0.5,), (0.5,), shift=5).check(data)
