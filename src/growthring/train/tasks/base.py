"""Task: what differs between kinds of data: classes, languages, translations, and yours.

A task says what the data is, what a model is called with, what its loss is, what it is judged by and what there is
to show. Recipes, plans, training, comparisons and reports ask it, and know of no kind of data themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from growthring.data import LoaderBatches
from growthring.data.batch import Stream
from growthring.data.stream import BatchStream
from growthring.errors import InputError
from growthring.methods.base import Loss
from growthring.runs.metrics import LOSS, Metric
from growthring.train.card import Card
from growthring.train.recipe import Recipe


@dataclass
class Streams:
    """Batches for training, in random order, and for testing."""

    train: BatchStream
    test: BatchStream


@dataclass(frozen=True)
class Place:
    """Where data is read, and where its batches go.

    Attributes:
        root: where the data is, as the user says it.
        device: where batches go.
        download: fetch what is missing.
        say: told what takes long, a line at a time.
    """

    root: Path | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    download: bool = False
    say: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class Outcome:
    """What is measured once, when a run is finished.

    Attributes:
        scores: by the keys of metrics.
        samples: what the model does, as rows of (title, text), to look at.
        notes: how it was measured.
    """

    scores: Mapping[str, float] = field(default_factory=dict)
    samples: tuple[tuple[tuple[str, str], ...], ...] = ()
    notes: tuple[str, ...] = ()


class Task(ABC):
    """What a recipe trains a model to do. Give your own with `Recipe(task=MyTask())`.

    Attributes:
        name: in messages.
        data: names of the data that it reads, for recipes that name their data only.
        metrics: what results are judged by, the most important first.
        options: settings of its own and their defaults, which a recipe changes with `task_options`.
    """

    name: ClassVar[str]
    data: ClassVar[tuple[str, ...]] = ()
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS,)
    options: ClassVar[Mapping[str, Any]] = {}

    # Before training.

    @abstractmethod
    def example(self, recipe: Recipe, count: int = 2) -> Any:
        """Inputs of the right shapes and types, for plans and costs."""

    @abstractmethod
    def streams(self, recipe: Recipe, generator: torch.Generator, place: Place) -> Streams:
        """The data as batches."""

    @abstractmethod
    def loss(self, label_smoothing: float) -> Loss:
        """`loss(outputs, targets)`, a mean over the batch."""

    def check(  # noqa: B027 - most tasks have something to check, none must
        self, model: nn.Module, example: Any, streams: Iterable[Stream | None]
    ) -> None:
        """Refuses a model whose outputs do not fit the data, before hours are spent on it."""

    def files(self, test: Stream | LoaderBatches | None) -> Mapping[str, str]:
        """Texts by file name that a run keeps beside its weights, as these mean nothing without: a vocabulary."""
        return {}

    # While it goes on, and at its end.

    def test_loss(self, label_smoothing: float) -> Loss:
        """The loss on test data."""
        return self.loss(label_smoothing)

    def scores(self, test_loss: float) -> Mapping[str, float]:
        """Other metrics of an evaluation that follow from its loss."""
        return {}

    def finish(self, model: nn.Module, test: Stream, recipe: Recipe) -> Outcome:
        """What is too long to measure after each epoch; the model is in eval mode, where its batches are."""
        return Outcome()

    # For models that were trained elsewhere.

    def test_stream(
        self, card: Card, place: Place, batch_size: int, files: Mapping[str, str]
    ) -> BatchStream:
        """The test data of a card, as the model was trained for it.

        Raises:
            InputError: the data is not known, or not what the model was trained on.
        """
        raise InputError(
            f"the test data of the task '{self.name}' cannot be found by what a file of weights says. Give "
            "--recipe with the recipe that it was trained with."
        )

    def options_of(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The task's own settings, as a recipe has them.

        Raises:
            InputError: there is no such setting, or it is of another type.
        """
        for key, value in given.items():
            if key not in self.options:
                known = ", ".join(self.options) or "none"
                raise InputError(
                    f"task_options has '{key}'; the settings of the task '{self.name}' are: {known}."
                )
            default = self.options[key]
            kinds = (int, float) if isinstance(default, float) else type(default)
            if default is not None and (
                not isinstance(value, kinds) or isinstance(value, bool) != isinstance(default, bool)
            ):
                raise InputError(
                    f"task_options.{key}={value!r}: needed is {type(default).__name__}, such as {default!r}."
                )
        return {**self.options, **given}
