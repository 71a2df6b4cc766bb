"""How the command line finds a model and its inputs: a user's function with --input, or a recipe."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn

from growthring.cli.common import add_recipe, recipe_of
from growthring.errors import InputError
from growthring.files.source import load_source
from growthring.planning.options import OPTIONS, PlanOptions, nearest
from growthring.train import RECIPES, Recipe, change, parse_settings
from growthring.train.bounds import misfit
from growthring.train.settings import parse_setting
from growthring.train.setup import check, make_model
from growthring.train.tasks import task_of

_ARGUMENT = "model_options."  # before the name of an argument, as in settings of recipes


def add_model(parser: argparse.ArgumentParser, set_help: str) -> None:
    """A model with --input, or --recipe; and --set."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODULE:FUNCTION",
        help="a function or class that makes the model, or a model, in a module or file.py",
    )
    parser.add_argument(
        "--input",
        dest="inputs",
        action="append",
        default=[],
        metavar="[NAME=]SHAPE[:TYPE]",
        help="an example input, such as 1x3x224x224 or input_ids=2x16:int64; once per argument",
    )
    add_recipe(parser, is_required=False, set_help=set_help)


@dataclass(frozen=True)
class Given:
    """What the command line names.

    Attributes:
        model: of full size.
        inputs: example inputs.
        options: of its plan.
        recipe: that it is of; None for a user's own function.
    """

    model: nn.Module
    inputs: Any
    options: PlanOptions
    recipe: Recipe | None


def given_model(arguments: argparse.Namespace, more: Mapping[str, Any] | None = None) -> Given:
    """Makes the model that was named, by a function or by a recipe.

    Args:
        arguments: of `add_model`.
        more: options of the plan, for commands that plan; None: --set has arguments of the model's function only.

    Raises:
        InputError: no model was named, or two; or it cannot be made.
    """
    if arguments.recipe is not None:
        return _of_recipe(arguments, more or {})
    name = arguments.model
    if name is None:
        raise InputError("give MODULE:FUNCTION with --input, or --recipe NAME.")
    if name in RECIPES:
        raise InputError(f"'{name}' is a recipe: --recipe {name}.")
    if not arguments.inputs:
        raise InputError(
            f"'{name}' needs an example of its inputs, such as --input 1x3x224x224 or, for tokens, "
            "--input 1x128:int64."
        )
    inputs, options = parse_inputs(arguments.inputs), PlanOptions()
    keywords = [text.strip().removeprefix(_ARGUMENT) for text in arguments.settings]
    if more is not None:
        texts, keywords = split_settings(name, arguments.settings)
        options = options.changed(**{**_within_bounds(parse_settings(texts)), **more})
    return Given(load_model(name, keywords), inputs, options, None)


def _of_recipe(arguments: argparse.Namespace, more: Mapping[str, Any]) -> Given:
    if arguments.model is not None:
        raise InputError(f"give '{arguments.model}' or --recipe {arguments.recipe}, not both.")
    if arguments.inputs:
        raise InputError(
            "--input is for a model of your own; the inputs of a recipe have its input_shape (--set "
            "input_shape=...)."
        )
    recipe = change(recipe_of(arguments), more)
    check(recipe)
    model = make_model(recipe, torch.Generator().manual_seed(recipe.seed))
    return Given(model, task_of(recipe).example(recipe), recipe.plan, recipe)


def split_settings(name: str, settings: Sequence[str]) -> tuple[list[str], list[str]]:
    """Which --set are options of plans, and which arguments of the model's function.

    `model_options.KEY` is an argument, whatever its name; so is a KEY that no option has.

    Raises:
        InputError: one is neither.

    >>> split_settings("torch.nn:Linear", ["stages=3", "in_features=2", "model_options.bias=false"])
    (['stages=3'], ['in_features=2', 'bias=false'])
    """
    options, keywords, factory = [], [], find_model(name)
    for text in settings:
        key = parse_setting(text)[0]
        if key in OPTIONS:
            options.append(text)
            continue
        given = key.removeprefix(_ARGUMENT)
        if not _takes(factory, given):
            raise InputError(
                f"--set {text}: '{name}' has no argument '{given}', and plans have no such option; "
                f"{nearest(given, OPTIONS)}."
            )
        keywords.append(text.strip().removeprefix(_ARGUMENT))
    return options, keywords


