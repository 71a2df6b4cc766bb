"""The command `growthring`. Each subcommand is a thin layer over a function of the library."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import os
import sys
from collections.abc import Sequence

from growthring.cli import (
    advise,
    compare,
    evaluate,
    export,
    generate,
    inspect,
    plan,
    report,
    train,
    translate,
)
from growthring.errors import GrowthError, InputError
from growthring.files.foreign import shown
from growthring.train import Interrupted
from growthring.train.processes import launched


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (0 fine, 2 a user's error, 130 interrupted)."""
    parser, (rank, size) = _parser(), launched()
    with contextlib.ExitStack() as silent:
        if rank > 0:  # the first process says for all what they all find
            for redirect in (contextlib.redirect_stdout, contextlib.redirect_stderr):
                silent.enter_context(redirect(io.StringIO()))
        arguments = _parsed(parser, argv)
        if not hasattr(arguments, "run"):
            parser.print_help()
            return 2
    try:
        if size > 1 and not getattr(arguments, "several", False):
            raise InputError(
                f"torchrun has started {size} processes, but only `growthring train` shares its work out to "
                "several. Run this command without torchrun."
            )
        arguments.run(arguments)
        sys.stdout.flush()
    except Interrupted as error:
        _complain(str(error))
        return 130
    except GrowthError as error:
        _complain(f"{type(error).__name__}: {error}")
        return 2
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a full disk, say, where nothing more is known about it
        where = f" ('{error.filename}')" if error.filename else ""
        _complain(f"{type(error).__name__}: {error.strerror or error}{where}.")
        return 2
    return 0


def _parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Arguments; of a command that takes several words, those behind its options as well.

    argparse takes the words before the first option, and does not know the others.
    """
    arguments, left = parser.parse_known_args(argv)
    name = getattr(arguments, "gathers", None)
    if name is not None and not any(word.startswith("-") for word in left):
        setattr(arguments, name, [*getattr(arguments, name), *left])
    elif left:
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    return arguments


def _complain(text: str) -> None:
    """Says what is wrong; names out of files may hold what would steer the terminal.

    What one process of several finds is known to all: the first one says it.
    """
    if launched()[0] > 0:
        return
    print(shown(f"growthring: {text}"), file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="growthring", description="Train a neural network by growing it."
    )
    try:
        version = importlib.metadata.version("growthring")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        version = "(not installed)"
    parser.add_argument("--version", action="version", version=f"growthring {version}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in (
        *(inspect, plan, advise, train, compare, report, export, evaluate),
        *(translate, generate),
    ):
        command.add(commands)
    return parser
