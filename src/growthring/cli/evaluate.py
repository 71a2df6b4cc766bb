"""growthring eval: loss and accuracy of a run, or of an exported file, on its test data."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from growthring.checkpoint import load_weights, weights_metadata
from growthring.checkpoint.jsontext import dumps
from growthring.cli.common import Commands, add_data, add_recipe, recipe_of
from growthring.cli.models import load_model
from growthring.errors import InputError
from growthring.files.foreign import shown
from growthring.runs import RunFolder
from growthring.train import Card, Recipe, how_to_resume
from growthring.train.card import card_of
from growthring.train.config import read_config
from growthring.train.evaluation import card_of_recipe, evaluate_card, files_beside
from growthring.train.loading import build, filled
from growthring.train.setup import find_device
from growthring.train.tasks import task_of

_EVAL = """\
Evaluates the final weights of a run, or a file of `growthring export`, on the test images of the data that they
were trained on, and prints loss and accuracy: the same as at the end of the run.

What the model is and what its images go through is in the file. Models of growthring.zoo are made from that; other
code runs only if you name it, with --recipe or --model. A safetensors file of elsewhere needs --recipe, which says
all of it.

examples:
  growthring eval runs/r20 --data ~/data
  growthring eval model.safetensors --data ~/data --json
  growthring eval model.safetensors --recipe my_file.py:my_recipe --data ~/data
  growthring eval model.safetensors --model my_models.py:MyNet --data ~/data
"""


def add(commands: Commands) -> None:
    """Adds `growthring eval`."""
    parser = commands.add_parser(
        "eval",
        help="evaluate a run or an exported file on its test data",
        description=_EVAL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="RUN|FILE")
    add_data(parser)
    add_recipe(parser, is_required=False)
    parser.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help="makes the model, called with the file's options; in a module or file.py",
    )
    parser.add_argument(
        "--device", default=None, help="cpu, cuda, ... (default: cuda if there is one)"
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="images at a time (default: as in the training)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.batch_size is not None and arguments.batch_size < 1:
        raise InputError(f"--batch-size {arguments.batch_size}: it is at least 1.")
    if arguments.settings and arguments.recipe is None:
        raise InputError("--set changes a setting of --recipe.")
    device = find_device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    file, data = _place(arguments)
    where = f"'{file}'"
    card, weights = card_of(weights_metadata(file), where), load_weights(file)
    recipe = None if arguments.recipe is None else recipe_of(arguments)
    if recipe is not None and (card is None or card.data is None or card.preprocessing is None):
        card = card_of_recipe(recipe, data, arguments.download)
    if card is None:
        raise InputError(
            f"{where} has no card of growthring in its metadata, so what its model is and what its images go "
            "through is not known: it was not written by `growthring export`, or by one of before. Give --recipe "
            "with the recipe that it was trained with."
        )
    if card.fading:
        text = (
            f"{where} was exported while norms were fading in: the run's model gave other outputs."
        )
        print(shown(f"growthring: warning: {text}"), file=sys.stderr)
    model = _model(arguments.model, recipe, card, weights, where)
    found = evaluate_card(
        model,
        card,
        data,
        device=device,
        batch_size=arguments.batch_size,
        download=arguments.download,
        files=files_beside(file, card),
        task=None if recipe is None else task_of(recipe),
    )
    if arguments.json:
        known = {"file": str(file), "model": card.model, "data": card.data}
        reported = {"reported_accuracy": card.test_accuracy, "reported_loss": card.test_loss}
        print(dumps({**known, **asdict(found), **reported}))
        return
    accuracy = "" if found.test_accuracy is None else f"test accuracy {found.test_accuracy:.2%}, "
    print(
        shown(f"{file}: {accuracy}test loss {found.test_loss:.4f} on {found.num_examples:,} images")
    )
    if card.test_accuracy is not None:
        is_same = found.test_accuracy == card.test_accuracy
        told = f"the run reported {card.test_accuracy:.2%}"
        print(f"{told}, the same" if is_same else told)


def _place(arguments: argparse.Namespace) -> tuple[Path, Path | None]:
    """The file of the weights, and where the data is: a run knows."""
    path = Path(arguments.file)
    data = None if arguments.data is None else Path(arguments.data).expanduser()
    if not path.is_dir():
        return path, data
    run = RunFolder(path)
    source = read_config(path).source
    if not run.is_finished:
        raise InputError(
            f"'{path}' is not finished. Go on with `{how_to_resume(path, source)}`; its metrics.jsonl has the "
            "accuracy after each epoch."
        )
    if data is None and source.get("data") is not None:
        data = Path(source["data"])
    return run.weights_file, data


def _model(
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
