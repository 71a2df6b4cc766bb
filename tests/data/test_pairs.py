"""Sentence pairs: every layout that such data is published in, and what is wrong with files of one's own."""

import os
import re

import pytest
from hypothesis import given, strategies as st

from growthring.data import DataError, load_pairs
from growthring.data.pairs import PAIRS, Pairs, _held_out, _joined
from growthring.errors import GrowthError

GERMAN = [f"Satz Nummer {i} ." for i in range(400)]
ENGLISH = [f"sentence number {i} ." for i in range(400)]


def write(folder, stem, sources, targets, languages=("de", "en")):
    folder.mkdir(parents=True, exist_ok=True)
    for language, lines in zip(languages, (sources, targets), strict=True):
        (folder / f"{stem}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")


def splits(folder, stems, **options):
    """Files of 40, 20 and 30 pairs."""
    for stem, start, end in zip(stems, (0, 40, 60), (40, 60, 90), strict=True):
        write(folder, stem, GERMAN[start:end], ENGLISH[start:end], **options)


def sizes(found):
    return [len(part) for part in (found.train, found.valid, found.test)]


@pytest.mark.parametrize("inner", ["", "multi30k"])
@pytest.mark.parametrize(
    "names", [("val", "test2016"), ("valid", "test"), ("dev", "test_2016_flickr")]
)
def test_multi30k(inner, names, tmp_path):
    splits(tmp_path / inner, ("train", *names))
    found = load_pairs("multi30k", tmp_path, "de", "en")
    assert sizes(found) == [40, 20, 30]
    assert (found.test.sources[0], found.test.targets[0]) == (GERMAN[60], ENGLISH[60])
    assert load_pairs("multi30k", tmp_path, "en", "de").train.sources[0] == ENGLISH[0]


@pytest.mark.parametrize("inner", ["", "iwslt14.tokenized.de-en"])
def test_iwslt14_as_fairseq_writes_it_with_and_without_marks(inner, tmp_path):
    whole = "das ist hübsch , nicht wahr ?"
    cut = "das ist h@@ ü@@ bsch , nicht wa@@ hr ?"
    for stem in ("train", "valid", "test"):
        write(tmp_path / inner, stem, [whole, cut], ["is n't it pretty ?", "is n't it pre@@ tty ?"])
    found = load_pairs("iwslt14", tmp_path, "de", "en")
    assert set(found.train.sources) == {whole} and set(found.test.targets) == {"is n't it pretty ?"}
    assert sizes(found) == [2, 2, 2]


@given(st.lists(st.text("abü.", min_size=1, max_size=9), min_size=1, max_size=5), st.data())
def test_marks_of_subwords_can_be_put_anywhere(words, data):
    def cut(word):
        at = data.draw(st.integers(0, len(word)))
        return f"{word[:at]}@@ {word[at:]}" if 0 < at < len(word) else word

    assert _joined(" ".join(map(cut, words))) == " ".join(words)


TABLES = {
    "plain": ("", "{en}\t{de}"),
    "attribution": ("", "{en}\t{de}\tCC-BY 2.0 (France) #1 & #2"),
    "head": ("en\tde\n", "{en}\t{de}"),
    "head, other order": ("id\tde\ten\n", "7\t{de}\t{en}"),
    "byte order mark": ("\ufeffen\tde\n", "{en}\t{de}"),
    "windows": ("", "{en}\t{de}\r"),
}


@pytest.mark.parametrize("name", ["tatoeba", "pairs"])
@pytest.mark.parametrize("layout", TABLES)
def test_tables(layout, name, tmp_path):
    head, row = TABLES[layout]
    rows = [row.format(de=de, en=en) for de, en in zip(GERMAN, ENGLISH, strict=True)]
    path = tmp_path / "deu.tsv"
    path.write_bytes((head + "\n".join(rows) + "\n").encode())
    for root in (path, tmp_path) if name == "tatoeba" else (path,):
        found = load_pairs(name, root, "de", "en")
        pairs = {
            p
            for part in (found.train, found.valid, found.test)
            for p in zip(part.sources, part.targets, strict=True)
        }
        assert pairs == set(zip(GERMAN, ENGLISH, strict=True)) and sum(sizes(found)) == 400
    assert load_pairs(name, path, "en", "de").train.sources[0] in ENGLISH


