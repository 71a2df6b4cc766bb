"""growthring generate: a text that goes on where a prompt ends, by the language model of a run."""

from __future__ import annotations

import argparse
import codecs
import io
import itertools
import sys
from collections.abc import Iterable, Iterator

import torch

from growthring.checkpoint.jsontext import dumps
from growthring.cli.common import Commands
from growthring.cli.trained import add_model, named_recipe, open_trained
from growthring.decoding import generate
from growthring.errors import InputError
from growthring.files.foreign import shown
from growthring.train import Card
from growthring.train.setup import find_device
from growthring.train.tasks import Language
from growthring.train.tasks.language import BYTES

_GENERATE = """\
Lets the language model of a finished run, or of a file of `growthring export`, go on with a text. Models of the
task 'language' read and write bytes. A TEXT of - is read from standard input, as it stands there.

Models of growthring.zoo are made from what the file says; other code runs only if you name it, with --recipe or
--model.

examples:
  growthring generate runs/gpt "def "
  growthring generate runs/gpt "def " --tokens 500 --temperature 0.7 --seed 1
  growthring generate runs/gpt "ROMEO:" --temperature 0
  growthring generate runs/gpt - < beginning.py
  growthring generate runs/llama "def " --recipe llama.py:tiny_llama
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
    add_model(parser)
    parser.add_argument(
        "--device", default=None, help="cpu, cuda, ... (default: cuda if there is one)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.tokens < 0:
        raise InputError(f"--tokens {arguments.tokens}: it is 0 or more.")
    device = find_device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    recipe = named_recipe(arguments)
    trained = open_trained(arguments.file, arguments.model, recipe)
    _check_task(arguments.file, trained.card)
    prompt = _prompt(arguments.prompt)
    tokens = generate(
        trained.model.to(device),
        torch.tensor(list(prompt), device=device),
        num_tokens=arguments.tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        generator=torch.Generator(device).manual_seed(arguments.seed),
        context=trained.card.input_shape[0],
    )
    if arguments.json:
        text = "".join(_texts(tokens, _decoder()))
        print(dumps({"prompt": prompt.decode(errors="replace"), "text": text}))
        return
    decoder = io.IncrementalNewlineDecoder(_decoder(), translate=True)
    for piece in _texts(itertools.chain(prompt, tokens), decoder):  # as it comes
        sys.stdout.write(shown(piece))
        sys.stdout.flush()
    sys.stdout.write("\n")


def _check_task(given: str, card: Card) -> None:
    """Refuses models that do not go on with bytes."""
    task = card.task or (Language.name if card.input_type == "int64" else "classification")
    if task != Language.name:  # runs of before do not name theirs
        raise InputError(
            f"'{given}' is a model of the task '{task}', not of '{Language.name}': it does not go on with a text."
        )
    if card.data is None:
        raise InputError(
            f"'{given}' was trained on tokens of your own program, so what they stand for is not known here. "
            "Encode the text yourself, and call growthring.decoding.generate."
        )


def _prompt(given: str) -> bytes:
    """The bytes of a prompt, which need not be text."""
    if given == "-":
        content = sys.stdin.buffer.read()
    else:
        content = given.encode(errors="surrogateescape")
    if not content:
        raise InputError(
            "the prompt is empty: a model goes on from at least one byte, such as a space (' ')."
        )
    return content


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


def _texts(
    tokens: Iterable[int], decoder: codecs.IncrementalDecoder | io.IncrementalNewlineDecoder
) -> Iterator[str]:
    """What bytes read so far mean as text; what is left at the end may be part of a character."""
    for token in tokens:
        # A model may know more tokens than there are bytes; those stand for nothing.
        yield decoder.decode(bytes([token]) if token < BYTES else b"\xff")
    yield decoder.decode(b"", True)
