"""growthring plan: widths, epochs, batch sizes and costs of a recipe, before anything is paid."""

from __future__ import annotations

import argparse
import json

import torch

from growthring.cli.common import Commands, add_recipe, parse_share, recipe_of
from growthring.errors import InputError
from growthring.planning.plan import Plan
from growthring.train import change
from growthring.train.setup import check, make_model, make_plan

_PLAN = """\
Shows what a recipe would do: the width, epochs and batch size of every stage, and what that costs as a
share of training the full-size network for as many epochs. FLOPs are counted on fake tensors; --measure
also runs a few training steps of each stage on this machine.

examples:
  growthring plan --recipe cifar10-resnet20
  growthring plan --recipe cifar10-vgg11 --measure --set batch_growth=0.2
  growthring plan --recipe cifar10-resnet20 --budget 40% --json
"""


def add(commands: Commands) -> None:
    """Adds `growthring plan`."""
    parser = commands.add_parser(
        "plan",
        help="show what a recipe would train, and what it costs",
        description=_PLAN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_recipe(parser)
    parser.add_argument("--budget", metavar="SHARE", help="stay within this share, such as 50%%")
    parser.add_argument("--measure", action="store_true", help="measure seconds on this machine")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the cost over the run (needs matplotlib)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    recipe = recipe_of(arguments)
    if arguments.budget is not None:
        recipe = change(recipe, {"budget": parse_share(arguments.budget), "first_epochs": None})
    check(recipe)
    plan = make_plan(recipe, make_model(recipe, torch.Generator().manual_seed(recipe.seed)))
    if arguments.measure:
        plan = plan.measure()
    if arguments.plot:
        plot_cost(plan, arguments.plot)
    if arguments.json:
        published = None if recipe.published is None else recipe.published / 100
        print(
            json.dumps(
                {"recipe": recipe.name, **plan.as_dict(), "published_flops_share": published},
                indent=2,
            )
        )
        return
    print(plan)
    if recipe.published is not None:
        print(f"The paper reports {recipe.published:.2f}% for this case.")


def plot_cost(plan: Plan, path: str) -> None:
    """Draws the cost of an example over the epochs of the run, a step for each stage."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("--plot needs matplotlib: pip install growthring[plots].") from error
    full = plan.footprints[-1]
    figure = Figure(figsize=(8, 4), layout="constrained")
    plot = figure.subplots()
    start = 0
    for t, (epochs, cost) in enumerate(zip(plan.epochs, plan.footprints, strict=True)):
        share = cost.flops / full.flops
        plot.bar(start, share, width=epochs, align="edge", color="#3a7ca5", edgecolor="white")
        plot.text(start + epochs / 2, share + 0.01, str(t), ha="center", fontsize=8)
        start += epochs
    plot.axhline(1.0, color="#888888", lw=1, ls="--")
    plot.set_xlabel("epoch")
    plot.set_ylabel("FLOPs of an example, share of full size")
    plot.set_title(f"{plan.flops_share:.1%} of the FLOPs of fixed-size training")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise InputError(f"--plot {path}: {error}") from error
