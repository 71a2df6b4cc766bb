"""Image files to RGB, with pillow, which is needed for nothing else."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from growthring.data.errors import DataError
from growthring.files.foreign import open_plain

if TYPE_CHECKING:
    from PIL.Image import Image

# Of the suffixes that are looked for: pillow goes by the content, and would hand PostScript to another program.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
_MOST_PIXELS = 89_478_485  # where pillow warns of a bomb


def pillow() -> ModuleType:
    """The module PIL.Image, or an error that says how to get it."""
    try:
        import PIL.Image
    except ImportError as error:
        raise DataError(
            "reading image files needs pillow, which is not installed: pip install growthring[images]"
        ) from error
    return PIL.Image


def decode_image(path: Path) -> Image:
    """Read an image file whole and as RGB: grey, CMYK, palettes converted, transparency dropped."""
    module = pillow()
    try:
        module.init()  # else only the most common formats are there
        formats = [name for name in FORMATS if name in module.OPEN]
        with open_plain(path) as file, module.open(file, formats=formats) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise ValueError(
                    f"{image.width}×{image.height} pixels are more than {_MOST_PIXELS:,}"
                )
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
