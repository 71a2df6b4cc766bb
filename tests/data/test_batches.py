import pytest
import torch

from growthring.data import Augmentation, Batches
from growthring.errors import InputError
from tests.data.layouts import image_data

AUGMENTATION = Augmentation((0.5,), (0.2,), shift=2, mirror=True)


def test_a_batch_is_the_augmented_normalised_images(generator):
    data = image_data(50, 1)
    batches = Batches(data, 50, AUGMENTATION, generator)
    ((images, labels),) = batches
    # The same numbers, drawn by hand.
    seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(0)))
    own = torch.Generator().manual_seed(seed)
    order = torch.randperm(50, generator=own)
    moves = AUGMENTATION.draw(50, own)
    moved = AUGMENTATION.apply(data.images[order], moves)
    assert torch.equal(labels, order)
    assert torch.equal(images, AUGMENTATION.normalise(moved))


def test_evaluation_only_normalises():
    data = image_data(7, 1)
    images = torch.cat([images for images, _ in Batches(data, 3, AUGMENTATION, generator=None)])
    assert torch.equal(images, AUGMENTATION.normalise(data.images))


def test_one_channel_is_not_taken_for_channels_last(generator):
    images, _ = next(iter(Batches(image_data(8, 1), 4, AUGMENTATION, generator)))
    assert images.stride() == (36, 36, 6, 1)
    convolution = torch.nn.Conv2d(1, 3, 3)
    assert convolution(images).stride() == (48, 16, 4, 1)
    # What goes wrong: also "contiguous", the same numbers, other strides.
    ambiguous = images.as_strided(images.shape, (36, 1, 6, 1))
    assert ambiguous.is_contiguous() and convolution(ambiguous).stride() == (48, 1, 12, 3)


def test_the_data_is_not_changed(generator):
    data = image_data(8)
    before = data.images.clone()
    for images, labels in Batches(data, 4, Augmentation((0.5,) * 3, (1.0,) * 3), generator):
        images.zero_(), labels.zero_()
    assert torch.equal(data.images, before)
    assert torch.equal(data.labels, torch.arange(8))


def test_batches_go_to_the_device(generator):
    images, labels = next(
        iter(Batches(image_data(8, 1), 4, AUGMENTATION, generator, device="meta"))
    )
    assert images.device.type == labels.device.type == "meta"
    assert images.shape == (4, 1, 6, 6) and images.dtype == torch.float32


def test_what_does_not_fit_is_refused(generator):
    with pytest.raises(InputError, match="is for 1 channels, 'random' has 3"):
        Batches(image_data(8, 3), 4, AUGMENTATION, generator)
    with pytest.raises(InputError, match="out of sight"):
        Batches(image_data(8, 1, 2, 2), 4, AUGMENTATION, generator)
