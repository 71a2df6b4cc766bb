"""growthring export: the weights of a run as one safetensors file that says how to use them."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from growthring.checkpoint import CheckpointError, save_weights, weights_metadata
from growthring.checkpoint.jsontext import dumps
from growthring.cli.common import Commands
from growthring.errors import InputError
from growthring.files.atomic import write_bytes
from growthring.files.foreign import shown
from growthring.runs import RunFolder
from growthring.train import Card, how_to_resume
from growthring.train.card import card_of, parse_card
from growthring.train.config import RunConfig, read_config
from growthring.train.evaluation import files_beside

_EXPORT = """\
Writes the full-size weights of a finished run, with the model's own names, to FILE, and into the file's metadata a
card, as one JSON object under the key "growthring":

  model, model_options   function that makes the model, and its keyword arguments
  input_shape            of one example; a batch has one more axis before it (NCHW), in input_type (float32)
  preprocessing          size and how images are resized to it; mean and std of each channel, of pixels from 0 to 1
  classes                names of the classes, in the order of the outputs
  recipe, data           what it was trained with
  test_accuracy, …       measured at the end, and how; versions of growthring and torch

Use it in Python (growthring.load makes models of growthring.zoo; name the function of your own: load(FILE, MyNet)):

  import growthring as gr
  model, card = gr.load("model.safetensors")            # with its weights, in eval mode
  inputs = card.preprocessing(images)                   # bytes, torch.uint8 (n, channels, height, width)
  for label in model(inputs).argmax(1):
      print(card.classes[label])

Without growthring: json.loads(safetensors.safe_open(FILE, "pt").metadata()["growthring"]). `growthring eval FILE`
shows the accuracy again. Reads tensors only: nothing that the run folder names is run.
"""


def add(commands: Commands) -> None:
    """Adds `growthring export`."""
    parser = commands.add_parser(
        "export",
        help="write the weights of a run as one safetensors file, with how to use them",
        description=_EXPORT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="RUN")
    parser.add_argument("file", metavar="FILE")
    parser.add_argument(
        "--partial", action="store_true", help="of an unfinished run, at the width that it has"
    )
    parser.add_argument(
        "--while-fading",
        action="store_true",
        help="with --partial: also while norms fade in, when plain weights give other outputs than the run's model",
    )
    parser.add_argument("--json", action="store_true", help="print the card as a JSON object")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    run = RunFolder(arguments.folder)
    if not run.is_run:
        raise InputError(f"'{run}' holds no run: there is no config.json in it.")
    if arguments.while_fading and not arguments.partial:
        raise InputError("--while-fading is for --partial.")
    config = read_config(run.path)
    if run.is_finished:
        weights = run.read_weights()
        card = card_of(weights_metadata(run.weights_file), f"'{run.weights_file}'")
    elif arguments.partial:
        weights, card = _partial(run, config, arguments.while_fading)
    else:
        raise InputError(
            f"'{run}' is not finished, so its weights are not of full size yet. Go on with "
            f"`{how_to_resume(run.path, config.source)}`, or export what there is with --partial."
        )
    # What the weights mean nothing without goes beside them, before them.
    files = {} if card is None else files_beside(run.weights_file, card)
    file = Path(arguments.file)
    beside = {file.with_name(f"{file.stem}.{name}"): text for name, text in files.items()}
    for path, text in beside.items():
        write_bytes(path, text.encode())
    save_weights(arguments.file, weights, {} if card is None else card.metadata())
    if card is None:
        _say(
            f"'{run}' was trained by a growthring of before: {arguments.file} has weights, but no card."
        )
    elif card.width == "seed":
        _say(
            "these weights are of the seed's width, not of the full-size model: the run was a small one."
        )
    if arguments.json:
        print(dumps({"file": arguments.file, "card": None if card is None else card.as_dict()}))
        return
    print(" and ".join([f"wrote {arguments.file}", *map(str, beside)]))
    if card is not None:
        print(shown(str(card)))


def _partial(
    run: RunFolder, config: RunConfig, is_fading_allowed: bool
) -> tuple[dict[str, Tensor], Card | None]:
    """The weights of the newest checkpoint of an unfinished run, and a card that says so."""
    checkpoint = run.read_checkpoint()
    for path, reason in checkpoint.skipped:
        _say(f"checkpoint {path.name} cannot be used ({reason})")
    state = checkpoint.state if isinstance(checkpoint.state, dict) else {}
    if not isinstance(state.get("model"), dict):
        raise CheckpointError(
            f"the checkpoint '{checkpoint.path}' holds no model: it is not of a training run."
        )
    fading = _fading(state)
    if fading:
        listed = ", ".join(f"'{name}'" for name in fading[:3]) + (" …" if len(fading) > 3 else "")
        what = (
            f"{len(fading)} norms of '{run}' are still fading in ({listed}): with these weights, a plain model "
            "gives other outputs than the run's"
        )
        if not is_fading_allowed:
            raise InputError(
                f"{what}. They end with the stage: go on with `{how_to_resume(run.path, config.source)}`, or "
                "export them as they are with --partial --while-fading."
            )
        _say(f"warning: {what}.")
    if "card" not in config.content:
        return state["model"], None
    card = parse_card(config.content["card"], f"'{run.config_file}'")
    last = len(config.plan["flops"]) - 1
    width = f"stage {_stage(state, last)} of a plan with stages 0 to {last}"
    return state["model"], replace(
        card, width=f"{width}, step {checkpoint.step}", fading=tuple(fading)
    )


def _stage(state: dict[str, Any], last: int) -> int | str:
    """The stage of a checkpoint; after the last one a run is done but for its result."""
    totals = state.get("totals")
    stage = totals.get("stage") if isinstance(totals, dict) else None
    return min(stage, last) if isinstance(stage, int) else "?"


def _fading(state: dict[str, Any]) -> list[str]:
    """Modules whose statistics were fading in when a checkpoint was written."""
    grower = state.get("grower")
    fades = grower.get("fades") if isinstance(grower, dict) else None
    modules = [fade.get("module") for fade in fades or () if isinstance(fade, dict)]
    return list(dict.fromkeys(map(str, modules)))


def _say(text: str) -> None:
    print(shown(f"growthring: {text}"), file=sys.stderr)
