"""growthring eval: loss and accuracy of a run, or of an exported file, on its test data."""

from __future__ import annotations

import argparse
from dataclasses import asdict

import torch

from growthring.checkpoint import load_weights, weights_metadata
from growthring.checkpoint.jsontext import dumps
from growthring.cli.common import Commands, add_data
from growthring.cli.trained import add_model, model_of, named_recipe, place_of, warn_of_fading
from growthring.errors import InputError
from growthring.files.foreign import shown
from growthring.runs.metrics import ACCURACY, LOSS
from growthring.train.card import card_of
from growthring.train.evaluation import card_of_recipe, evaluate_card, files_beside
from growthring.train.setup import find_device
from growthring.train.tasks import TASKS, task_of

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
    add_model(parser)
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
    recipe = named_recipe(arguments)
    device = find_device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    place = place_of(arguments.file, arguments.data)
    file, data = place.file, place.data
    where = f"'{file}'"
    card, weights = card_of(weights_metadata(file), where), load_weights(file)
    if recipe is not None and (card is None or card.data is None or not card.has_preparation):
        card = card_of_recipe(recipe, data, arguments.download)
    if card is None:
        raise InputError(
            f"{where} has no card of growthring in its metadata, so what its model is and what its images go "
            "through is not known: it was not written by `growthring export`, or by one of before. Give --recipe "
            "with the recipe that it was trained with."
        )
    warn_of_fading(card, where)
    model = model_of(arguments.model, recipe, card, weights, where)
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
    metrics = TASKS[card.task].metrics if card.task in TASKS else (ACCURACY, LOSS)
    if arguments.json:
        known = {"file": str(file), "model": card.model, "data": card.data}
        told_then = {"reported_accuracy": card.test_accuracy, "reported_loss": card.test_loss}
        print(dumps({**known, **asdict(found), **told_then, "reported_scores": card.scores}))
        return
    values = {**vars(found), **found.scores}
    before = {**vars(card), **card.scores}
    told = [m for m in dict.fromkeys((*metrics, LOSS)) if values.get(m.key) is not None]
    said = ", ".join(f"{m.title} {m.text(values[m.key])}" for m in told)
    print(shown(f"{file}: {said} on {found.num_examples:,} examples"))
    reported = [m for m in told if before.get(m.key) is not None]
    if reported:
        first = reported[0]
        is_same = all(values[m.key] == before[m.key] for m in reported)
        words = f"the run reported a {first.title} of {first.text(before[first.key])}"
        print(f"{words}, the same" if is_same else words)
