"""Vocabulary: subwords of two languages, trained with the tokenizers library and kept for the next time.

It cuts at the level of bytes (byte-pair encoding), so no character is unknown: a rare one becomes several tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from growthring.data.errors import DataError
from growthring.errors import InputError
from growthring.files.atomic import write_bytes
from growthring.files.foreign import read_plain

PAD, BOS, EOS = 0, 1, 2
_SPECIAL = ("<pad>", "<bos>", "<eos>")
LEAST = 256 + len(_SPECIAL)  # subwords: single bytes, and those
_MOST = 1 << 28  # bytes of a vocabulary's file


class Vocabulary:
    """Subwords by number; 0, 1 and 2 are padding, the beginning and the end of a sentence.

    Args:
        text: as the tokenizers library writes a tokenizer: JSON.
        where: what messages call it.

    Raises:
        DataError: it is no such text, or not of growthring.

    >>> vocabulary = train_vocabulary(["ein Hund", "ein Haus", "eine Hand"], size=270)
    >>> tokens = vocabulary.encode("ein Hund läuft ☂")
    >>> vocabulary.decode(tokens)
    'ein Hund läuft ☂'
    """

    def __init__(self, text: str, where: str = "the vocabulary") -> None:
        self.text = text
        self._tokenizer = _tokenizer(text, where)
        if [self._tokenizer.token_to_id(token) for token in _SPECIAL] != [PAD, BOS, EOS]:
            raise DataError(f"{where} is not one of growthring: it lacks {', '.join(_SPECIAL)}.")
        self._tokenizer.encode_special_tokens = True  # a text "<eos>" is a text, and ends nothing

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    @property
    def fingerprint(self) -> str:
        """The same for the same vocabulary."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def encode(self, sentence: str) -> list[int]:
        """The numbers of a sentence's subwords."""
        return list(self._tokenizer.encode(sentence).ids)

    def encode_all(self, sentences: Sequence[str]) -> list[list[int]]:
        """Of many sentences at once, which is faster."""
        return [list(found.ids) for found in self._tokenizer.encode_batch_fast(list(sentences))]

    def decode(self, tokens: Iterable[int]) -> str:
        """The sentence of some numbers; padding, beginning and end are left out."""
        known = [token for token in tokens if token < len(self)]  # a model may have more outputs
        return str(self._tokenizer.decode(known, skip_special_tokens=True)).strip()


def train_vocabulary(sentences: Iterable[str], size: int) -> Vocabulary:
    """A vocabulary of at most so many subwords, those that are most frequent in some sentences.

    Raises:
        InputError: the size has no room for the bytes, or tokenizers is not installed.
    """
    if size < LEAST:
        raise InputError(
            f"a vocabulary of {size} is too small: {LEAST} are single bytes and marks."
        )
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(_SPECIAL),
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return Vocabulary(tokenizer.to_str())


def cached_vocabulary(
    sentences: Sequence[str], size: int, say: Callable[[str], None] = lambda _: None
) -> Vocabulary:
    """The same, from the cache if these sentences had been seen before; else it is said that it takes a while.

    The cache is the folder `growthring` in $XDG_CACHE_HOME, or in ~/.cache; what cannot be read or written there is
    trained again.
    """
    digest = hashlib.sha256(f"{size} {_library().__version__}\0".encode())
    for sentence in sentences:
        digest.update(sentence.encode() + b"\0")
    path = cache_folder() / f"vocabulary-{digest.hexdigest()[:32]}.json"
    try:
        return read_vocabulary(path)
    except (DataError, OSError):
        say(f"training a vocabulary of {size:,} subwords on {len(sentences):,} sentences ...")
        vocabulary = train_vocabulary(sentences, size)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, vocabulary.text.encode())
    except OSError:  # a cache is no condition for training
        pass
    return vocabulary


def read_vocabulary(path: Path) -> Vocabulary:
    """A vocabulary from its file.

    Raises:
        DataError: there is none, or it is damaged.
    """
    try:
        text = read_plain(path, _MOST).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the vocabulary '{path}' cannot be read: {error}.") from error
    return Vocabulary(text, f"'{path}'")


def cache_folder() -> Path:
    """Where growthring keeps what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "growthring"


def _tokenizer(text: str, where: str) -> Any:
    try:
        json.loads(text)
        return _library().Tokenizer.from_str(text)
    except InputError:
        raise
    except Exception as error:  # whatever the library says of a text that is none of its own
        raise DataError(f"{where} is not a vocabulary, or damaged: {error}.") from error


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise InputError(
            "translation needs the tokenizers library: pip install 'growthring[translation]'."
        ) from None
    return tokenizers
