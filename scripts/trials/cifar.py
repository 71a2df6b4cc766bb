"""CIFAR-10 in its official Python layout, read without running what a pickle says."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

# All that the official batches need; anything else in a pickle is refused.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise ValueError(f"a CIFAR batch has no use for {module}.{name}: not an official file")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def load_cifar10(folder: Path, num_train: int, side: int) -> dict[str, torch.Tensor]:
    """The first `num_train` training images and all test images, averaged down to side × side.

    Returns:
        train_images (n, 3, side, side) and test_images, normalised; train_labels, test_labels.
    """
    batches = [_batch(folder / f"data_batch_{i}") for i in range(1, 6)]
    images = torch.cat([b[0] for b in batches])[:num_train]
    labels = torch.cat([b[1] for b in batches])[:num_train]
    test_images, test_labels = _batch(folder / "test_batch")
    small = [torch.nn.functional.avg_pool2d(i.float(), 32 // side) for i in (images, test_images)]
    mean, std = small[0].mean((0, 2, 3), keepdim=True), small[0].std((0, 2, 3), keepdim=True)
    return {
        "train_images": (small[0] - mean) / std,
        "train_labels": labels,
        "test_images": (small[1] - mean) / std,
        "test_labels": test_labels,
    }


def _batch(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    content = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    data = np.asarray(content[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
    return torch.from_numpy(data.copy()), torch.tensor(content[b"labels"])


def augment(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random shift by up to an eighth of the side, with zeros, and mirror; (n, 3, s, s)."""
    n, _, _, side = images.shape
    pad = side // 8
    padded = torch.nn.functional.pad(images, [pad] * 4)
    shifts = torch.randint(2 * pad + 1, (2, n), generator=generator)
    flip = torch.rand(n, generator=generator) < 0.5
    line = torch.arange(side)
    rows = shifts[0][:, None] + line
    columns = shifts[1][:, None] + torch.where(flip[:, None], line.flip(0), line)
    index = torch.arange(n)[:, None, None]
    return (
        padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]]
        .permute(0, 3, 1, 2)
        .contiguous()
    )
