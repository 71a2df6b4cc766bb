"""The embedded data set: handwritten digits, 8 × 8 (source and licence: LICENSE-digits.txt).

Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, 1998, https://doi.org/10.24432/C50P49.
"""

from __future__ import annotations

import io
from importlib.resources import files

import numpy as np
import torch

from growthring.data.images import ImageData

_TEST_PER_CLASS = 50
_CLASSES = tuple("0123456789")


def load_digits() -> tuple[ImageData, ImageData]:
    """1297 training and 500 test images (n, 1, 8, 8): of each digit the last 50 are for testing.

    The file is ordered by writer, so the test images are mostly by people whom the training set has
    not seen.

    >>> load_digits()
    (ImageData('digits': 1297 images of 1×8×8, 10 classes),
     ImageData('digits': 500 images of 1×8×8, 10 classes))
    """
    content = files("growthring.data").joinpath("digits.npz").read_bytes()
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        images = torch.from_numpy(arrays["images"]).unsqueeze(1)
        labels = torch.from_numpy(arrays["labels"]).long()
    test = torch.zeros(len(labels), dtype=torch.bool)
    for digit in range(10):
        test[(labels == digit).nonzero()[-_TEST_PER_CLASS:, 0]] = True
    return (
        ImageData(images[~test], labels[~test], 10, "digits", _CLASSES),
        ImageData(images[test], labels[test], 10, "digits", _CLASSES),
    )
