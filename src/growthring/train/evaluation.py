"""Loss and accuracy of trained weights on a data set, measured as the trainer does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from growthring.data.batch import Stream, first_examples
from growthring.errors import InputError
from growthring.files.foreign import read_plain
from growthring.train.card import Card, describe_training, fingerprint
from growthring.train.measure import arithmetic_of, evaluate
from growthring.train.recipe import Recipe
from growthring.train.setup import make_streams
from growthring.train.tasks import TASKS, Place, Task, task_for, task_of

_MOST = 1 << 28  # bytes of a file beside the weights


@dataclass(frozen=True)
class Evaluation:
    """What a model came to on the test data.

    Attributes:
        num_examples: how many there were.
        test_loss: mean of the cross entropy.
        test_accuracy: 0 to 1; None where outputs are no classes.
        scores: other metrics, by their keys.
    """

    num_examples: int
    test_loss: float
    test_accuracy: float | None
    scores: Mapping[str, float] = field(default_factory=dict)


def card_of_recipe(recipe: Recipe, root: Path | None, download: bool = False) -> Card:
    """The card of what a recipe trains; the preprocessing is measured on its training data."""
    streams = make_streams(
        recipe, root, torch.Generator().manual_seed(0), torch.device("cpu"), download
    )
    task = task_of(recipe)
    return describe_training(
        recipe,
        streams.test,
        task.example(recipe, 1),
        task=task.name,
        files=task.files(streams.test),
    )


def evaluate_card(
    model: nn.Module,
    card: Card,
    root: Path | None = None,
    *,
    device: torch.device | str = "cpu",
    batch_size: int | None = None,
    download: bool = False,
    files: Mapping[str, str] | None = None,
    task: Task | None = None,
) -> Evaluation:
    """Evaluates a model on the test data of its card.

    Args:
        model: with its weights, on the CPU; it is moved to the device.
        card: says which data, and what images go through.
        root: where the data is.
        device: where to evaluate.
        batch_size: by default that of the training, which gives the same numbers to the last digit.
        download: fetch data that is missing.
        files: contents of those that the card names, see `files_beside`.
        task: of the model; by default the card's.

    Raises:
        GrowthError: the data cannot be read, or is not such as the model was trained on.
    """
    place = Place(root, torch.device(device), download)
    task = _task(card) if task is None else task
    batches = task.test_stream(card, place, batch_size or card.batch_size, files or {})
    task.check(model, _example(batches), [batches])
    found = evaluate(
        model.to(place.device),
        batches,
        task.test_loss(card.label_smoothing or 0.0),
        lambda: arithmetic_of(card.precision, place.device),
        place.device,
    )
    return Evaluation(batches.num_examples, *found, dict(task.scores(found[0])))


def files_beside(weights: Path, card: Card) -> dict[str, str]:
    """The files that a card names, from where the weights are: as a run, or an export, has them.

    Raises:
        InputError: one is not there, or belongs to another run.
    """
    found = {}
    for name, expected in card.files.items():
        choices = [weights.with_name(f"{weights.stem}.{name}"), weights.with_name(name)]
        path = next((p for p in choices if Path(name).name == name and p.is_file()), None)
        if path is None:
            raise InputError(
                f"'{weights}' needs its {name}, which is neither '{choices[0]}' nor '{choices[1]}': its numbers "
                "mean nothing without. Copy it from the run's folder."
            )
        try:
            found[name] = read_plain(path, _MOST).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"'{path}' cannot be read: {error}.") from error
        if fingerprint(found[name]) != expected:
            raise InputError(
                f"'{path}' is from another run: the model was trained with one whose fingerprint is {expected}, "
                f"this one has {fingerprint(found[name])}. Take the one of the run's own folder."
            )
    return found


def _task(card: Card) -> Task:
    if card.task is None:  # of before, or of one's own program
        return task_for(card.data)
    if card.task not in TASKS:
        raise InputError(
            f"the model was trained for the task '{card.task}', which is not one of growthring: {', '.join(TASKS)}."
            " Give --recipe with the recipe that it was trained with."
        )
    return TASKS[card.task]


def _example(batches: Stream) -> Any:
    return first_examples(next(iter(batches.fork(0))), 2)[0]