def test_two_files_of_ones_own(tmp_path):
    write(tmp_path, "corpus", GERMAN, ENGLISH)
    found = load_pairs("pairs", tmp_path / "corpus", "de", "en")
    assert sum(sizes(found)) == 400 and all(sizes(found))
    write(tmp_path, "other", GERMAN, ENGLISH, languages=("fr", "pt_BR"))
    assert sum(sizes(load_pairs("pairs", tmp_path / "other", "fr", "pt_BR"))) == 400


def test_a_folder_of_ones_own(tmp_path):
    write(tmp_path / "a", "train", GERMAN, ENGLISH)
    assert all(sizes(load_pairs("pairs", tmp_path / "a", "de", "en")))  # some are held out
    splits(tmp_path / "b", ("train", "valid", "test"))
    assert sizes(load_pairs("pairs", tmp_path / "b", "de", "en")) == [40, 20, 30]
    (tmp_path / "b" / "test.de").unlink()
    (tmp_path / "b" / "test.en").unlink()
    found = load_pairs("pairs", tmp_path / "b", "de", "en")
    assert sizes(found) == [40, 20, 20] and found.test.sources == found.valid.sources


def test_no_sentence_is_on_both_sides(tmp_path):
    twice = [*GERMAN, *GERMAN[:200]]
    write(tmp_path, "corpus", twice, [*ENGLISH, *(f"another {line}" for line in ENGLISH[:200])])
    found = load_pairs("pairs", tmp_path / "corpus", "de", "en")
    sides = [set(part.sources) for part in (found.train, found.valid, found.test)]
    assert sum(map(len, sides)) == 400 and sum(sizes(found)) == 600


@given(st.integers(0, 50))
def test_what_is_held_out_depends_on_its_own_text_only(more):
    some = _held_out(Pairs("p", GERMAN, ENGLISH))
    extra = [f"noch einer {i}" for i in range(more)]
    others = _held_out(Pairs("p", [*extra, *GERMAN], [*extra, *ENGLISH]))
    assert set(some.test.sources) <= set(others.test.sources)
    assert set(some.train.sources) <= set(others.train.sources)


def test_empty_lines_are_left_out_and_that_is_said(tmp_path):
    splits(tmp_path, ("train", "valid", "test"))
    write(tmp_path, "train", ["eins", " ", "drei", ""], ["one", "two", "", ""])
    found = load_pairs("multi30k", tmp_path, "de", "en")
    assert found.train.sources == ["eins"] and found.train.targets == ["one"]
    assert found.train.notes == ("3 pairs of 'multi30k/train' with an empty line left out.",)
    assert found.test.notes == ()


def test_only_ends_of_lines_end_a_line(tmp_path):
    """Python's splitlines would end one at these, and all pairs behind would be beside themselves."""
    odd = ["ein\u2028Satz", "ein\x0bSatz", "ein\x85Satz", "Ende"]
    splits(tmp_path, ("train", "valid", "test"))
    write(tmp_path, "train", odd, ["a", "b", "c", "end"])
    found = load_pairs("multi30k", tmp_path, "de", "en").train
    assert found.sources == odd and found.targets[-1] == "end"


def test_a_part_of_the_pairs(tmp_path):
    splits(tmp_path, ("train", "valid", "test"))
    train = load_pairs("multi30k", tmp_path, "de", "en").train
    assert train.first(3).sources == GERMAN[:3] and len(train.first(None)) == 40


def odd_lines(folder):
    splits(folder, ("train", "valid", "test"))
    (folder / "train.en").write_text("one line only\n")