def load_model(name: str, settings: Sequence[str] = ()) -> nn.Module:
    """Imports `module:function` (or `file.py:function`) and calls it with the settings.

    >>> type(load_model("torch.nn:Linear", ["in_features=2", "out_features=3"])).__name__
    'Linear'
    """
    factory, keywords = find_model(name), dict(map(parse_setting, settings))
    if isinstance(factory, nn.Module):
        if keywords:
            raise InputError(f"'{name}' is a model that is made already: it takes no --set.")
        return factory
    try:
        model = factory(**keywords)
    except Exception as error:  # the user's own code
        raise InputError(f"'{name}' failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise InputError(f"'{name}' returned a {type(model).__name__}, not an nn.Module.")
    return model


def find_model(name: str) -> nn.Module | Callable[..., Any]:
    """What `module:function` or `file.py:function` names: a model, or something that makes one."""
    source, colon, attribute = name.rpartition(":")
    if not colon or not source or not attribute:
        raise InputError(f"'{name}' is not of the form module:function, such as my_model:make.")
    factory: Any = _load_module(source)
    for part in attribute.split("."):
        factory = getattr(factory, part, None)
        if factory is None:
            raise InputError(f"module '{source}' has no '{attribute}'.")
    if not isinstance(factory, nn.Module) and not callable(factory):
        raise InputError(f"'{name}' is a {type(factory).__name__}, neither a model nor callable.")
    found: nn.Module | Callable[..., Any] = factory
    return found


def _within_bounds(options: dict[str, Any]) -> dict[str, Any]:
    for key, value in options.items():
        allowed = misfit(key, value)
        if allowed is not None:
            raise InputError(f"{key}={value!r} cannot work: allowed is {allowed}.")
    return options


def _takes(factory: nn.Module | Callable[..., Any], argument: str) -> bool:
    """Whether a function has an argument of that name, as far as can be told."""
    if isinstance(factory, nn.Module):
        return False
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # written in C
        return True
    return argument in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _load_module(source: str) -> ModuleType:
    if source.endswith(".py"):
        return load_source(source)
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(source)
    except Exception as error:  # importing runs the user's own code
        raise InputError(
            f"cannot import '{source}': {type(error).__name__}: {error}. Give a module that Python "
            "finds from here, or a path that ends in .py."
        ) from error


def parse_inputs(texts: Sequence[str]) -> Any:
    """Example inputs from `SHAPE[:TYPE]` (positional) or `NAME=SHAPE[:TYPE]` (by keyword).

    Whole numbers are zeros, which are valid token ids; everything else is drawn from a normal
    distribution with a fixed seed.

    >>> parse_inputs(["2x3"])[0].shape, parse_inputs(["ids=1x4:int64"])["ids"].dtype
    (torch.Size([2, 3]), torch.int64)
    """
    named: dict[str, torch.Tensor] = {}
    positional: list[torch.Tensor] = []
    for text in texts:
        name, _, spec = text.rpartition("=")
        tensor = _example(spec)
        if name:
            named[name] = tensor
        else:
            positional.append(tensor)
    if named and positional:
        raise InputError("give every --input a name, or none of them.")
    return named or tuple(positional)


def _example(spec: str) -> torch.Tensor:
    shape_text, _, type_name = spec.partition(":")
    try:
        shape = [int(n) for n in shape_text.split("x")]
    except ValueError:
        shape = []
    if not shape or any(n < 1 for n in shape):
        raise InputError(f"--input {spec}: expected a shape such as 1x3x224x224.")
    dtype = getattr(torch, type_name or "float32", None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"--input {spec}: torch has no type '{type_name}'.")
    if dtype.is_floating_point:
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    return torch.zeros(shape, dtype=dtype)
