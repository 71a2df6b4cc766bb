"""Vocabularies: every text comes back, they are kept, and a damaged one is made again."""

import builtins
import os

import pytest
from hypothesis import given, settings, strategies as st

from growthring.data import DataError, Vocabulary
from growthring.data.vocabulary import (
    BOS,
    EOS,
    LEAST,
    PAD,
    cache_folder,
    cached_vocabulary,
    read_vocabulary,
    train_vocabulary,
)
from growthring.errors import InputError

TEXTS = ["ein Hund läuft", "eine Katze läuft", "ein Haus", "a dog runs", "a cat runs", "a house"]
SMALL = train_vocabulary(TEXTS, 280)


@given(st.text(max_size=30))
@settings(max_examples=50)
def test_every_text_comes_back_whatever_its_characters(text):
    """Bytes: no character is unknown. A sentence has no spaces around it."""
    tokens = SMALL.encode(text.strip())
    assert SMALL.decode(tokens) == text.strip()
    assert not {PAD, BOS, EOS} & set(tokens) and all(0 <= token < len(SMALL) for token in tokens)
    assert SMALL.encode_all([text.strip()]) == [tokens]


@pytest.mark.parametrize(
    "text", ["<eos>", "a <pad> b", "<bos><eos>", "☂ 漢字 ñ 🙂", "\u200b", "a\tb"]
)
def test_texts_that_look_like_marks_are_texts(text):
    tokens = SMALL.encode(text)
    assert not {PAD, BOS, EOS} & set(tokens) and SMALL.decode(tokens) == text
    again = Vocabulary(SMALL.text)  # as it is read from a run's folder
    assert again.encode(text) == tokens


def test_marks_and_tokens_that_no_vocabulary_has_are_left_out_of_texts():
    tokens = SMALL.encode("ein Hund")
    assert SMALL.decode([BOS, *tokens, EOS, PAD, PAD, len(SMALL), 10**6]) == "ein Hund"
    assert SMALL.decode([]) == "" and SMALL.encode("") == []


def test_a_vocabulary_is_the_same_each_time_and_has_its_fingerprint():
    again = train_vocabulary(TEXTS, 280)
    assert again.text == SMALL.text and again.fingerprint == SMALL.fingerprint
    assert train_vocabulary(TEXTS, 279).fingerprint != SMALL.fingerprint
    assert len(SMALL) <= 280 and len(train_vocabulary(["a"], 5000)) < 280


def test_frequent_words_take_fewer_tokens():
    assert len(SMALL.encode("läuft")) < len("läuft".encode())


@pytest.mark.parametrize("size", [0, 100, LEAST - 1])
def test_too_small(size):
    with pytest.raises(InputError, match=f"a vocabulary of {size} is too small: 259 are single"):
        train_vocabulary(TEXTS, size)
    assert len(train_vocabulary(TEXTS, LEAST)) == LEAST


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "growthring"


def test_it_is_trained_once_for_the_same_sentences(cache):
    said: list[str] = []
    first = cached_vocabulary(TEXTS, 280, said.append)
    assert said == ["training a vocabulary of 280 subwords on 6 sentences ..."]
    assert cached_vocabulary(TEXTS, 280, said.append).text == first.text == SMALL.text
    assert len(said) == 1 and cache_folder() == cache and len(list(cache.iterdir())) == 1
    cached_vocabulary(TEXTS, 281, said.append)
    cached_vocabulary(TEXTS[:-1], 280, said.append)
    cached_vocabulary(["".join(TEXTS)], 280, said.append)
    assert len(said) == 4 == len(list(cache.iterdir()))


DAMAGE = {
    "cut": lambda path: os.truncate(path, 100),
    "empty": lambda path: os.truncate(path, 0),
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe"),
    "other JSON": lambda path: path.write_text('{"version": "1.0"}'),
    "another tokenizer": lambda path: path.write_text(SMALL.text.replace("<eos>", "<end>")),
    "a folder": lambda path: path.unlink() or path.mkdir(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_trained_anew(damage, cache):
    cached_vocabulary(TEXTS, 280)
    (path,) = cache.iterdir()
    DAMAGE[damage](path)
    with pytest.raises(DataError, match=r"cannot be read|is not a vocabulary|is not one of growth"):
        read_vocabulary(path)
    said: list[str] = []
    assert cached_vocabulary(TEXTS, 280, said.append).text == SMALL.text and len(said) == 1
    if damage != "a folder":
        assert read_vocabulary(path).text == SMALL.text


def test_no_cache_can_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cached_vocabulary(TEXTS, 280).text == SMALL.text


def test_without_a_setting_the_cache_is_at_home(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "growthring"


def test_the_library_is_not_installed(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.split(".")[0] == "tokenizers":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    words = r"needs the tokenizers library: pip install 'growthring\[translation\]'"
    for use in (lambda: train_vocabulary(TEXTS, 280), lambda: Vocabulary(SMALL.text)):
        with pytest.raises(InputError, match=words):
            use()
