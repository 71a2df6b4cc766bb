"""Image files to RGB, with pillow, which is needed for nothing else."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from growthring.data.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image


def pillow() -> ModuleType:
    """The module PIL.Image, or an error that says how to get it."""
    try:
        import PIL.Image
    except ImportError as error:
        raise DataError(
            "reading image files needs pillow, which is not installed: pip install growthring[images]"
        ) from error
    return PIL.Image


def decode(path: Path) -> Image:
    """Read an image file whole and as RGB: grey, CMYK, palettes converted, transparency dropped."""
    module = pillow()
    try:
        with module.open(path) as image:
            if image.mode.startswith("I;16"):  # pillow would clip 16 bits of grey to 255
                high = np.asarray(image).astype(np.uint16) >> 8
                return module.fromarray(high.astype(np.uint8)).convert("RGB")
            if image.mode in ("I", "F"):
                raise ValueError(f"pixels of mode {image.mode} have no known range")
            if "transparency" in image.info:  # pillow warns where a palette has it
                return image.convert("RGBA").convert("RGB")
            return image.convert("RGB")
    except Exception as error:  # a damaged file fails in any way: OSError, SyntaxError, ...
        raise DataError(f"{path}: not an image that can be read: {error}") from error
