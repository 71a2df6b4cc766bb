"""growthring train: a recipe by growing, or at full size; or a run that was stopped."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from growthring.cli.common import Commands, add_data, add_recipe, recipe_of
from growthring.cli.trust import is_file, recipe_source, trusted_recipe
from growthring.errors import InputError
from growthring.files.foreign import shown
from growthring.runs.samples import sample_lines
from growthring.train import (
    RECIPES,
    Progress,
    Recipe,
    Silence,
    Trainer,
    change,
    load_recipe,
    open_run,
    parse_settings,
)
from growthring.train.choices import MODES
from growthring.train.config import read_config
from growthring.train.processes import Processes, joined, local_device
from growthring.train.setup import check_data, find_device

_TRAIN = """\
Trains a recipe's network by growing it, or with --fixed at full size for comparison. Everything about the
run is in the folder RUN: settings, metrics (JSON lines), checkpoints, the final weights. A run that was
stopped (Ctrl-C, a crash, a power cut) goes on with --resume and ends with the very same weights. It is so many
epochs long or, with --set total_steps=N, so many steps: then it grows anywhere in an epoch. Under torchrun several
processes train it together, each on its slice of every batch (docs/torchrun.md).

A recipe of your own is Python code that is run. A run folder says which one it was trained with, but to resume it
you name the file again: a folder from somebody else must not choose what runs on your machine. --trust runs
whatever file the folder names, also one that has changed since. Recipes of growthring need neither.

examples:
  growthring train --recipe demo --out runs/demo
  growthring train --recipe cifar10-resnet20 --data ~/data --out runs/r20 --set seed=1
  growthring train --recipe cifar10-resnet20 --data ~/data --out runs/r20-fixed --fixed
  growthring train --recipe cifar10-resnet20 --data ~/data --out runs/short --set total_steps=20000
  growthring train --recipe my_file.py:my_recipe --out runs/mine
  growthring train --resume runs/r20
  growthring train --resume runs/mine --recipe my_file.py:my_recipe
  torchrun --nproc_per_node 2 -m growthring train --recipe demo --out runs/two
"""


def add(commands: Commands) -> None:
    """Adds `growthring train`."""
    parser = commands.add_parser(
        "train",
        help="train a recipe by growing, or resume a run",
        description=_TRAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_recipe(parser, is_required=False)
    parser.add_argument("--out", metavar="RUN", help="folder of the run")
    add_data(parser)
    parser.add_argument("--fixed", action="store_true", help="train at full size from the start")
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with a run that was stopped; with --recipe if that is a file of your own",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="with --resume: run the recipe's file that RUN names, whatever is in it now",
    )
    parser.add_argument(
        "--forget-metrics",
        action="store_true",
        help="with --resume: go on though metrics.jsonl was damaged, with a new one (the old one is kept)",
    )
    parser.add_argument(
        "--device", default=None, help="cpu, cuda, ... (default: cuda if there is one)"
    )
    parser.add_argument(
        "--compile",
        choices=MODES,
        help="torch.compile: all stages, none, or those where it is measured to pay (default: the recipe's)",
    )
    parser.add_argument("--checkpoint-steps", type=int, metavar="N", help="also save every N steps")
    parser.add_argument("--checkpoint-minutes", type=float, default=10.0, metavar="M")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints that stay (default 3)")
    parser.add_argument("--tensorboard", action="store_true", help="also write TensorBoard events")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print the result as a JSON object")
    parser.set_defaults(run=_train, several=True)


def _train(arguments: argparse.Namespace) -> None:
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    with joined(device):
        _train_on(device, arguments)


def _train_on(device: str, arguments: argparse.Namespace) -> None:
    progress = Silence() if arguments.quiet else Progress()
    common: dict[str, Any] = {
        "device": device,
        "checkpoint_steps": arguments.checkpoint_steps,
        "checkpoint_minutes": arguments.checkpoint_minutes,
        "keep": arguments.keep,
        "tensorboard": arguments.tensorboard,
        "progress": progress,
    }
    if arguments.resume is not None:
        if arguments.compile is not None:
            raise InputError(
                "--compile is for a new run: one that is resumed goes on as it was begun."
            )
        trainer = _resumed(arguments, common)
    else:
        if arguments.recipe is None or arguments.out is None:
            raise InputError("give --recipe and --out, or --resume.")
        for name, is_given in (
            ("--trust", arguments.trust),
            ("--forget-metrics", arguments.forget_metrics),
        ):
            if is_given:
                raise InputError(f"{name} is for --resume.")
        if arguments.compile is not None:
            arguments.settings = [*arguments.settings, f"compile={arguments.compile}"]
        source = {
            **recipe_source(arguments.recipe),
            "settings": arguments.settings,
            "fixed": arguments.fixed,
            "data": None
            if arguments.data is None
            else str(Path(arguments.data).expanduser().resolve()),
        }
        recipe = recipe_of(arguments)
        if arguments.fixed:
            recipe = change(recipe, {"fixed": True})
        trainer = Trainer(
            recipe,
            arguments.out,
            data=arguments.data,
            download=arguments.download,
            source=source,
            **common,
        )
        trainer.progress.say(str(trainer.plan))
    result = trainer.fit()
    if not trainer.processes.is_first:
        return
    if arguments.json:
        print(json.dumps({"run": str(trainer.out), **asdict(result)}))
        return
    print(f"{trainer.out}: {trainer.sentence(result)}")
    for line in (*result.notes, *sample_lines(trainer.out)):
        print(shown(line))


def _resumed(arguments: argparse.Namespace, common: dict[str, Any]) -> Trainer:
    """The trainer of a run; all that can be checked is checked before a recipe's file is run."""
    folder = Path(arguments.resume)
    if arguments.out is not None:
        raise InputError("give --out or --resume: a run is resumed in its own folder.")
    processes = Processes(find_device(local_device(common["device"])))
    source = processes.from_first(lambda: read_config(folder)).source
    if "recipe" not in source:
        raise InputError(
            f"'{folder}' was not started by this command; resume it where it was started."
        )
    name, notes = trusted_recipe(folder, source, arguments.recipe, arguments.trust)
    saved = processes.from_first(
        lambda: open_run(folder, find_device(common["device"]), arguments.forget_metrics)
    )
    data = arguments.data or source.get("data")
    if is_file(name):
        check_data(saved.config.settings, None if data is None else Path(data))
    for note in notes if processes.is_first else ():
        common["progress"].say(note)
    settings = [*source.get("settings", ()), *arguments.settings]
    recipe: Recipe = change(load_recipe(name, RECIPES), parse_settings(settings))
    if source.get("fixed") or arguments.fixed:
        recipe = change(recipe, {"fixed": True})
    trainer = Trainer(recipe, folder, data=data, source={**source, **recipe_source(name)}, **common)
    trainer.resume(saved)
    return trainer
