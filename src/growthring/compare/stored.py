"""comparison.json as it was stored: checked field by field, as someone may have changed it.

Names of contenders are names of folders, which are read and trained in: ../../elsewhere must not get through.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from growthring.compare.contenders import FIXED, MATCHED, NAME
from growthring.errors import InputError
from growthring.planning.lengths import Length
from growthring.train import parse_settings
from growthring.train.bounds import BOUNDS, misfit
from growthring.train.kinds import fits, shortened
from growthring.train.recipe import KINDS

MOST_SEEDS = 10_000
_FIELDS = (
    "recipe",
    "changes",
    "settings",
    "clock",
    "match",
    "contenders",
    "decisions",
    "machine",
    "rivals",
)
_LENGTHS = ("epochs", "total_steps")  # a record has one of them
_ENTRY = ("settings", "text", "seeds", "epochs", "fixed", "grows")
_DECISION = ("epochs", "share", "of", "runs")


def length_in(fields: Mapping[str, Any]) -> Length | None:
    """How long a run is, as settings and stored records say it; None while it is not decided.

    >>> print(
    ...     length_in({"epochs": 30}), length_in({"total_steps": 900}), length_in({"epochs": None})
    ... )
    30 epochs 900 steps None
    """
    if fields.get("total_steps") is not None:
        return Length(int(fields["total_steps"]), "steps")
    return None if fields.get("epochs") is None else Length(int(fields["epochs"]), "epochs")


def with_length(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record as it was stored, its length in one of them."""
    rest = {key: value for key, value in stored.items() if key not in _LENGTHS}
    return {**rest, "length": length_in(stored)}


def flat(record: Any) -> dict[str, Any]:
    """A record as it is stored, its length under the name of the option that gives it: {"epochs": 30}."""
    values: dict[str, Any] = dataclasses.asdict(record)
    length: Length | None = record.length
    stored = {"epochs": None} if length is None else {length.option: length.count}
    return {
        name: entry
        for key, value in values.items()
        for name, entry in (stored if key == "length" else {key: value}).items()
    }


def without_length(texts: Iterable[str], settings: Mapping[str, Any]) -> list[str]:
    """`key=value` texts without the length of the run, where settings give another.

    >>> without_length(["epochs=30", "lr=0.1"], {"total_steps": 900})
    ['lr=0.1']
    """
    dropped = _LENGTHS if any(settings.get(key) is not None for key in _LENGTHS) else ()
    return [text for text in texts if text.partition("=")[0].strip() not in dropped]


def check_stored(content: Any, path: Path, clocks: Mapping[str, str]) -> None:
    """Refuses a manifest that no comparison has written.

    Raises:
        InputError: names the field, what was found and what is allowed.
    """
    check = _Checker(path)
    check.fields(content, "the whole file", _FIELDS)
    check.need(
        content["recipe"], "recipe", isinstance(content["recipe"], str | None), "a text, or null"
    )
    check.texts(content["changes"], "changes")
    check.need(content["machine"], "machine", isinstance(content["machine"], str), "a text")
    clock, settings = content["clock"], content["settings"]
    check.need(
        clock, "clock", isinstance(clock, str) and clock in clocks, f"one of {', '.join(clocks)}"
    )
    check.need(settings, "settings", isinstance(settings, dict), "an object")
    length = {} if settings.get("total_steps") is not None else {"epochs": None}
    for key, value in {**length, **settings}.items():
        allowed = misfit(key, value) if key in KINDS else None
        check.need(value, f"settings.{key}", allowed is None, allowed or "")
    contenders = content["contenders"]
    check.need(contenders, "contenders", isinstance(contenders, dict), "an object")
    for name, entry in contenders.items():
        check.entry(name, entry)
    known = f"null, or one of {', '.join(contenders)}"
    match = content["match"]
    check.need(
        match, "match", match is None or (isinstance(match, str) and match in contenders), known
    )
    rivals = content["rivals"]
    is_known = isinstance(rivals, list) and all(rival in list(MATCHED) for rival in rivals)
    check.need(rivals, "rivals", is_known, f"a list of {', '.join(MATCHED)}")
    decisions = content["decisions"]
    check.need(decisions, "decisions", isinstance(decisions, dict), "an object")
    for name, decision in decisions.items():
        check.decision(name, decision, contenders)


class _Checker:
    def __init__(self, path: Path) -> None:
        self._path = path

    def need(self, value: Any, where: str, is_right: bool, allowed: str) -> None:
        if not is_right:
            raise InputError(
                f"'{self._path}' is not the manifest of a comparison: '{where}' is {shortened(value)}; allowed is "
                f"{allowed}. Put the old value back, or give the comparison another folder."
            )

    def fields(self, value: Any, where: str, known: tuple[str, ...]) -> None:
        self.need(value, where, isinstance(value, dict), "an object")
        if "epochs" in known and "total_steps" in value:
            known = tuple("total_steps" if key == "epochs" else key for key in known)
        for key in known:
            self.need(sorted(value), where, key in value, f"an object with '{key}'")
        for key in value:
            self.need(key, where, key in known, f"an object with {', '.join(known)} and no more")

    def texts(self, value: Any, where: str) -> None:
        self.need(value, where, fits(value, tuple[str, ...]), "a list of texts")

    def entry(self, name: str, entry: Any) -> None:
        where = f"contenders.{name}"
        allowed = "letters, digits, - and _: it is the name of a folder"
        self.need(
            name,
            "contenders",
            bool(NAME.fullmatch(name)) and name not in (*MATCHED, "lock"),
            allowed,
        )
        self.fields(entry, where, _ENTRY)
        self.texts(entry["settings"], f"{where}.settings")
        try:
            parse_settings(entry["settings"])
        except InputError as error:
            allowed = f"a list of key=value ({error})"
            self.need(entry["settings"], f"{where}.settings", False, allowed)
        self.need(entry["text"], f"{where}.text", isinstance(entry["text"], str), "a text")
        seeds = f"a whole number from 1 to {MOST_SEEDS:,}"
        self.need(entry["seeds"], f"{where}.seeds", _is_whole(entry["seeds"], MOST_SEEDS), seeds)
        if entry.get("epochs", 1) is not None:
            self._length(entry, where)
        for key in ("fixed", "grows"):
            self.need(entry[key], f"{where}.{key}", isinstance(entry[key], bool), "true or false")

    def decision(self, name: str, decision: Any, contenders: Mapping[str, Any]) -> None:
        where = f"decisions.{name}"
        self.need(name, "decisions", name in MATCHED, f"one of {', '.join(MATCHED)}")
        self.fields(decision, where, _DECISION)
        self._length(decision, where)
        share = decision["share"]
        is_share = fits(share, float) and 0 < share < math.inf
        self.need(share, f"{where}.share", is_share, "a number above 0")
        self.need(decision["of"], f"{where}.of", decision["of"] in list(contenders), "a contender")
        runs = (FIXED, *MATCHED)
        self.need(
            decision["runs"], f"{where}.runs", decision["runs"] in runs, f"one of {', '.join(runs)}"
        )

    def _length(self, record: Mapping[str, Any], where: str) -> None:
        name = "total_steps" if "total_steps" in record else "epochs"
        most = BOUNDS[name][1]
        allowed = f"a whole number from 1 to {most:,}"
        self.need(record[name], f"{where}.{name}", _is_whole(record[name], most), allowed)


def _is_whole(value: Any, most: int) -> bool:
    return fits(value, int) and 1 <= value <= most
