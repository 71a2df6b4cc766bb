"""Settings as texts: key=value on the command line and in stored files, and back."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from growthring.errors import InputError
from growthring.train.kinds import describe, fits, has_parts, is_text
from growthring.train.recipe import CODE, KINDS

_WORDS = {"true": True, "false": False, "none": None, "null": None}
_OWN = ("name", *CODE)  # what only a recipe of one's own can change


def parse_setting(text: str) -> tuple[str, Any]:
    """Key and value of `key=value`: a Python literal, true, false, none, or else a text.

    Raises:
        InputError: it is not of that form.

    >>> parse_setting("width=64"), parse_setting("norm=none"), parse_setting("kind=wide")
    (('width', 64), ('norm', None), ('kind', 'wide'))
    """
    key, separator, written = text.partition("=")
    if not separator or not key.strip():
        raise InputError(f"--set {text!r}: expected KEY=VALUE.")
    return key.strip(), _value(written)


def parse_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Settings of a recipe from `key=value` texts, for `change`; of a key that comes twice the last counts.

    Raises:
        InputError: there is no such setting, or the value is not of its type.

    >>> parse_settings(["epochs=3", "batch_rate=none", "optimizer_options.momentum=0.8"])
    {'epochs': 3, 'batch_rate': 'none', 'optimizer_options.momentum': 0.8}
    """
    settings: dict[str, Any] = {}
    for text in texts:
        key, separator, written = text.partition("=")
        name, _, part = key.strip().partition(".")
        if not separator or name not in KINDS:
            known = ", ".join(sorted(set(KINDS) - set(_OWN)))
            raise InputError(f"--set {text!r}: expected key=value with a key out of {known}.")
        if name in _OWN:
            raise InputError(f"--set {text!r}: write a recipe of your own to change the {name}.")
        kind, value = KINDS[name], _value(written)
        if is_text(kind) and not isinstance(value, str):
            value = written.strip()
        if part and not has_parts(kind):
            raise InputError(f"--set {text!r}: '{name}' has no parts.")
        if not part and not fits(value, kind):
            raise InputError(
                f"--set {text!r}: '{name}' is {describe(kind)}, not {type(value).__name__}."
            )
        whole = f"{name}.{part}" if part else name
        settings.pop(whole, None)  # it counts from here on: after a mapping that it is part of
        settings[whole] = value
    return settings


def format_settings(settings: Mapping[str, Any]) -> list[str]:
    """Settings as the texts that `parse_settings` reads.

    Raises:
        InputError: one has no such text.

    >>> format_settings({"fixed": True, "growth": None, "lr": 0.1, "method": "random"})
    ['fixed=true', 'growth=none', 'lr=0.1', 'method=random']
    """
    return [_text(key, value) for key, value in settings.items()]


def _text(key: str, value: Any) -> str:
    is_word = value is None or isinstance(value, bool)
    for written in (str(value).lower() if is_word else str(value), repr(value)):
        with contextlib.suppress(InputError):  # of another type, as it is read
            if parse_settings([f"{key}={written}"]) == {key: value}:
                return f"{key}={written}"
    raise InputError(
        f"the setting {key}={value!r:.60} cannot be stored as a text. Use numbers, texts, and lists and "
        "dictionaries of them."
    )


def _value(written: str) -> Any:
    if written.strip().lower() in _WORDS:
        return _WORDS[written.strip().lower()]
    try:
        return ast.literal_eval(written)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two: nested too deep
        return written
