"""Batches of images in memory: chosen and augmented as bytes, turned to floats once per batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from growthring.data.augmentation import Augmentation
from growthring.data.batch import Batch
from growthring.data.images import ImageData
from growthring.data.stream import AugmentedStream, Prepare


class Batches(AugmentedStream):
    """Epochs of (images float32 (b, c, h, w), labels int64 (b,)), in plainly contiguous NCHW.

    With a generator: reshuffled every epoch, shifted and mirrored as `augmentation` says. With
    `generator=None`: in the order of the data, normalised only.

    >>> from growthring.data import load
    >>> train, test = load("digits")
    >>> augmentation = Augmentation.of(train, shift=1)
    >>> batches = Batches(train, 128, augmentation, torch.Generator().manual_seed(0))
    >>> [len(labels) for images, labels in batches][-2:], len(batches), batches.epoch
    ([128, 17], 11, 1)
    >>> evaluation = Batches(test, 500, augmentation, generator=None)
    >>> images, labels = next(iter(evaluation))
    >>> images.shape, images.dtype, bool((labels == test.labels).all())
    (torch.Size([500, 1, 8, 8]), torch.float32, True)

    A loop that was left is continued, also in another process:

    >>> images, labels = next(iter(batches))
    >>> state = batches.state_dict()
    >>> again = Batches(train, 128, augmentation, torch.Generator())
    >>> again.load_state_dict(state)
    >>> all(torch.equal(a, b) for (a, _), (b, _) in zip(batches, again))
    True

    Args:
        data: the images.
        batch_size: examples per batch; the last one may be smaller.
        augmentation: shift, mirror and normalisation.
        generator: on the CPU. One seed is drawn from it, for a generator of the stream's own.
        drop_last: leave out a last batch that is smaller.
        device: where the batches go.
    """

    def __init__(
        self,
        data: ImageData,
        batch_size: int,
        augmentation: Augmentation,
        generator: torch.Generator | None,
        *,
        drop_last: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        augmentation.check(data)
        super().__init__(len(data), batch_size, generator, drop_last)
        self.data = data
        self.augmentation = augmentation
        self.device = torch.device("cpu" if device is None else device)

    def _preparing(self) -> AbstractContextManager[Prepare]:
        return nullcontext(self._prepare)

    def _prepare(self, indices: Tensor) -> Callable[[], Batch]:
        moves = None
        if self._generator is not None:
            moves = self.augmentation.draw(len(indices), self._generator)
            chosen = self._chosen(len(indices))
            moves = moves if chosen is None else self.augmentation.only(chosen, moves)

        def finish() -> Batch:
            images = self.data.images.index_select(0, indices)
            if moves is not None:
                images = self.augmentation.apply(images, moves)
            labels = self.data.labels.index_select(0, indices)
            images = self.augmentation.normalise(images.to(self.device))
            return images, labels.to(self.device)

        return finish
