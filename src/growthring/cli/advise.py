"""growthring advise: short pilots of a recipe, before the run is paid for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import nn

from growthring.cli.common import Commands, add_data, add_recipe, parse_share, recipe_of
from growthring.data.batch import Batch, Stream, moved
from growthring.errors import InputError
from growthring.train import Progress, Recipe, Silence
from growthring.train.advice import Advice
from growthring.train.advise import GROWING_DATA, advise
from growthring.train.setup import check, find_device, make_model, make_optimizer, make_streams
from growthring.train.tasks import task_of

_ADVISE = """\
Tells whether growing a recipe's network pays, by pilots that cost a few percent of the run: the full network, the
same for as many steps as cost what growing costs, and the grown one, each with a learning-rate schedule of its
own that ends with it. The answer is a plan with the saving to expect at equal loss, or "train at full size".
docs/when-it-pays.md has what this advice was worth on complete runs.

examples:
  growthring advise --recipe cifar10-resnet20 --data ~/data
  growthring advise --recipe my_file.py:my_recipe --share 10% --seeds 3
  growthring advise --recipe demo --share 50% --set epochs=60 --json
"""


def add(commands: Commands) -> None:
    """Adds `growthring advise`."""
    parser = commands.add_parser(
        "advise",
        help="tell by short pilots whether growing a recipe's network pays",
        description=_ADVISE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_recipe(parser, is_required=True)
    add_data(parser)
    parser.add_argument(
        "--share", default="5%", help="what all pilots may cost, of the full-size run (default 5%%)"
    )
    parser.add_argument("--seeds", type=int, default=2, help="pilots of each length (default 2)")
    parser.add_argument("--device", default=None, help="cpu, cuda, ... (default: cuda if there)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    device = find_device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    progress = Silence() if arguments.quiet or arguments.json else Progress()
    root = None if arguments.data is None else Path(arguments.data)
    advice = _advice(
        recipe_of(arguments),
        root,
        arguments.download,
        device,
        parse_share(arguments.share),
        arguments.seeds,
        progress,
    )
    print(json.dumps(advice.as_dict(), indent=1) if arguments.json else advice)


def _advice(
    recipe: Recipe,
    root: Path | None,
    download: bool,
    device: torch.device,
    share: float,
    seeds: int,
    progress: Progress,
) -> Advice:
    check(recipe)
    if recipe.fixed or recipe.small:
        raise InputError(
            "the recipe does not grow (fixed or small): there is nothing to advise on."
        )
    if recipe.stream is not None:
        raise InputError(GROWING_DATA)
    generator = torch.Generator().manual_seed(recipe.seed)
    model, task = make_model(recipe, generator).to(device), task_of(recipe)
    streams = make_streams(recipe, root, generator, device, download)
    length = recipe.length
    total_steps = length.count * (len(streams.train) if length.unit == "epochs" else 1)

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return make_optimizer(recipe, nn.ParameterList(parameters), total_steps)

    return advise(
        model,
        moved((task.example(recipe), None), device)[0],
        batches=_Shuffled(streams.train),
        held_out=streams.test.fork(0),
        loss=task.loss(recipe.label_smoothing),
        optimizer=optimizer,
        total_steps=total_steps,
        share=share,
        seeds=seeds,
        lr_kind=recipe.lr_schedule,
        warmup=min(1.0, recipe.warmup_steps / total_steps),
        clip_norm=recipe.clip_norm,
        progress=progress,
        options=recipe.plan,
    )


class _Shuffled:
    """A recipe's data, in an order that torch's generator decides."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._stream.fork(int(torch.randint(2**31, ()))))
