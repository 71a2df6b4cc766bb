"""growthring compare: contenders over seeds, at full cost and at equal cost."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from growthring.checkpoint.jsontext import dumps
from growthring.cli.common import Commands, add_data, add_recipe, recipe_of
from growthring.cli.trust import recipe_source
from growthring.compare import (
    DEFAULT,
    KNOWN,
    Comparison,
    Standing,
    format_table,
    manifest_of,
    notes,
    parse_variant,
    results,
    write_outputs,
)
from growthring.compare.output import STAGES
from growthring.errors import InputError
from growthring.files.foreign import shown
from growthring.train import Interrupted, Progress, Silence, parse_settings

_COMPARE = """\
Trains the contenders on the same data for each seed, and full-size training at their cost beside them:
fixed (the whole length), fixed-flops and fixed-seconds (as many epochs, or steps where the recipe has
total_steps, as cost what --match costs, rounded up), these
two with the recipe's learning-rate schedule and with a linear one: the better of them is the number to beat.
Prints a table and writes table.md, results.json, accuracy-cost.svg and report.html (of data that grows,
stages.svg too) into DIR; the runs are DIR/CONTENDER/seed-K. The same command goes on with what was stopped,
shares the work with other processes on the same DIR, and with more methods or seeds adds to what is there.

examples:
  growthring compare --recipe demo --out runs/compare
  growthring compare --recipe demo --methods vt,ra,paper --seeds 5 --out runs/ablation --clock cpu
  growthring compare --recipe demo --methods paired --variant noisy:noise=0.1,lr=0.02 --out runs/noise
  growthring compare --table --out runs/compare
  growthring compare --list
"""


def add(commands: Commands) -> None:
    """Adds `growthring compare`."""
    parser = commands.add_parser(
        "compare",
        help="train several methods over seeds and compare them at equal cost",
        description=_COMPARE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_recipe(parser, is_required=False)
    parser.add_argument(
        "--methods",
        default=",".join(DEFAULT),
        metavar="NAME,NAME,...",
        help=f"contenders, see --list (default {','.join(DEFAULT)})",
    )
    parser.add_argument(
        "--variant",
        dest="variants",
        action="append",
        default=[],
        metavar="NAME:KEY=VALUE[,KEY=VALUE...]",
        help="one more contender: the recipe with these settings",
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="how many (default 3)")
    parser.add_argument("--out", metavar="DIR", help="folder of the comparison")
    add_data(parser)
    parser.add_argument(
        "--match",
        metavar="NAME",
        help="whose cost fixed-flops and fixed-seconds have (default: paired, or the first that grows)",
    )
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="what seconds are: by the clock, or of the processor, which other work does not add to",
    )
    parser.add_argument("--retry", action="store_true", help="try again what failed")
    parser.add_argument(
        "--device", default=None, help="cpu, cuda, ... (default: cuda if there is one)"
    )
    parser.add_argument("--checkpoint-minutes", type=float, default=10.0, metavar="M")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints that stay (default 3)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print the results as a JSON object")
    parser.add_argument(
        "--table", action="store_true", help="only make table, plot and page of what is finished"
    )
    parser.add_argument("--list", action="store_true", help="list the known contenders")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.list:
        width = max(map(len, KNOWN))
        print("\n".join(f"{name:{width}}  {known.text}" for name, known in KNOWN.items()))
        return
    if arguments.out is None:
        raise InputError("give --out, the folder of the comparison.")
    out = Path(arguments.out)
    if arguments.table:
        manifest_of(out)
        _print(out, write_outputs(out), arguments.json)
        return
    if arguments.recipe is None:
        raise InputError("give --recipe; or --table for a comparison that is there.")
    comparison = _comparison(arguments)
    try:
        rows = comparison.run()
    except KeyboardInterrupt:  # between runs, or twice
        raise Interrupted("interrupted; the same command goes on with the comparison.") from None
    _print(out, rows, arguments.json)
    if comparison.left:
        kinds = [outcome.value for outcome in comparison.left.values()]
        listed = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        print(f"not finished: {listed}; the same command goes on", file=sys.stderr)


def _comparison(arguments: argparse.Namespace) -> Comparison:
    own = {"seed", "fixed", "small"}
    for setting in arguments.settings:
        if own & set(parse_settings([setting])):
            raise InputError(f"--set {setting}: --seeds, --methods and --variant say that.")
    names = [name.strip() for name in arguments.methods.split(",") if name.strip()]
    data = None if arguments.data is None else str(Path(arguments.data).expanduser().resolve())
    return Comparison(
        recipe_of(arguments),
        [*names, *map(parse_variant, arguments.variants)],
        arguments.seeds,
        arguments.out,
        data=data,
        download=arguments.download,
        match=arguments.match,
        clock=arguments.clock,
        device=arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"),
        keep=arguments.keep,
        checkpoint_minutes=arguments.checkpoint_minutes,
        retry=arguments.retry,
        progress=Silence() if arguments.quiet else Progress(),
        source={
            **recipe_source(arguments.recipe),
            "settings": arguments.settings,
            "data": data,
        },
    )


def _print(out: Path, rows: list[Standing], as_json: bool) -> None:
    manifest = manifest_of(out)
    if as_json:
        print(dumps(results(rows, manifest)))
        return
    print(shown(format_table(rows, manifest.clock)))
    print(shown("\n".join(["", *(" ".join(note.split()) for note in notes(rows, manifest))])))
    names = ["table.md", "results.json", "accuracy-cost.svg", "report.html"]
    names += [STAGES] if (out / STAGES).exists() else []
    print(f"wrote {', '.join(str(out / name) for name in names)}")
