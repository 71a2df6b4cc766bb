"""growthring train and growthring export."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from growthring.checkpoint import load_weights, read_checkpoint, read_json, save_weights
from growthring.cli.common import Commands, absolute_recipe, add_recipe, recipe_of
from growthring.errors import InputError
from growthring.train import RECIPES, Progress, Recipe, Silence, Trainer, change, load_recipe

_TRAIN = """\
Trains a recipe's network by growing it, or with --fixed at full size for comparison. Everything about the
run is in the folder RUN: settings, metrics (JSON lines), checkpoints, the final weights. A run that was
stopped (Ctrl-C, a crash, a power cut) goes on with --resume and ends with the very same weights.

examples:
  growthring train --recipe demo --out runs/demo
  growthring train --recipe cifar10-resnet20 --data ~/data --out runs/r20 --set seed=1
  growthring train --recipe cifar10-resnet20 --data ~/data --out runs/r20-fixed --fixed
  growthring train --recipe my_file.py:my_recipe --out runs/mine
  growthring train --resume runs/r20
"""


def add(commands: Commands) -> None:
    """Adds `growthring train` and `growthring export`."""
    parser = commands.add_parser(
        "train",
        help="train a recipe by growing, or resume a run",
        description=_TRAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_recipe(parser, is_required=False)
    parser.add_argument("--out", metavar="RUN", help="folder of the run")
    parser.add_argument("--data", metavar="DIR", help="folder of the data set")
    parser.add_argument("--download", action="store_true", help="fetch data that is missing")
    parser.add_argument("--fixed", action="store_true", help="train at full size from the start")
    parser.add_argument("--resume", metavar="RUN", help="go on with a run that was stopped")
    parser.add_argument(
        "--device", default=None, help="cpu, cuda, ... (default: cuda if there is one)"
    )
    parser.add_argument("--checkpoint-steps", type=int, metavar="N", help="also save every N steps")
    parser.add_argument("--checkpoint-minutes", type=float, default=10.0, metavar="M")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints that stay (default 3)")
    parser.add_argument("--tensorboard", action="store_true", help="also write TensorBoard events")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print the result as a JSON object")
    parser.set_defaults(run=_train)
    export = commands.add_parser(
        "export",
        help="write the weights of a run as one safetensors file",
        description="Writes the full-size weights of a finished run, with the model's own names, to FILE.",
    )
    export.add_argument("folder", metavar="RUN")
    export.add_argument("file", metavar="FILE")
    export.add_argument(
        "--partial", action="store_true", help="of an unfinished run, at the width that it has"
    )
    export.set_defaults(run=_export)


def _train(arguments: argparse.Namespace) -> None:
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
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
        trainer = _resumed(arguments, common)
    else:
        if arguments.recipe is None or arguments.out is None:
            raise InputError("give --recipe and --out, or --resume.")
        recipe = recipe_of(arguments)
        if arguments.fixed:
            recipe = dataclasses.replace(recipe, fixed=True)
        source = {
            "recipe": absolute_recipe(arguments.recipe),
            "settings": arguments.settings,
            "fixed": arguments.fixed,
            "data": None
            if arguments.data is None
            else str(Path(arguments.data).expanduser().resolve()),
        }
        trainer = Trainer(
            recipe,
            arguments.out,
            data=arguments.data,
            download=arguments.download,
            source=source,
            **common,
        )
        progress.say(str(trainer.plan))
    result = trainer.fit()
    if arguments.json:
        print(json.dumps({"run": str(trainer.out), **asdict(result)}))
        return
    accuracy = "" if result.test_accuracy is None else f"test accuracy {result.test_accuracy:.2%}, "
    print(
        f"{trainer.out}: {accuracy}{result.flops_share:.1%} of the FLOPs of fixed-size training, "
        f"{result.seconds:.0f} s of training"
    )


def _resumed(arguments: argparse.Namespace, common: dict[str, Any]) -> Trainer:
    folder = Path(arguments.resume)
    if not (folder / "config.json").is_file():
        raise InputError(f"'{folder}' holds no run: there is no config.json in it.")
    source = read_json(folder / "config.json").get("source") or {}
    if "recipe" not in source:
        raise InputError(
            f"'{folder}' was not started by this command; resume it where it was started."
        )
    name = arguments.recipe or source["recipe"]
    settings = [*source["settings"], *arguments.settings]
    recipe: Recipe = change(load_recipe(name, RECIPES), settings)
    if source["fixed"] or arguments.fixed:
        recipe = dataclasses.replace(recipe, fixed=True)
    data = arguments.data or source["data"]
    trainer = Trainer(recipe, folder, data=data, source=source, **common)
    trainer.resume()
    return trainer


def _export(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.folder)
    if not (folder / "config.json").is_file():
        raise InputError(f"'{folder}' holds no run: there is no config.json in it.")
    if not (folder / "result.json").is_file() and not arguments.partial:
        raise InputError(
            f"'{folder}' is not finished, so its weights are not of full size yet. Go on with `growthring train "
            f"--resume {folder}`, or export what there is with --partial."
        )
    if (folder / "result.json").is_file():
        weights = load_weights(folder / "model.safetensors")
    else:
        found = read_checkpoint(folder)
        for path, reason in found.skipped:
            print(f"checkpoint {path.name} cannot be used ({reason})", file=sys.stderr)
        weights = found.state["model"]
    save_weights(arguments.file, weights)
    print(f"wrote {arguments.file}")
