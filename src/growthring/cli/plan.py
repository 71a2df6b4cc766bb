"""growthring plan: widths, lengths, batch sizes and costs of a model's growth, before anything is paid."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from growthring.cli.common import Commands, parse_share
from growthring.cli.models import Given, add_model, given_model
from growthring.errors import InputError
from growthring.planning.plan import Plan
from growthring.planning.planner import plan
from growthring.train.setup import make_plan

_PLAN = """\
Shows what growing your model, or training a recipe, would do: the width, length and batch size of every stage,
and what that costs as a share of training the full-size network for as long. FLOPs are counted on fake
tensors; --measure also runs a few training steps of each stage on this machine.

Options of the plan (stages, epochs or total_steps, batch_size, growth, freeze, ...; see growthring.PlanOptions) are
given with --set; so are the arguments of your model's function. Where both have a name, model_options.NAME is the
argument.

examples:
  growthring plan mypackage.models:make_net --input 1x3x224x224
  growthring plan my_model.py:make --set width=64 --set stages=4 --set epochs=30 --input tokens=2x16:int64
  growthring plan torchvision.models:resnet18 --input 1x3x224x224 --budget 40% --json
  growthring plan --recipe cifar10-resnet20
  growthring plan --recipe cifar10-resnet20 --set total_steps=20000
  growthring plan --recipe cifar10-vgg11 --measure --set batch_growth=0.2
"""


def add(commands: Commands) -> None:
    """Adds `growthring plan`."""
    parser = commands.add_parser(
        "plan",
        help="show what growing a model, or training a recipe, would do and cost",
        description=_PLAN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(
        parser,
        "an option of the plan, such as stages=4, or an argument of the model's function, such as width=64; with "
        "--recipe a setting of it",
    )
    parser.add_argument("--budget", metavar="SHARE", help="stay within this share, such as 50%%")
    parser.add_argument("--measure", action="store_true", help="measure seconds on this machine")
    parser.add_argument(
        "--compile",
        action="store_true",
        help="with --measure: compile each stage, too, and count that where its steps repay it (minutes)",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the cost over the run (needs matplotlib)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    more: dict[str, Any] = {}
    if arguments.budget is not None:
        more = {"budget": parse_share(arguments.budget), "first_epochs": None}
    if arguments.compile and not arguments.measure:
        raise InputError("--compile goes with --measure.")
    given = given_model(arguments, more)
    found = _planned(given)
    if arguments.measure:
        found = found.measure(compile=arguments.compile)
    if arguments.plot:
        plot_cost(found, arguments.plot)
    recipe = given.recipe
    published = None if recipe is None else recipe.published
    if not arguments.json:
        print(found)
        if published is not None:
            print(f"The paper reports {published:.2f}% for this case.")
        return
    values: dict[str, Any] = {"model": arguments.model, **found.as_dict()}
    if recipe is not None:
        share = None if published is None else published / 100
        values = {"recipe": recipe.name, **found.as_dict(), "published_flops_share": share}
    print(json.dumps(values, indent=2))


def _planned(given: Given) -> Plan:
    if given.recipe is not None:
        return make_plan(given.recipe, given.model)
    return plan(given.model, given.inputs, options=given.options)


def plot_cost(plan: Plan, path: str) -> None:
    """Draws the cost of an example over the length of the run, a step for each stage."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("--plot needs matplotlib: pip install growthring[plots].") from error
    full = plan.footprints[-1]
    figure = Figure(figsize=(8, 4), layout="constrained")
    plot = figure.subplots()
    start, unit = 0.0, plan.lengths.unit
    lengths: Sequence[float] = plan.lengths.counts or plan.shares
    for t, (length, cost) in enumerate(zip(lengths, plan.footprints, strict=True)):
        share = cost.flops / full.flops
        plot.bar(start, share, width=length, align="edge", color="#3a7ca5", edgecolor="white")
        plot.text(start + length / 2, share + 0.01, str(t), ha="center", fontsize=8)
        start += length
    plot.axhline(1.0, color="#888888", lw=1, ls="--")
    plot.set_xlabel("share of the training" if unit is None else unit.removesuffix("s"))
    plot.set_ylabel("FLOPs of an example, share of full size")
    plot.set_title(f"{plan.flops_share:.1%} of the FLOPs of fixed-size training")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise InputError(f"--plot {path}: {error}") from error
