"""Classification: images and their classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from growthring.data import (
    NAMES,
    Augmentation,
    Batches,
    BatchStream,
    Crop,
    FolderBatches,
    ImageFolder,
    load,
)
from growthring.data.batch import Stream
from growthring.errors import InputError
from growthring.methods.base import Loss
from growthring.runs.metrics import ACCURACY, LOSS
from growthring.train.card import Card
from growthring.train.growing_data import Labelled, by_arrival, names_of, renamed
from growthring.train.measure import predictions
from growthring.train.recipe import Recipe
from growthring.train.tasks.base import Place, Streams, Task
from growthring.train.trial import check_labels

# A huge batch_size must not put the whole test set through the model at once.
_LARGEST_TEST_BATCH = 4096
_NO_ROOT = "imagenet is read from folders: pass --data, with train/ and val/ in it."


class Classification(Task):
    """Images and their classes; `input_shape` is (channels, height, width)."""

    name = "classification"
    data = (*NAMES, "imagenet")
    metrics = (ACCURACY, LOSS)

    def example(self, recipe: Recipe, count: int = 2) -> Tensor:
        """Black images."""
        return torch.zeros(count, *recipe.input_shape)

    def loss(self, label_smoothing: float) -> Loss:
        """The cross entropy."""
        return ClassCrossEntropy(label_smoothing=label_smoothing)

    def check(self, model: nn.Module, example: Any, streams: Iterable[Stream | None]) -> None:
        """As many outputs as there are classes."""
        check_labels(model, (example, None), streams)

    def streams(self, recipe: Recipe, generator: torch.Generator, place: Place) -> Streams:
        """The recipe's data as batches."""
        if recipe.data == "imagenet":
            return _imagenet(recipe, generator, place)
        images, test_images = (
            by_arrival(part, recipe) for part in load(recipe.data, place.root, place.download)
        )
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
            Batches(images, recipe.batch_size, augmentation, generator, device=place.device),
            Batches(test_images, size, augmentation, None, device=place.device),
        )

    def test_stream(
        self, card: Card, place: Place, batch_size: int, files: Mapping[str, str]
    ) -> BatchStream:
        """The test images of a card, prepared as it says."""
        preprocessing = card.preprocessing
        if card.data is None or preprocessing is None:
            raise InputError(
                "the model was trained on batches of your own program, so how its data is read and prepared is not "
                "known here. Give --recipe with a recipe that names the data; or evaluate it in Python "
                "(growthring.load gives the model)."
            )
        if card.data == "imagenet":
            if place.root is None:
                raise InputError(_NO_ROOT)
            folder = _as_trained(card, ImageFolder.splits(place.root)[1])
            _check_classes(card, folder.classes, folder.name)
            return FolderBatches(folder, batch_size, preprocessing.crop, None, device=place.device)
        images = _as_trained(card, load(card.data, place.root, place.download)[1])
        if preprocessing.resizing == "area":
            images = images.resize(preprocessing.size[0])
        shape = tuple(images.images.shape[1:])
        if shape != card.input_shape:
            raise InputError(
                f"the images of '{images.name}' are {_size(shape)}, the model takes {_size(card.input_shape)} "
                f"(it was trained on '{card.data}')."
            )
        _check_classes(card, images.classes, images.name)
        return Batches(images, batch_size, preprocessing.augmentation, None, device=place.device)


class ClassCrossEntropy(nn.CrossEntropyLoss):
    """torch's, of outputs that are the logits or have them as `.logits`."""

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        """A mean over the batch."""
        return super().forward(predictions(outputs), targets)


def _imagenet(recipe: Recipe, generator: torch.Generator, place: Place) -> Streams:
    if place.root is None:
        raise InputError(_NO_ROOT)
    train, test = (by_arrival(part, recipe) for part in ImageFolder.splits(place.root))
    side = recipe.input_shape[-1]
    crop = Crop(size=side, resize=round(side * 256 / 224), mirror=recipe.mirror)
    return Streams(
        FolderBatches(train, recipe.batch_size, crop, generator, device=place.device),
        FolderBatches(test, recipe.batch_size, crop, None, device=place.device),
    )


def _as_trained(card: Card, data: Labelled) -> Labelled:
    """The data with its classes in the order in which they came in training, if it has the same ones."""
    names = card.classes if card.by_arrival else None
    has_others = names is None or sorted(names) != sorted(names_of(data))
    return data if names is None or has_others else renamed(data, names)


def _check_classes(card: Card, found: tuple[str, ...] | None, name: str) -> None:
    """Refuses data whose labels mean something else."""
    if card.classes is None or found is None or card.classes == found:
        return
    pairs = enumerate(zip(card.classes, found, strict=False))
    label = next((i for i, (a, b) in pairs if a != b), min(len(card.classes), len(found)))
    words = [repr(c[label]) if label < len(c) else "no class" for c in (card.classes, found)]
    raise InputError(
        f"'{name}' has {len(found)} classes, the model was trained on {len(card.classes)}: label {label} is "
        f"{words[1]} here and {words[0]} there. Evaluate on data with the same classes."
    )


def _size(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
