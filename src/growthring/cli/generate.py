"""growthring generate: a text that goes on where a prompt ends, by the language model of a run."""

from __future__ import annotations

import argparse
import codecs
import sys

import torch

from growthring.checkpoint.jsontext import dumps
from growthring.cli.common import Commands
from growthring.cli.trained import open_trained
from growthring.decoding import generate
from growthring.errors import InputError
from growthring.files.foreign import shown
from growthring.train.setup import find_device
from growthring.train.tasks import Language

_GENERATE = """\
Lets the language model of a finished run, or of a file of `growthring export`, go on with a text. Models of
growthring's recipes read and write bytes.

examples:
  growthring generate runs/gpt "def "
  growthring generate runs/gpt "def " --tokens 500 --temperature 0.7 --seed 1
  growthring generate runs/gpt "ROMEO:" --temperature 0
"""


def add(commands: Commands) -> None:
    """Adds `growthring generate`."""
    parser = commands.add_parser(
        "generate",
        help="go on with a text, by the language model of a run",
        description=_GENERATE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="RUN|FILE")
    parser.add_argument("prompt", metavar="TEXT")
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="bytes (default 200)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="0: the likeliest (default 0.8)"
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="only the K likeliest")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="only the likeliest that make up P"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (default 0)")
    parser.add_argument(
        "--device", default=None, help="cpu, cuda, ... (default: cuda if there is one)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.tokens < 0:
        raise InputError(f"--tokens {arguments.tokens}: it is 0 or more.")
    device = find_device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    trained = open_trained(arguments.file)
    card = trained.card
    if card.task != Language.name and card.input_type != "int64":
        raise InputError(
            f"'{arguments.file}' is a model of the task '{card.task or 'classification'}', not of language."
        )
    prompt = arguments.prompt.encode()
    tokens = generate(
        trained.model.to(device),
        torch.tensor(list(prompt), device=device),
        num_tokens=arguments.tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        generator=torch.Generator(device).manual_seed(arguments.seed),
        context=card.input_shape[0],
    )
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    if arguments.json:
        text = "".join(decoder.decode(bytes([token])) for token in tokens) + decoder.decode(
            b"", True
        )
        print(dumps({"prompt": arguments.prompt, "text": text}))
        return
    sys.stdout.write(shown(arguments.prompt))
    for token in tokens:  # as it comes
        sys.stdout.write(shown(decoder.decode(bytes([token]))))
        sys.stdout.flush()
    sys.stdout.write(shown(decoder.decode(b"", True)) + "\n")
