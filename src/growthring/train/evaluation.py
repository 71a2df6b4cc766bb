"""Loss and accuracy of trained weights on a data set, measured as the trainer does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from growthring.data import Batches, BatchStream, FolderBatches, ImageFolder, load as load_data
from growthring.data.text import TEXTS, load_text
from growthring.errors import InputError
from growthring.train.card import Card, describe_training
from growthring.train.measure import arithmetic_of, evaluate
from growthring.train.recipe import Recipe
from growthring.train.setup import make_streams
from growthring.train.task import TokenCrossEntropy, held_out_windows, task_of
from growthring.train.trial import check_labels, check_tokens


@dataclass(frozen=True)
class Evaluation:
    """What a model came to on the test data.

    Attributes:
        num_examples: how many there were.
        test_loss: mean of the cross entropy.
        test_accuracy: 0 to 1; None where outputs are no classes.
    """

    num_examples: int
    test_loss: float
    test_accuracy: float | None


def card_of_recipe(recipe: Recipe, root: Path | None, download: bool = False) -> Card:
    """The card of what a recipe trains; the preprocessing is measured on its training data."""
    streams = make_streams(
        recipe, root, torch.Generator().manual_seed(0), torch.device("cpu"), download
    )
    return describe_training(recipe, streams.test, task_of(recipe).example(recipe, 1))


def evaluate_card(
    model: nn.Module,
    card: Card,
    root: Path | None = None,
    *,
    device: torch.device | str = "cpu",
    batch_size: int | None = None,
    download: bool = False,
) -> Evaluation:
    """Evaluates a model on the test data of its card.

    Args:
        model: with its weights, on the CPU; it is moved to the device.
        card: says which data, and what images go through.
        root: where the data is.
        device: where to evaluate.
        batch_size: by default that of the training, which gives the same numbers to the last digit.
        download: fetch data that is missing.

    Raises:
        GrowthError: the data cannot be read, or is not such as the model was trained on.
    """
    device, size = torch.device(device), batch_size or card.batch_size
    smoothing = card.label_smoothing or 0.0
    if card.data in TEXTS:
        (context,) = card.input_shape
        batches: BatchStream = held_out_windows(
            load_text(card.data, root)[1], size, context, device
        )
        check_tokens(model, torch.zeros(2, context, dtype=torch.int64), 256)
        loss: nn.Module = TokenCrossEntropy(smoothing)
    else:
        batches = _test_batches(card, root, size, device, download)
        check_labels(model, (torch.zeros(2, *card.input_shape), None), [batches])
        loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
    found = evaluate(
        model.to(device), batches, loss, lambda: arithmetic_of(card.precision, device), device
    )
    return Evaluation(batches.num_examples, *found)


def _test_batches(
    card: Card, root: Path | None, batch_size: int, device: torch.device, download: bool
) -> BatchStream:
    preprocessing = card.preprocessing
    if card.data is None or preprocessing is None:
        raise InputError(
            "the model was trained on batches of your own program, so how its data is read and prepared is not "
            "known here. Give --recipe with a recipe that names the data; or evaluate it in Python "
            "(growthring.load gives the model)."
        )
    if card.data == "imagenet":
        if root is None:
            raise InputError(
                "imagenet is read from folders: pass --data, with train/ and val/ in it."
            )
        _, folder = ImageFolder.splits(root)
        _check_classes(card, folder.classes, folder.name)
        return FolderBatches(folder, batch_size, preprocessing.crop, None, device=device)
    _, images = load_data(card.data, root, download)
    if preprocessing.resizing == "area":
        images = images.resize(preprocessing.size[0])
    shape = tuple(images.images.shape[1:])
    if shape != card.input_shape:
        raise InputError(
            f"the images of '{images.name}' are {_size(shape)}, the model takes {_size(card.input_shape)} "
            f"(it was trained on '{card.data}')."
        )
    _check_classes(card, images.classes, images.name)
    return Batches(images, batch_size, preprocessing.augmentation, None, device=device)


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
