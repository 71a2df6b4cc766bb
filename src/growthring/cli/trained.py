"""What the commands that use trained weights share: the file, its card, and its model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from growthring.checkpoint import load_weights, weights_metadata
from growthring.checkpoint.jsontext import dumps
from growthring.cli.common import add_recipe, recipe_of
from growthring.cli.models import load_model
from growthring.errors import InputError
from growthring.files.foreign import shown
from growthring.runs import RunFolder
from growthring.train import Card, Recipe, how_to_resume
from growthring.train.card import card_of
from growthring.train.config import read_config
from growthring.train.evaluation import files_beside
from growthring.train.loading import build, filled


@dataclass(frozen=True)
class Place:
    """The file of the weights, and where the data is: a run knows."""

    file: Path
    data: Path | None


@dataclass(frozen=True)
class Trained:
    """A trained model.

    Attributes:
        model: in eval mode, on the CPU.
        card: what it is.
        files: what it means nothing without, by name.
    """

    model: nn.Module
    card: Card
    files: Mapping[str, str]


def place_of(given: str, data: str | None = None) -> Place:
    """Where the weights of a run, or of a file, are.

    Raises:
        InputError: the run is not finished.
    """
    path = Path(given)
    root = None if data is None else Path(data).expanduser()
    if not path.is_dir():
        return Place(path, root)
    run = RunFolder(path)
    source = read_config(path).source
    if not run.is_finished:
        raise InputError(
            f"'{path}' is not finished. Go on with `{how_to_resume(path, source)}`; its metrics.jsonl has the "
            "accuracy after each epoch."
        )
    if root is None and source.get("data") is not None:
        root = Path(source["data"])
    return Place(run.weights_file, root)


def add_model(parser: argparse.ArgumentParser) -> None:
    """--recipe, --set and --model: whose code makes the model."""
    add_recipe(parser, is_required=False)
    parser.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help="makes the model, called with the file's options; in a module or file.py",
    )


def named_recipe(arguments: argparse.Namespace) -> Recipe | None:
    """The recipe of --recipe, if there is one.

    Raises:
        InputError: there are settings, and no recipe that they change.
    """
    if arguments.settings and arguments.recipe is None:
        raise InputError("--set changes a setting of --recipe.")
    return None if arguments.recipe is None else recipe_of(arguments)


def open_trained(given: str, named: str | None = None, recipe: Recipe | None = None) -> Trained:
    """The model of a run or of an exported file, made by the code that the user names, or by growthring's own.

    Raises:
        InputError: the run is not finished, the file has no card, or its model is not growthring's own.
    """
    file = place_of(given).file
    where = f"'{file}'"
    card, weights = card_of(weights_metadata(file), where), load_weights(file)
    if card is None:
        raise InputError(
            f"{where} has no card of growthring in its metadata, so what its model is, is not known: it was not "
            "written by `growthring export`, or by one of before."
        )
    warn_of_fading(card, where)
    model = model_of(named, recipe, card, weights, where)
    return Trained(model, card, files_beside(file, card))


def warn_of_fading(card: Card, where: str) -> None:
    """Says that weights were exported in the middle of a fade."""
    if card.fading:
        text = (
            f"{where} was exported while norms were fading in: the run's model gave other outputs."
        )
        print(shown(f"growthring: warning: {text}"), file=sys.stderr)


def model_of(
    named: str | None, recipe: Recipe | None, card: Card, weights: dict[str, Tensor], where: str
) -> nn.Module:
    """The model by the code that the user names, or by growthring's own."""
    if named is not None:
        options = [f"{key}={value!r}" for key, value in card.model_options.items()]
        return filled(load_model(named, options), weights, card, where)
    if recipe is None:
        return build(card, weights, where)
    return build(card, weights, where, recipe.model, _options(recipe, card))


def _options(recipe: Recipe, card: Card) -> dict[str, Any]:
    """The card's options; what JSON cannot hold of them (a class, say) is the recipe's."""
    stored = recipe.as_dict()["model_options"]
    return {
        key: recipe.model_options[key] if stored.get(key, ...) == value else value
        for key, value in json.loads(dumps(dict(card.model_options))).items()
    }
