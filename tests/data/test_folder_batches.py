import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from growthring.data import Crop, DataError, FolderBatches, ImageFolder
from growthring.data.augmentation import normalise
from growthring.data.decode import decode_image
from growthring.errors import InputError
from tests.data.layouts import write_images

CROP = Crop(8, 9)
HANGS = 1800.0  # seconds; only ever turns a hang into a failure


@pytest.fixture
def folder(tmp_path: Path) -> ImageFolder:
    write_images(tmp_path, 10)
    return ImageFolder.scan(tmp_path)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def same(a, b) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True)
    )


def test_images_are_the_crops_of_their_files(folder: ImageFolder):
    ((images, labels),) = FolderBatches(folder, 10, CROP, seeded())
    seed = int(torch.randint(2**62, (), generator=seeded()))
    own = torch.Generator().manual_seed(seed)
    order = torch.randperm(10, generator=own)
    numbers = CROP.draw(10, own).tolist()
    pixels = [
        np.asarray(CROP.train(decode_image(Path(folder.paths[i])), row))
        for i, row in zip(order.tolist(), numbers, strict=True)
    ]
    expected = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
    assert torch.equal(labels, order)
    assert torch.equal(images, normalise(expected, CROP.mean, CROP.std))
    assert images.stride() == (192, 64, 8, 1)


def test_evaluation_takes_the_centres(folder: ImageFolder):
    images = torch.cat([images for images, _ in FolderBatches(folder, 4, CROP, generator=None)])
    pixels = [np.asarray(CROP.evaluate(decode_image(Path(path)))) for path in folder.paths]
    expected = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
    assert torch.equal(images, normalise(expected, CROP.mean, CROP.std))


def test_threads_and_their_timing_change_nothing(folder: ImageFolder, monkeypatch):
    expected = list(FolderBatches(folder, 3, CROP, seeded(), num_threads=1, prefetch=0))

    def slow(path: Path):
        time.sleep(int.from_bytes(path.parent.name.encode()) * 7919 % 5 / 1000)
        return decode_image(path)

    monkeypatch.setattr("growthring.data.folder_batches.decode_image", slow)
    for num_threads in (1, 2, 5):
        for prefetch in (0, 1, 3, 20):
            options = {"num_threads": num_threads, "prefetch": prefetch}
            assert same(expected, list(FolderBatches(folder, 3, CROP, seeded(), **options)))


def test_batches_are_begun_ahead(folder: ImageFolder, monkeypatch):
    begun: list[Path] = []
    each = threading.Semaphore(0)

    def counted(path: Path):
        begun.append(path)
        each.release()
        return decode_image(path)

    monkeypatch.setattr("growthring.data.folder_batches.decode_image", counted)
    stream = FolderBatches(folder, 2, CROP, seeded(), prefetch=2)
    loop = iter(stream)
    next(loop)
    for _ in range(6):
        assert each.acquire(timeout=HANGS)
    assert len(begun) == 6  # the one that was asked for and two more
    assert stream.position == 2 and stream.state_dict()["position"] == 2


def decoders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "growthring-decode" in thread.name]


def test_threads_end_with_the_loop(folder: ImageFolder):
    stream = FolderBatches(folder, 2, CROP, seeded())
    loop = iter(stream)
    next(loop)
    assert decoders()
    loop.close()
    list(stream)
    for thread in decoders():
        thread.join(HANGS)
    assert not decoders()


def test_a_corrupt_image_is_named_in_its_own_batch(folder: ImageFolder):
    expected = list(FolderBatches(folder, 2, CROP, seeded()))
    victim = Path(folder.paths[int(expected[3][1][1])])
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) // 2])
    stream = FolderBatches(folder, 2, CROP, seeded())
    found = []
    with pytest.raises(DataError, match=f"{victim.parent.name}/image.png: not an image"):
        for batch in stream:
            found.append(batch)
    assert len(found) == 3 and stream.position == 6
    victim.write_bytes(whole)  # repaired, the epoch goes on as if nothing had been
    assert same(found + list(stream), expected)
    assert stream.epoch == 1


@pytest.mark.parametrize(("mode", "suffix"), [("L", ".jpg"), ("CMYK", ".jpg"), ("RGBA", ".png")])
def test_other_modes_have_three_channels(mode: str, suffix: str, tmp_path: Path):
    write_images(tmp_path, 3, mode, suffix)
    ((images, _),) = FolderBatches(ImageFolder.scan(tmp_path), 3, CROP, seeded())
    assert images.shape == (3, 3, 8, 8)


def test_the_imagenet_layout_and_sizes(tmp_path: Path):
    for name in ("train/n01/a.JPEG", "train/n02/b.JPEG", "val/n02/c.JPEG"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.effect_mandelbrot((320, 240), (-2, -1, 1, 1), 50).save(tmp_path / name, "JPEG")
    train, val = ImageFolder.splits(tmp_path)
    ((images, labels),) = FolderBatches(train, 2, Crop(), seeded())
    assert images.shape == (2, 3, 224, 224) and sorted(labels.tolist()) == [0, 1]
    ((images, labels),) = FolderBatches(val, 2, Crop(), None)
    assert images.shape == (1, 3, 224, 224) and labels.tolist() == [1]


@pytest.mark.parametrize("options", [{"num_threads": 0}, {"prefetch": -1}])
def test_what_cannot_be_is_refused(folder: ImageFolder, options):
    with pytest.raises(InputError, match="needed are at least 1 and 0"):
        FolderBatches(folder, 2, CROP, None, **options)
