"""growthring inspect: the width groups of a model."""

from __future__ import annotations

import argparse
import json

from growthring.cli.common import Commands
from growthring.cli.models import add_model, given_model
from growthring.graph.discover import discover_width_groups

_INSPECT = """\
Shows which axes of a model's tensors share a width, which of those widths can grow, and why the
others cannot. The model is traced on fake tensors: nothing is trained or changed.

examples:
  growthring inspect growthring.zoo:resnet20 --input 1x3x32x32
  growthring inspect torchvision.models:resnet18 --input 1x3x224x224 --freeze 'layer4.*'
  growthring inspect my_model.py:make --set width=64 --input tokens=2x16:int64 --json
  growthring inspect --recipe cifar10-vgg11
"""


def add(commands: Commands) -> None:
    """Adds `growthring inspect`."""
    inspect = commands.add_parser(
        "inspect",
        help="show a model's width groups",
        description=_INSPECT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(
        inspect,
        "an argument of the model's function, such as width=64: a Python literal, true, false, none, or else a "
        "string; with --recipe a setting of it",
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
        choices=["auto", "size", "count", "both"],
        help="which factor of heads × head size grows (default: whole heads where they can follow the stages)",
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
    given = given_model(arguments)
    groups = discover_width_groups(
        given.model,
        given.inputs,
        freeze=[*given.options.freeze, *arguments.freeze],
        heads=arguments.heads or given.options.heads,
        outputs=arguments.outputs or given.options.outputs,
        build=given.options.build,
    )
    if arguments.json:
        print(json.dumps(groups.as_dict(), indent=2))
    else:
        print(groups.table(arguments.everything))
