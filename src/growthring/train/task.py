"""Task: what a recipe's data is, what its model is called with, and what its loss is.

`task_of` is the one place that tells tasks apart; everything else asks the task.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from growthring.data import (
    Augmentation,
    Batches,
    Crop,
    FolderBatches,
    ImageFolder,
    TextBatches,
    TextData,
    load,
)
from growthring.data.batch import Stream
from growthring.data.stream import BatchStream
from growthring.data.text import TEXTS, load_text
from growthring.errors import InputError
from growthring.methods.base import Loss
from growthring.train.recipe import Recipe
from growthring.train.trial import check_labels, check_tokens

_LARGEST_TEST_BATCH = (
    4096  # a huge batch_size must not put the whole test set through the model at once
)
_TEST_WINDOWS = 1000  # of a text: enough for a loss of three digits


@dataclass
class Streams:
    """Batches for training, in random order, and for testing."""

    train: BatchStream
    test: BatchStream


class Task(Protocol):
    """What differs between kinds of data."""

    def example(self, recipe: Recipe, count: int = 2) -> Tensor:
        """Inputs of the right shape and type, for plans and costs."""

    def loss(self, label_smoothing: float) -> Loss:
        """`loss(outputs, targets)`, a mean over the batch."""

    def streams(
        self,
        recipe: Recipe,
        root: Path | None,
        generator: torch.Generator,
        device: torch.device,
        download: bool = False,
    ) -> Streams:
        """The data as batches."""

    def check(self, model: nn.Module, example: Tensor, streams: Iterable[Stream | None]) -> None:
        """Refuses a model whose outputs do not fit the data."""


def task_of(recipe: Recipe) -> Task:
    """The task of a recipe, by its data.

    >>> from growthring.zoo.gpt import GPT
    >>> recipe = Recipe("mine", GPT, data="python", input_shape=(64,))
    >>> task_of(recipe).example(recipe).dtype
    torch.int64
    """
    return TextTask() if recipe.data in TEXTS else ImageTask()


class ImageTask:
    """Images and their classes."""

    def example(self, recipe: Recipe, count: int = 2) -> Tensor:
        """Black images."""
        return torch.zeros(count, *recipe.input_shape)

    def loss(self, label_smoothing: float) -> Loss:
        """The cross entropy."""
        return nn.CrossEntropyLoss(label_smoothing=label_smoothing)

    def check(self, model: nn.Module, example: Tensor, streams: Iterable[Stream | None]) -> None:
        """As many outputs as there are classes."""
        check_labels(model, (example, None), streams)

    def streams(
        self,
        recipe: Recipe,
        root: Path | None,
        generator: torch.Generator,
        device: torch.device,
        download: bool = False,
    ) -> Streams:
        """The recipe's data as batches."""
        if recipe.data == "imagenet":
            return _imagenet(recipe, root, generator, device)
        images, test_images = load(recipe.data, root, download)
        if recipe.num_train is not None:
            images = images.subset(recipe.num_train)
        if recipe.side is not None:
            images, test_images = images.resize(recipe.side), test_images.resize(recipe.side)
        shape = tuple(images.images.shape[1:])
        if shape != tuple(recipe.input_shape):
            raise InputError(
                f"'{recipe.data}' has images of shape {shape}, the recipe expects {recipe.input_shape}."
            )
        labels = images.labels.unique()
        if len(labels) < 2:
            raise InputError(
                f"all {len(images)} training images of '{images.name}' have the label {int(labels[0])}: there is "
                "nothing to tell apart. Take more of them (num_train), or mix their order."
            )
        augmentation = Augmentation.of(images, shift=recipe.shift, mirror=recipe.mirror)
        size = min(max(recipe.batch_size, 500), _LARGEST_TEST_BATCH)
        return Streams(
            Batches(images, recipe.batch_size, augmentation, generator, device=device),
            Batches(test_images, size, augmentation, None, device=device),
        )


def _imagenet(
    recipe: Recipe, root: Path | None, generator: torch.Generator, device: torch.device
) -> Streams:
    if root is None:
        raise InputError("imagenet is read from folders: pass --data, with train/ and val/ in it.")
    train, test = ImageFolder.splits(root)
    side = recipe.input_shape[-1]
    crop = Crop(size=side, resize=round(side * 256 / 224), mirror=recipe.mirror)
    return Streams(
        FolderBatches(train, recipe.batch_size, crop, generator, device=device),
        FolderBatches(test, recipe.batch_size, crop, None, device=device),
    )


class TextTask:
    """The bytes of a text, and the one that follows each; `input_shape` is (context,)."""

    def example(self, recipe: Recipe, count: int = 2) -> Tensor:
        """Windows of zeros."""
        return torch.zeros(count, *recipe.input_shape, dtype=torch.int64)

    def loss(self, label_smoothing: float) -> Loss:
        """The cross entropy of each next byte."""
        return TokenCrossEntropy(label_smoothing)

    def check(self, model: nn.Module, example: Tensor, streams: Iterable[Stream | None]) -> None:
        """A logit for each byte, at each place."""
        check_tokens(model, example, 256)

    def streams(
        self,
        recipe: Recipe,
        root: Path | None,
        generator: torch.Generator,
        device: torch.device,
        download: bool = False,
    ) -> Streams:
        """Windows of the text; an epoch has `num_train` of them, and the next one others."""
        if len(recipe.input_shape) != 1:
            raise InputError(
                f"input_shape={recipe.input_shape}: of a text it is the length of a window, such as (64,)."
            )
        train, test = load_text(recipe.data, root)
        (context,) = recipe.input_shape
        size, per_epoch = recipe.batch_size, recipe.num_train
        batches = TextBatches(train, size, context, generator, per_epoch=per_epoch, device=device)
        return Streams(batches, held_out_windows(test, max(size, 50), context, device))


def held_out_windows(
    text: TextData, batch_size: int, context: int, device: torch.device
) -> TextBatches:
    """What a model of a text is judged by: windows from all over what was held out, in order."""
    return TextBatches(text, batch_size, context, None, per_epoch=_TEST_WINDOWS, device=device)


class TokenCrossEntropy(nn.Module):
    """The mean cross entropy of outputs (b, t, v) for targets (b, t).

    >>> TokenCrossEntropy()(torch.zeros(1, 2, 4), torch.tensor([[1, 3]])).exp().round().item()
    4.0
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """A mean over all places."""
        return nn.functional.cross_entropy(
            outputs.flatten(0, -2), targets.flatten(), label_smoothing=self.label_smoothing
        )
