"""growthring inspect: the width groups of a model."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import nn

from growthring.cli.common import Commands
from growthring.errors import InputError
from growthring.files.source import load_source
from growthring.graph.discover import discover_width_groups
from growthring.train.settings import parse_setting

_INSPECT = """\
Shows which axes of a model's tensors share a width, which of those widths can grow, and why the
others cannot. The model is traced on fake tensors: nothing is trained or changed.

examples:
  growthring inspect growthring.zoo:resnet20 --input 1x3x32x32
  growthring inspect torchvision.models:resnet18 --input 1x3x224x224 --freeze 'layer4.*'
  growthring inspect my_model.py:make --set width=64 --input tokens=2x16:int64 --json
"""


def add(commands: Commands) -> None:
    """Adds `growthring inspect`."""
    inspect = commands.add_parser(
        "inspect",
        help="show a model's width groups",
        description=_INSPECT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inspect.add_argument(
        "model", metavar="MODULE:FACTORY", help="a function, class or model in a module or file.py"
    )
    inspect.add_argument(
        "--input",
        dest="inputs",
        action="append",
        required=True,
        metavar="[NAME=]SHAPE[:TYPE]",
        help="an example input, such as 1x3x224x224 or input_ids=2x16:int64; once per argument",
    )
    inspect.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an argument for the factory: a Python literal, true, false, none, or else a string",
    )
    inspect.add_argument(
        "--freeze",
        action="append",
        default=[],
        metavar="NAME",
        help="module, parameter or group (globs allowed) that must not grow",
    )
    inspect.add_argument(
        "--heads",
        choices=["auto", "size", "count"],
        default="auto",
        help="which factor of heads × head size grows (default: the larger one that can)",
    )
    inspect.add_argument(
        "--outputs",
        action="append",
        metavar="NAME",
        help="of an output with named parts, a part that must keep its shape (default: all)",
    )
    inspect.add_argument(
        "--all",
        action="store_true",
        dest="everything",
        help="list sizes too that nobody would call a width, such as those of kernels",
    )
    inspect.add_argument("--json", action="store_true", help="print one JSON object")
    inspect.set_defaults(run=_inspect)


def _inspect(arguments: argparse.Namespace) -> None:
    model = load_model(arguments.model, arguments.settings)
    groups = discover_width_groups(
        model,
        parse_inputs(arguments.inputs),
        freeze=arguments.freeze,
        heads=arguments.heads,
        outputs=arguments.outputs,
    )
    if arguments.json:
        print(json.dumps(groups.as_dict(), indent=2))
    else:
        print(groups.table(arguments.everything))


def load_model(name: str, settings: Sequence[str] = ()) -> nn.Module:
    """Imports `module:factory` (or `file.py:factory`) and calls it with the settings.

    >>> type(load_model("torch.nn:Linear", ["in_features=2", "out_features=3"])).__name__
    'Linear'
    """
    source, colon, attribute = name.rpartition(":")
    if not colon or not source or not attribute:
        raise InputError(f"'{name}' is not of the form module:factory, such as my_model:make.")
    module = _load_module(source)
    factory: Any = module
    for part in attribute.split("."):
        factory = getattr(factory, part, None)
        if factory is None:
            raise InputError(f"module '{source}' has no '{attribute}'.")
    keywords = dict(map(parse_setting, settings))
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise InputError(f"'{name}' is a {type(factory).__name__}, neither a model nor callable.")
    try:
        model = factory(**keywords)
    except Exception as error:  # the user's own code
        raise InputError(f"'{name}' failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise InputError(f"'{name}' returned a {type(model).__name__}, not an nn.Module.")
    return model


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
