"""config.json of a run: what it may hold, checked field by field before anything is done with it.

A run folder may come from a stranger, or someone may have edited it: each refusal names the field, what was found
and what is allowed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growthring.errors import InputError
from growthring.runs import RunFolder
from growthring.train.bounds import BOUNDS, misfit
from growthring.train.card import parse_card
from growthring.train.kinds import fits, shortened
from growthring.train.recipe import KINDS

Check = Callable[[Any], bool]
SOURCE = (
    "recipe",
    "settings",
    "fixed",
    "data",
    "sha256",
)  # how the command line finds a recipe again


@dataclass(frozen=True)
class RunConfig:
    """What config.json says, checked.

    Attributes:
        settings: the recipe, as `Recipe.as_dict` gives it.
        source: how the command line found the recipe (see `cli/trust.py`); empty for runs of the library.
        plan: counted when the run began, see `Plan.as_dict`.
        versions: of torch and Python when the run began.
        content: all of it, as it was written.
    """

    settings: Mapping[str, Any]
    source: Mapping[str, Any]
    plan: Mapping[str, Any]
    versions: Mapping[str, str]
    content: Mapping[str, Any]


def read_config(folder: Path) -> RunConfig:
    """Reads and checks the config.json of a run.

    Raises:
        InputError: there is none, or a field is not as the trainer writes it.
        CheckpointError: it cannot be read, or is not JSON.
    """
    run = RunFolder(folder)
    content = run.read_config()
    _Checker(run.config_file).config(content)
    return RunConfig(
        content["settings"],
        content["source"],
        content["plan"],
        content.get("versions", {}),
        content,
    )


def changes(old: Any, new: Any, where: str = "") -> list[str]:
    """Which fields of two configurations differ, in words.

    >>> changes({"plan": {"flops": [1, 2]}}, {"plan": {"flops": [1, 3]}})
    ["'plan.flops[1]' was 2 and is 3"]
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = dict.fromkeys([*old, *new])
        pairs = [
            (f"{where}.{key}" if where else str(key), old.get(key), new.get(key)) for key in keys
        ]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))]
    else:
        same = type(old) is type(new) and (old == new or (old != old and new != new))
        return [] if same else [f"'{where}' was {shortened(old)} and is {shortened(new)}"]
    return [text for name, a, b in pairs for text in changes(a, b, name)]


class _Checker:
    def __init__(self, path: Path) -> None:
        self._path = path

    def config(self, content: Any) -> None:
        self._need(content, "the whole file", lambda v: isinstance(v, dict), "a JSON object")
        known = (
            "name",
            "fixed",
            "seed",
            "settings",
            "source",
            "plan",
            "card",
            "task",
            "metrics",
            "machine",
            "versions",
        )
        self._known(content, "", known)
        for key in ("settings", "source", "plan"):
            if key not in content:
                raise self._error(key, "nothing", "a JSON object")
            self._need(content[key], key, lambda v: isinstance(v, dict), "a JSON object")
        self._need(content.get("name", ""), "name", _is_text, "a text")
        self._need(content.get("machine", ""), "machine", _is_text, "a text")
        self._need(content.get("fixed", False), "fixed", _is_bool, "true or false")
        self._need(content.get("seed", 0), "seed", _is_count, "a whole number, 0 or more")
        versions = content.get("versions", {})
        self._need(versions, "versions", lambda v: isinstance(v, dict), "a JSON object")
        for key, value in versions.items():
            self._need(value, f"versions.{key}", _is_text, "a text")
        self._settings(content["settings"])
        self._source(content["source"])
        self._plan(content["plan"])
        if "card" in content:
            parse_card(content["card"], f"'{self._path}'")

    def _settings(self, settings: dict[str, Any]) -> None:
        self._known(settings, "settings.", tuple(KINDS))
        for key, value in settings.items():
            if key == "model":
                self._need(value, "settings.model", _is_text, "the name of a function")
            elif (allowed := misfit(key, value)) is not None:
                raise self._error(f"settings.{key}", shortened(value), allowed)

    def _source(self, source: dict[str, Any]) -> None:
        if not source:
            return
        self._known(source, "source.", SOURCE)
        if "recipe" not in source:
            raise self._error("source.recipe", "nothing", "the recipe of the run")
        self._need(
            source["recipe"], "source.recipe", _is_name, "the name of a recipe, or FILE.py:function"
        )
        self._need(source.get("fixed", False), "source.fixed", _is_bool, "true or false")
        settings = source.get("settings", [])
        texts = "a list of key=value"
        self._need(settings, "source.settings", lambda v: fits(v, tuple[str, ...]), texts)
        data = source.get("data")
        self._need(data, "source.data", lambda v: v is None or _is_name(v), "a path, or null")
        digest = source.get("sha256")
        self._need(
            digest, "source.sha256", lambda v: v is None or _is_digest(v), "64 hexadecimal digits"
        )

    def _plan(self, plan: dict[str, Any]) -> None:
        flops = plan.get("flops")
        stages = plan.get("stages", len(flops) if isinstance(flops, list) else None)
        within = f"a whole number from 1 to {BOUNDS['stages'][1]:,}"
        self._need(
            stages, "plan.stages", lambda v: _is_count(v) and 1 <= v <= BOUNDS["stages"][1], within
        )
        for key, each, words in (
            ("flops", _is_cost, "numbers, 0 or more"),
            ("parameters", _is_count, "whole numbers, 0 or more"),
            ("epochs", _is_count, "whole numbers, 0 or more"),
            ("steps", _is_count, "whole numbers, 0 or more"),
            ("batch_sizes", _is_count, "whole numbers, 0 or more"),
        ):
            is_needed = key in ("flops", "parameters")
            is_open = key in ("epochs", "steps") and plan.get(key) == []  # counted in the other one
            if is_open or (key not in plan and not is_needed):
                continue
            allowed = f"a list of {stages} {words}"
            value = plan.get(key)
            self._need(
                value, f"plan.{key}", lambda v: isinstance(v, list) and len(v) == stages, allowed
            )
            for i, one in enumerate(value or ()):
                self._need(one, f"plan.{key}[{i}]", each, words)
        if "full_flops" in plan:
            self._need(plan["full_flops"], "plan.full_flops", _is_cost, "a number, 0 or more")

    def _known(self, entries: dict[str, Any], where: str, known: tuple[str, ...]) -> None:
        for key in entries:
            if key not in known:
                listed = (
                    ", ".join(known) if len(known) < 12 else "the fields of growthring.train.Recipe"
                )
                raise InputError(
                    f"'{self._path}': there is no field {where + key!r:.80}; allowed are {listed}. It was changed, "
                    "or written by a newer growthring."
                )

    def _need(self, value: Any, where: str, check: Check, allowed: str) -> None:
        if not check(value):
            raise self._error(where, shortened(value), allowed)

    def _error(self, where: str, actual: str, allowed: str) -> InputError:
        return InputError(
            f"'{self._path}': '{where}' is {actual}; allowed is {allowed}. The file was changed since the run "
            "began: put the old value back. Nothing of the run was touched."
        )


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 10_000


def _is_name(value: Any) -> bool:
    """Whether it is a text that can be a path."""
    try:
        return _is_text(value) and bool(value) and not set(b"\0\r\n") & set(os.fsencode(value))
    except UnicodeEncodeError:  # half of a pair of surrogates
        return False


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_cost(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= value < 1e30  # NaN is not
