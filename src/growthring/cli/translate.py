"""growthring translate: sentences into the other language, with the model of a run."""

from __future__ import annotations

import argparse
import sys

import torch

from growthring.checkpoint.jsontext import dumps
from growthring.cli.common import Commands
from growthring.cli.trained import Trained, open_trained
from growthring.data import Vocabulary
from growthring.data.vocabulary import EOS
from growthring.errors import InputError
from growthring.files.foreign import shown
from growthring.train.setup import find_device
from growthring.train.tasks.translation import VOCABULARY, Translation
from growthring.train.translating import translate_tokens

_TRANSLATE = """\
Translates sentences with the model of a finished run, or of a file of `growthring export` (with its vocabulary
beside it). Sentences are arguments; without any, the lines of standard input, one translation a line, an empty line
for an empty one.

examples:
  growthring translate runs/multi30k "Ein Hund läuft."
  growthring translate runs/multi30k < captions.de > captions.en
  growthring translate model.safetensors --beam 1 --json "Ein Hund läuft."
"""


def add(commands: Commands) -> None:
    """Adds `growthring translate`."""
    parser = commands.add_parser(
        "translate",
        help="translate sentences with the model of a run",
        description=_TRANSLATE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="RUN|FILE")
    parser.add_argument("sentences", nargs="*", metavar="SENTENCE")
    parser.add_argument(
        "--beam",
        type=int,
        metavar="N",
        help="prefixes at a time (default: as in training; 1: greedy)",
    )
    parser.add_argument(
        "--length-penalty", type=float, metavar="P", help="more favours longer translations"
    )
    parser.add_argument(
        "--cut", action="store_true", help="cut sentences that are too long, instead of an error"
    )
    parser.add_argument(
        "--device", default=None, help="cpu, cuda, ... (default: cuda if there is one)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object for each sentence")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    device = find_device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    trained = open_trained(arguments.file)
    if VOCABULARY not in trained.files:
        raise InputError(
            f"'{arguments.file}' is a model of the task '{trained.card.task or 'classification'}', which has no "
            "vocabulary: only models that were trained to translate can do so."
        )
    options = Translation().options_of(trained.card.task_options)
    given = {"beam": arguments.beam, "length_penalty": arguments.length_penalty}
    options |= {key: value for key, value in given.items() if value is not None}
    sentences = arguments.sentences or _lines()
    vocabulary = Vocabulary(trained.files[VOCABULARY], f"the vocabulary of '{arguments.file}'")
    tokens = _tokens(sentences, vocabulary, options["max_length"], arguments.cut)
    full = [i for i, one in enumerate(tokens) if len(one) > 1]  # EOS alone is an empty line
    found = translate_tokens(
        _on(trained, device).model,
        [tokens[i] for i in full],
        vocabulary,
        beam=options["beam"],
        length_penalty=options["length_penalty"],
        max_length=options["max_length"],
        device=device,
    )
    translations = dict(zip(full, found, strict=True))
    for i, sentence in enumerate(sentences):
        translation = translations.get(i, "")
        row = {"source": sentence, "translation": translation}
        print(dumps(row) if arguments.json else shown(translation))


def _on(trained: Trained, device: torch.device) -> Trained:
    trained.model.to(device)
    return trained


def _lines() -> list[str]:
    if sys.stdin.isatty():
        print("growthring: a sentence a line; end with Ctrl-D", file=sys.stderr)
    return [line.rstrip("\r\n") for line in sys.stdin]


def _tokens(
    sentences: list[str], vocabulary: Vocabulary, max_length: int, is_cut: bool
) -> list[list[int]]:
    result = []
    for number, sentence in enumerate(sentences, 1):
        tokens = vocabulary.encode(sentence.strip())
        if len(tokens) >= max_length and not is_cut:
            raise InputError(
                f"sentence {number} has {len(tokens)} tokens ('{shown(sentence):.40}…'), the model was trained for "
                f"up to {max_length - 1}. Split it, or pass --cut. Nothing was translated."
            )
        result.append([*tokens[: max_length - 1], EOS])
    return result
