"""Batches of image files, decoded by threads ahead of the loop.

The random numbers are drawn in the loop's own thread, in the order of the batches, so that order and crops do not
depend on the threads; decoding and resizing leave Python's lock, so threads are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from growthring.data.augmentation import normalise
from growthring.data.batch import Batch
from growthring.data.crop import Crop
from growthring.data.decode import decode_image, pillow
from growthring.data.folder import ImageFolder
from growthring.data.stream import AugmentedStream, Prepare
from growthring.errors import InputError


class FolderBatches(AugmentedStream):
    """Epochs of (images float32 (b, 3, size, size), labels int64 (b,)), in plainly contiguous NCHW.

    With a generator: reshuffled every epoch, random crops. With `generator=None`: in the order of the
    folder, the centre of each image. State, sizes and loops are those of `Batches`.

    Args:
        folder: the files, see `ImageFolder.scan`.
        batch_size: examples per batch; the last one may be smaller.
        crop: sizes, range of the random crops, and normalisation.
        generator: on the CPU. One seed is drawn from it, for a generator of the stream's own.
        drop_last: leave out a last batch that is smaller.
        device: where the batches go.
        num_threads: files that are read at the same time.
        prefetch: batches that are begun before they are asked for.
    """

    _cuts_early = True  # as decoding is what takes long

    def __init__(
        self,
        folder: ImageFolder,
        batch_size: int,
        crop: Crop,
        generator: torch.Generator | None,
        *,
        drop_last: bool = False,
        device: torch.device | str | None = None,
        num_threads: int = 4,
        prefetch: int = 2,
    ) -> None:
        pillow()  # so that a missing one shows now, not in the first batch
        if num_threads < 1 or prefetch < 0:
            raise InputError(
                f"num_threads={num_threads}, prefetch={prefetch}: needed are at least 1 and 0."
            )
        super().__init__(len(folder), batch_size, generator, drop_last)
        self.folder = folder
        self.crop = crop
        self.device = torch.device("cpu" if device is None else device)
        self._num_threads = num_threads
        self._prefetch = prefetch

    @contextmanager
    def _preparing(self) -> Iterator[Prepare]:
        pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="growthring-decode")
        try:
            yield partial(self._prepare, pool)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, pool: ThreadPoolExecutor, indices: Tensor) -> Callable[[], Batch]:
        numbers: list[list[float] | None] = [None] * len(indices)
        if self._generator is not None:
            numbers = self.crop.draw(len(indices), self._generator).tolist()
            chosen = self._chosen(len(indices))
            if chosen is not None:
                pairs = zip(numbers, chosen.tolist(), strict=True)
                numbers = [row if is_chosen else None for row, is_chosen in pairs]
        if self._part is not None:
            kept = self._part.of(len(indices))
            numbers, indices = numbers[kept], indices[kept]
        paths = [self.folder.paths[i] for i in indices.tolist()]
        futures = [pool.submit(self._pixels, *work) for work in zip(paths, numbers, strict=True)]

        def finish() -> Batch:
            none = np.empty((0, self.crop.size, self.crop.size, 3), dtype=np.uint8)
            pixels = np.concatenate([none, *(future.result()[None] for future in futures)])
            images = torch.from_numpy(pixels).to(self.device).permute(0, 3, 1, 2)
            labels = self.folder.labels.index_select(0, indices)
            return normalise(images, self.crop.mean, self.crop.std), labels.to(self.device)

        return finish

    def _pixels(self, path: str, numbers: list[float] | None) -> NDArray[np.uint8]:
        """The bytes (size, size, 3) of one file."""
        image = decode_image(Path(path))
        cut = self.crop.evaluate(image) if numbers is None else self.crop.train(image, numbers)
        return np.asarray(cut, dtype=np.uint8)
