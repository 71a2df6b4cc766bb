"""JSON that every reader can parse: NaN and infinities, which JSON lacks, become strings.

They are "NaN", "Infinity" and "-Infinity", what `float` of Python and `Number` of JavaScript take, and
`loads` turns exactly these strings back. Scalars of numpy and torch count as numbers, paths as strings.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from growthring.checkpoint.errors import CheckpointError
from growthring.checkpoint.files import write_text
from growthring.files.foreign import read_plain

MOST = 1 << 26  # bytes of a JSON file that are read; what it holds takes many times as much
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def dumps(value: Any, indent: int | None = None) -> str:
    """Returns a value as JSON, in one line unless there is an indent.

    Raises:
        CheckpointError: it holds what is neither a number, a string nor a dict or list of these.

    >>> dumps({"loss": float("inf"), "widths": (4, 8), "accuracy": torch.tensor(0.5)})
    '{"loss": "Infinity", "widths": [4, 8], "accuracy": 0.5}'
    """
    try:
        return json.dumps(value, indent=indent, allow_nan=False)  # nearly always, and fast
    except (TypeError, ValueError):
        pass
    try:
        return json.dumps(_plain(value), indent=indent, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot write this as JSON: {error}.") from None


def loads(text: str | bytes) -> Any:
    """Returns what `dumps` was given; tuples are lists, and keys strings.

    Raises:
        ValueError: the text is not JSON, nested too deep, or has a key twice.

    >>> loads('{"loss": "-Infinity"}')
    {'loss': -inf}
    >>> loads('{"lr": 1, "lr": 2}')
    Traceback (most recent call last):
    ValueError: the key 'lr' is there twice
    """
    try:
        value = json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    words = (b"NaN", b"Infinity") if isinstance(text, bytes) else ("NaN", "Infinity")
    return _restored(value) if any(word in text for word in words) else value  # type: ignore[operator]


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes a value as an indented JSON file, whole or not at all.

    Raises:
        CheckpointError: it is not JSON or cannot be written; the file before is as it was.

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_json(Path(folder.name) / "plan.json", {"widths": [4, 8]})
    >>> read_json(Path(folder.name) / "plan.json")
    {'widths': [4, 8]}
    """
    write_text(path, dumps(value, indent=2) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Reads a file of `write_json`.

    Raises:
        CheckpointError: it cannot be read, or is not JSON.
    """
    try:
        return loads(read_plain(path, MOST))
    except OSError as error:
        raise CheckpointError(f"cannot read '{path}': {error.strerror or error}.") from error
    except ValueError as error:
        raise CheckpointError(f"'{path}' is not JSON: {error}.") from error


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes a dict for `json.loads`; of a key that is there twice readers would see one or the other.

    Raises:
        ValueError: a key is there twice.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return members


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {_key(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic) or (isinstance(value, torch.Tensor) and value.dim() == 0):
        return _plain(value.item())
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _key(key: Any) -> Any:
    return _plain(key) if isinstance(key, (float, np.generic)) else key


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _restored(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_restored(v) for v in value]
    return _SPECIAL.get(value, value) if isinstance(value, str) else value
