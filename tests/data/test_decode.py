import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from growthring.data import Crop, DataError, FolderBatches, ImageFolder
from growthring.data.decode import decode_image
from tests.data.layouts import random_bytes, write_images

PIXELS = random_bytes(9, 7, 3)


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [
        ("RGB", ".png"),
        ("L", ".png"),
        ("1", ".png"),
        ("LA", ".png"),
        ("RGBA", ".png"),
        ("P", ".png"),
        ("CMYK", ".jpg"),
        ("L", ".jpg"),
        ("YCbCr", ".jpg"),
        ("CMYK", ".tif"),
    ],
)
def test_every_mode_becomes_rgb(mode: str, suffix: str, tmp_path: Path):
    path = tmp_path / f"image{suffix}"
    Image.fromarray(PIXELS).convert(mode).save(path)
    image = decode_image(path)
    assert (image.mode, image.size) == ("RGB", (7, 9))
    if mode == "L" and suffix == ".png":
        grey = np.asarray(Image.fromarray(PIXELS).convert("L"))
        assert np.array_equal(np.asarray(image), np.stack([grey] * 3, axis=-1))
    if mode in ("RGB", "RGBA"):
        assert np.array_equal(np.asarray(image), PIXELS)


def test_sixteen_bits_of_grey_are_scaled(tmp_path: Path):
    grey = np.array([[0, 255, 256, 40000, 65535]], dtype=np.uint16)
    Image.fromarray(grey).save(tmp_path / "deep.png")
    assert np.asarray(decode_image(tmp_path / "deep.png"))[0, :, 0].tolist() == [0, 0, 1, 156, 255]


def test_a_transparent_palette_is_read_without_a_warning(tmp_path: Path):
    image = Image.fromarray(PIXELS).convert("P")
    image.save(tmp_path / "p.png", transparency=bytes(range(256)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode_image(tmp_path / "p.png").mode == "RGB"


def test_pixels_without_a_range_are_refused(tmp_path: Path):
    Image.fromarray(np.ones((3, 3), dtype=np.float32)).save(tmp_path / "f.tif")
    with pytest.raises(DataError, match=r"f\.tif: not an image that can be read: pixels of mode F"):
        decode_image(tmp_path / "f.tif")


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".gif", ".webp"])
def test_a_damaged_file_is_named(suffix: str, tmp_path: Path):
    path = tmp_path / f"image{suffix}"
    Image.fromarray(random_bytes(60, 60, 3)).save(path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:10], b"", b"<html>"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"image{suffix}: not an image that can be read"):
            decode_image(path)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"none.png: not an image that can be read: .*No such file"):
        decode_image(tmp_path / "none.png")


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch):
    write_images(tmp_path, 2)
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    folder = ImageFolder.scan(tmp_path)  # needs no pillow
    for use in (lambda: FolderBatches(folder, 1, Crop(), None), lambda: folder.read()):
        with pytest.raises(DataError, match=r"needs pillow, .*: pip install growthring\[images\]"):
            use()
