"""Sentence pairs: a text and its translation, line by line, from the layouts that such data is published in."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from growthring.core.wording import counted
from growthring.data.errors import DataError
from growthring.data.numberwords import number_pairs
from growthring.errors import InputError
from growthring.files.foreign import read_plain

_MOST = 1 << 33  # bytes of a text file
# Of data without a split, one sentence in so many is for validation, and one for testing.
_HELD_OUT = 50
_SPLITS = {
    "train": ("train",),
    "valid": ("valid", "val", "dev"),
    "test": ("test", "test2016", "test_2016_flickr"),
}


@dataclass(frozen=True)
class Pairs:
    """Sentences and their translations.

    Attributes:
        name: in messages.
        sources, targets: as many of each, without ends of lines; none is empty.
        notes: what was left out, in sentences.
    """

    name: str
    sources: Sequence[str]
    targets: Sequence[str]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.sources)

    def first(self, count: int | None) -> Pairs:
        """The first so many; all for None."""
        return Pairs(self.name, self.sources[:count], self.targets[:count], self.notes)


@dataclass(frozen=True)
class PairSplits:
    """Pairs to train on, to choose settings by, and to test with."""

    train: Pairs
    valid: Pairs
    test: Pairs


def load_pairs(name: str, root: str | Path | None, source: str, target: str) -> PairSplits:
    """Reads sentence pairs.

    | name | root |
    | --- | --- |
    | `"numbers"` | not needed: German number words and English ones, generated |
    | `"multi30k"` | holds train.de, train.en, val.*, test2016.* (or a folder multi30k with them) |
    | `"iwslt14"` | holds train.de, train.en, valid.*, test.* as fairseq's prepare-iwslt14.sh writes them |
    | `"tatoeba"` | a tab-separated file (`en<TAB>de`, more columns are passed over), or the folder with one |
    | `"pairs"` | a folder as Multi30k's, `corpus` for corpus.de and corpus.en, or a table as Tatoeba's |

    Of data without a split every fiftieth sentence (by its text, so that no sentence is on both sides) is for
    validation and another one for testing.

    >>> pairs = load_pairs("numbers", None, "de", "en").train
    >>> pairs.sources[0], pairs.targets[0]
    ('sechstausendvierundvierzig', 'six thousand and forty-four')

    Args:
        name: one of the above.
        root: where the data is. `~` is understood.
        source, target: the languages: endings of the files, or where a table has no head, "en" and "de".
    """
    if name not in _LOADERS:
        raise InputError(f"there are no sentence pairs '{name}'; there are {', '.join(_LOADERS)}.")
    return _LOADERS[name](None if root is None else Path(root).expanduser(), source, target)


def _numbers(root: Path | None, source: str, target: str) -> PairSplits:
    if (source, target) != ("de", "en"):
        raise InputError(f"'numbers' is from de to en, not from {source} to {target}.")
    train, valid, test = (
        Pairs("numbers", [a for a, _ in pairs], [b for _, b in pairs]) for pairs in number_pairs()
    )
    return PairSplits(train, valid, test)


def _multi30k(root: Path | None, source: str, target: str) -> PairSplits:
    folder = _needed("multi30k", root or Path("data"))
    inner = folder / "multi30k"
    return _folder("multi30k", inner if inner.is_dir() else folder, source, target)


def _iwslt14(root: Path | None, source: str, target: str) -> PairSplits:
    folder = _needed("iwslt14", root or Path("data"))
    inner = folder / "iwslt14.tokenized.de-en"
    splits = _folder("iwslt14", inner if inner.is_dir() else folder, source, target)
    # fairseq has cut its words at "@@ ": they are put together, as the vocabulary here cuts its own way.
    train, valid, test = (
        Pairs(p.name, [_joined(s) for s in p.sources], [_joined(s) for s in p.targets], p.notes)
        for p in (splits.train, splits.valid, splits.test)
    )
    return PairSplits(train, valid, test)


def _joined(text: str) -> str:
    """A text without the marks of fairseq's subwords.

    >>> _joined("das ist h@@ ü@@ bsch .")
    'das ist hübsch .'
    """
    return text.replace("@@ ", "").removesuffix("@@")


def _tatoeba(root: Path | None, source: str, target: str) -> PairSplits:
    path = _needed("tatoeba", root or Path("data"))
    for inner in ("tatoeba", "."):
        files = sorted((path / inner).glob("*.tsv")) if path.is_dir() else [path]
        if len(files) > 1:
            listed = ", ".join(file.name for file in files[:5])
            raise DataError(
                f"'{path / inner}' holds {len(files)} tables ({listed}): pass one of them (--data)."
            )
        if files:
            return _table("tatoeba", files[0], source, target)
    raise DataError(f"'{path}' holds no .tsv file; pass the tab-separated file itself (--data).")


def _own(root: Path | None, source: str, target: str) -> PairSplits:
    if root is None:
        raise InputError(
            "'pairs' are texts of your own: pass where they are (--data), a folder with "
            f"train.{source} and train.{target}, or a tab-separated file."
        )
    if root.is_dir():
        return _folder(root.name, root, source, target)
    if root.is_file():
        return _table(root.name, root, source, target)
    if not any(root.with_name(f"{root.name}.{language}").exists() for language in (source, target)):
        raise DataError(
            f"there is neither '{root}' nor '{root}.{source}' and '{root}.{target}'; pass where the pairs are "
            "(--data): a folder, a tab-separated file, or what the names of two files begin with. Other languages "
            "are set with task_options.source and task_options.target."
        )
    return _held_out(_pair_of_files(root.name, root, source, target))


def _needed(name: str, root: Path) -> Path:
    if not root.exists():
        raise DataError(f"'{root}' is not there: pass where '{name}' is (--data).")
    return root


def _folder(name: str, folder: Path, source: str, target: str) -> PairSplits:
    found: dict[str, Pairs] = {}
    for split, stems in _SPLITS.items():
        for stem in stems:
            files = [folder / f"{stem}.{language}" for language in (source, target)]
            if any(file.exists() for file in files):
                found[split] = _pair_of_files(f"{name}/{stem}", folder / stem, source, target)
                break
    if "train" not in found:
        raise DataError(
            f"'{folder}' holds no train.{source} and train.{target}; other languages are set with "
            "task_options.source and task_options.target."
        )
    if "test" not in found and "valid" not in found:
        return _held_out(found["train"])
    valid = found.get("valid", found.get("test", found["train"]))
    return PairSplits(found["train"], valid, found.get("test", valid))


def _pair_of_files(name: str, stem: Path, source: str, target: str) -> Pairs:
    lines = [_lines(stem.with_name(f"{stem.name}.{language}")) for language in (source, target)]
    if len(lines[0]) != len(lines[1]):
        raise DataError(
            f"'{stem}.{source}' has {len(lines[0]):,} lines and '{stem}.{target}' has {len(lines[1]):,}: each line "
            "must be the translation of the one beside it. Find where one of them was cut or wrapped."
        )
    return _without_empty(name, lines[0], lines[1])


def _table(name: str, path: Path, source: str, target: str) -> PairSplits:
    numbered = [(n, line.split("\t")) for n, line in enumerate(_lines(path), 1) if line.strip()]
    rows = [row for _, row in numbered]
    if not rows:
        raise DataError(f"'{path}' is empty.")
    for number, row in numbered:
        if len(row) < 2:
            raise DataError(
                f"'{path}', line {number} has no tab: needed are two columns, '{row[0]:.40}' is one."
            )
    columns = ["en", "de"]  # as Tatoeba's pages have them
    head = [cell.strip() for cell in rows[0]]
    if {source, target} <= set(head):
        columns, rows, numbered = head, rows[1:], numbered[1:]
    if source not in columns or target not in columns:
        raise DataError(
            f"'{path}' has no head that names the columns, so they are taken for {' and '.join(columns)}; asked "
            f"for are {source} and {target}. Write a first line with the languages, separated by a tab."
        )
    at = [columns.index(language) for language in (source, target)]
    for number, row in numbered:
        if len(row) <= max(at):
            raise DataError(
                f"'{path}', line {number} has {counted(len(row), 'column')}, the head has {len(columns)}."
            )
    return _held_out(_without_empty(name, [r[at[0]] for r in rows], [r[at[1]] for r in rows]))


def _lines(path: Path) -> list[str]:
    try:
        content = read_plain(path, _MOST).decode("utf-8-sig")
    except FileNotFoundError:
        raise DataError(
            f"'{path}' is not there, and its translation alone teaches nothing."
        ) from None
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(
            f"'{path}', line {line} is not UTF-8. Convert it (iconv -t utf-8)."
        ) from None
    # only real ends of lines: str.splitlines would also split at U+2028, which sentences may contain
    lines = content.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines and not lines[-1] else lines


def _without_empty(name: str, sources: Sequence[str], targets: Sequence[str]) -> Pairs:
    kept = [(a.strip(), b.strip()) for a, b in zip(sources, targets, strict=True)]
    full = [(a, b) for a, b in kept if a and b]
    if not full:
        raise DataError(f"'{name}' has no sentence with a translation: all of its lines are empty.")
    empty = len(kept) - len(full)
    notes = (f"{counted(empty, 'pair')} of '{name}' with an empty line left out.",) if empty else ()
    return Pairs(name, [a for a, _ in full], [b for _, b in full], notes)


def _held_out(pairs: Pairs) -> PairSplits:
    parts: Mapping[int, list[tuple[str, str]]] = {0: [], 1: [], 2: []}
    for source, target in zip(pairs.sources, pairs.targets, strict=True):
        at = zlib.crc32(source.encode()) % _HELD_OUT
        parts[at if at in (1, 2) else 0].append((source, target))
    if not all(parts.values()):
        raise DataError(
            f"'{pairs.name}' has {counted(len(pairs), 'pair')}, too few to hold some out for testing."
        )
    train, valid, test = (
        Pairs(pairs.name, [a for a, _ in p], [b for _, b in p], pairs.notes if k == 0 else ())
        for k, p in parts.items()
    )
    return PairSplits(train, valid, test)


_LOADERS: dict[str, Callable[[Path | None, str, str], PairSplits]] = {
    "numbers": _numbers,
    "multi30k": _multi30k,
    "iwslt14": _iwslt14,
    "tatoeba": _tatoeba,
    "pairs": _own,
}
PAIRS = tuple(_LOADERS)