def not_utf8(folder):
    splits(folder, ("train", "valid", "test"))
    (folder / "valid.de").write_bytes("gut\nkühl\n".encode("latin-1"))


def one_file(folder):
    splits(folder, ("train", "valid", "test"))
    (folder / "test.en").unlink()


def only_empty(folder):
    write(folder, "train", [" "] * 5, ["a"] * 5)


def few(folder):
    write(folder, "train", GERMAN[:3], ENGLISH[:3])


def a_device(folder):
    splits(folder, ("train", "valid", "test"))
    (folder / "train.de").unlink()
    os.mkfifo(folder / "train.de")


BAD_FOLDERS = {
    odd_lines: "train.de' has 40 lines and '{}/train.en' has 1: each line must be the translation",
    not_utf8: "valid.de', line 2 is not UTF-8. Convert it (iconv -t utf-8).",
    one_file: "test.en' is not there, and its translation alone teaches nothing.",
    only_empty: "has no sentence with a translation: all of its lines are empty.",
    few: "has 3 pairs, too few to hold some out for testing.",
    a_device: "train.de' cannot be read: it is not a regular file.",
    lambda folder: (
        None
    ): "holds no train.de and train.en; other languages are set with task_options.source",
}


@pytest.mark.parametrize("damage", BAD_FOLDERS)
@pytest.mark.parametrize("name", ["multi30k", "iwslt14", "pairs"])
def test_folders_that_cannot_be_read(damage, name, tmp_path):
    damage(tmp_path)
    with pytest.raises(DataError, match=re.escape(BAD_FOLDERS[damage].format(tmp_path))):
        load_pairs(name, tmp_path, "de", "en")


def table(text):
    def make(folder):
        path = folder / "table.tsv"
        path.write_text(text)
        return path

    return make


SHORT_ROW = "id\ten\tde\n1\ta\tb\n2\tc\n"
BAD_ROOTS = {
    ("poems", "folder"): "no sentence pairs 'poems'; there are numbers, multi30k",
    ("pairs", "nothing"): "pass where they are (--data), a folder with train.de",
    ("iwslt14", "none"): "none' is not there: pass where 'iwslt14' is",
    ("pairs", "none"): "neither '{0}/none' nor '{0}/none.de' and '{0}/none.en'",
    ("tatoeba", "folder"): "holds no .tsv file; pass the tab-separated file itself",
    ("tatoeba", "two tables"): "holds 2 tables (a.tsv, b.tsv): pass one of them",
    ("tatoeba", "no tab"): "line 3 has no tab: needed are two columns",
    ("tatoeba", "empty"): "table.tsv' is empty.",
    ("tatoeba", "short row"): "line 3 has 2 columns, the head has 3",
    ("tatoeba", "no head"): "Write a first line with the languages",
    ("numbers", "other languages"): "'numbers' is from de to en, not from fr to en.",
}
ROOTS = {
    "folder": lambda p: p,
    "nothing": lambda p: None,
    "other languages": lambda p: None,
    "none": lambda p: p / "none",
    "two tables": lambda p: [(p / name).write_text("a\tb") for name in ("a.tsv", "b.tsv")] and p,
    "no tab": table("a\tb\n\nonly one\n"),
    "empty": table("\n\n"),
    "short row": table(SHORT_ROW),
    "no head": table("bonjour\thello\n"),
}


@pytest.mark.parametrize(("name", "kind"), BAD_ROOTS)
def test_what_is_not_there(name, kind, tmp_path):
    source = "fr" if kind in ("other languages", "no head") else "de"
    with pytest.raises(GrowthError, match=re.escape(BAD_ROOTS[name, kind].format(tmp_path))):
        load_pairs(name, ROOTS[kind](tmp_path), source, "en")


def test_all_layouts_are_named():
    assert set(PAIRS) == {"numbers", "multi30k", "iwslt14", "tatoeba", "pairs"}
