"""What the subcommands share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from growthring.errors import InputError
from growthring.train import RECIPES, Recipe, change, load_recipe, parse_settings

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = object


_SET = "change a setting of the recipe, such as epochs=20, total_steps=2000 or optimizer_options.momentum=0.8"


def add_recipe(
    parser: argparse.ArgumentParser, is_required: bool = True, set_help: str = _SET
) -> None:
    """--recipe and --set."""
    parser.add_argument(
        "--recipe",
        required=is_required,
        metavar="NAME",
        help=f"one of {', '.join(RECIPES)}; or your own as path/to/file.py:function",
    )
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=set_help,
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    """--data and --download."""
    parser.add_argument("--data", metavar="DIR", help="folder of the data set")
    parser.add_argument("--download", action="store_true", help="fetch data that is missing")


def recipe_of(arguments: argparse.Namespace) -> Recipe:
    """The recipe that --recipe and --set name."""
    return change(load_recipe(arguments.recipe, RECIPES), parse_settings(arguments.settings))


def parse_share(text: str) -> float:
    """A share as 50% or 0.5.

    >>> parse_share("50%")
    0.5
    """
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise InputError(f"'{text}' is not a share such as 50% or 0.5.")
    return value
