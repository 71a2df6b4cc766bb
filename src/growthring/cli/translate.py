"""growthring translate: sentences into the other language, with the model of a run."""

from __future__ import annotations

import argparse
import io
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from growthring.checkpoint.jsontext import dumps
from growthring.cli.common import Commands
from growthring.cli.trained import open_trained
from growthring.data import Vocabulary
from growthring.data.vocabulary import EOS
from growthring.errors import InputError
from growthring.files.foreign import shown
from growthring.train.setup import find_device
from growthring.train.tasks.translation import VOCABULARY, Translation
from growthring.train.translating import translate_tokens

_LINES = 256  # of standard input that are translated at a time

_TRANSLATE = """\
Translates sentences with the model of a finished run, or of a file of `growthring export` (with its vocabulary
beside it). Sentences are arguments; without any, the lines of standard input, one translation a line, an empty line
for an empty one; they are translated some at a time and come in their order, so an endless stream is fine.

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
    parser.set_defaults(run=_run, gathers="sentences")


def _run(arguments: argparse.Namespace) -> None:
    device = find_device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    trained = open_trained(arguments.file)
    if trained.card.task != Translation.name:
        raise InputError(
            f"'{arguments.file}' is a model of the task '{trained.card.task or 'classification'}': only models "
            f"that were trained for '{Translation.name}' can translate."
        )
    if VOCABULARY not in trained.files:
        raise InputError(
            f"'{arguments.file}' was trained on batches of your own program, so which tokens its words are is not "
            "known here: translate in Python (growthring.load, growthring.decoding.beam_search)."
        )
    given = {"beam": arguments.beam, "length_penalty": arguments.length_penalty}
    changed = {key: value for key, value in given.items() if value is not None}
    translator = _Translator(
        trained.model.to(device),
        Vocabulary(trained.files[VOCABULARY], f"the vocabulary of '{arguments.file}'"),
        Translation().options_of({**trained.card.task_options, **changed}),
        device,
        arguments.cut,
    )
    if arguments.sentences:
        translator.check(arguments.sentences)  # all of them, before any is translated
    for sentences in [arguments.sentences] if arguments.sentences else _lines():
        for source, translation in zip(sentences, translator.texts(sentences), strict=True):
            row = {"source": source, "translation": translation}
            print(dumps(row) if arguments.json else shown(translation.replace("\n", " ")))
        sys.stdout.flush()


def _lines() -> Iterator[list[str]]:
    """Standard input as some lines at a time; where somebody types, one.

    Raises:
        InputError: a line is not UTF-8.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):  # a line ends where the files of its pairs end one
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict", newline="\n")
    is_typed = sys.stdin.isatty()
    if is_typed:
        print("growthring: a sentence a line; end with Ctrl-D", file=sys.stderr)
    for start in itertools.count(1, 1 if is_typed else _LINES):
        try:
            lines = list(itertools.islice(sys.stdin, 1 if is_typed else _LINES))
        except UnicodeDecodeError as error:
            raise InputError(
                f"standard input is not UTF-8 ({error.reason}, in one of the lines from {start} on). Convert it "
                "(iconv -t utf-8)."
            ) from None
        if not lines:
            return
        yield [line.rstrip("\r\n") for line in lines]


class _Translator:
    """Texts to texts, as many at a time as there are; sentences are numbered from the first call on."""

    def __init__(
        self,
        model: nn.Module,
        vocabulary: Vocabulary,
        options: Mapping[str, Any],
        device: torch.device,
        is_cut: bool,
    ) -> None:
        self._model, self._vocabulary, self._options = model, vocabulary, options
        self._device, self._is_cut = device, is_cut
        self._done = 0

    def check(self, sentences: Sequence[str]) -> None:
        """Refuses sentences that are too long."""
        for number, sentence in enumerate(sentences, self._done + 1):
            self._tokens(sentence, number)

    def texts(self, sentences: Sequence[str]) -> Iterator[str]:
        """The translations; those before a sentence that is too long are given before it is refused."""
        tokens: list[list[int]] = []
        refused = None
        for number, sentence in enumerate(sentences, self._done + 1):
            try:
                tokens.append(self._tokens(sentence, number))
            except InputError as error:
                refused = error
                break
        self._done += len(tokens)
        full = [i for i, one in enumerate(tokens) if len(one) > 1]  # EOS alone is an empty line
        found = translate_tokens(
            self._model,
            [tokens[i] for i in full],
            self._vocabulary,
            beam=self._options["beam"],
            length_penalty=self._options["length_penalty"],
            max_length=self._options["max_length"],
            device=self._device,
        )
        translations = dict(zip(full, found, strict=True))
        yield from (translations.get(i, "") for i in range(len(tokens)))
        if refused is not None:
            raise refused

    def _tokens(self, sentence: str, number: int) -> list[int]:
        try:
            sentence.encode()
        except UnicodeEncodeError:  # arguments are whatever bytes the shell passed on
            raise InputError(f"sentence {number} is not UTF-8 ('{sentence:.40}').") from None
        tokens = self._vocabulary.encode(sentence.strip())
        most = self._options["max_length"] - 1
        if len(tokens) > most and not self._is_cut:
            raise InputError(
                f"sentence {number} has {len(tokens)} tokens ('{sentence:.40}…'), the model was trained for up to "
                f"{most}. Split it, or pass --cut."
            )
        return [*tokens[:most], EOS]
