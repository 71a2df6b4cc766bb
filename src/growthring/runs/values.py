"""Values that came out of JSON and may be anything: numbers, texts and lists, or nothing."""

from __future__ import annotations

import json
import math
from typing import Any

_LARGEST, _SMALLEST = (
    1e100,
    1e-100,
)  # a chart computes with differences and logarithms of what it shows


def number(value: Any) -> float | None:
    """A finite number, or None for anything else (null, NaN, texts, true).

    >>> number(3), number(float("nan")), number("NaN"), number(True), number(10**999)
    (3.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # An integer may be too large for a float, but it can be compared.
    if not abs(value) < _LARGEST:
        return None
    return float(value) if abs(value) > _SMALLEST else 0.0


def whole(value: Any) -> int | None:
    """A whole number, or None.

    >>> whole(3.0), whole(2.5), whole(None)
    (3, None, None)
    """
    parsed = number(value)
    return int(parsed) if parsed is not None and parsed == math.floor(parsed) else None


def mapping(value: Any) -> dict[str, Any]:
    """A dictionary as it is, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def numbers(value: Any) -> dict[str, float]:
    """The entries of a dictionary that are finite numbers; none of anything else.

    >>> numbers({"a": 1, "b": "?"})
    {'a': 1.0}
    """
    entries = {key: number(entry) for key, entry in mapping(value).items()}
    return {key: entry for key, entry in entries.items() if entry is not None}


def items(value: Any) -> list[Any]:
    """A list as it is, and an empty one for anything else."""
    return value if isinstance(value, list) else []


def string(value: Any) -> str:
    """A setting as a short text.

    >>> string("sgd"), string(0.1), string(None), string([1, 2])
    ('sgd', '0.1', 'none', '[1, 2]')
    """
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return _dump(value)


def canonical(value: Any) -> str:
    """The same text for equal values, whatever the order of their keys.

    >>> canonical({"b": 1, "a": 2}) == canonical({"a": 2, "b": 1})
    True
    """
    return _dump(value, sort_keys=True)


def parse_json(data: bytes) -> Any:
    """Reads JSON; what cannot be read raises ValueError, whatever is wrong with it.

    >>> parse_json(b'{"loss": NaN}')
    {'loss': nan}
    """
    try:
        return json.loads(data.decode("utf-8", errors="replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def reason(error: Exception) -> str:
    """What the system said, without the path, which is told beside it."""
    return str(getattr(error, "strerror", None) or error)


def _dump(value: Any, sort_keys: bool = False) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=sort_keys)
    except RecursionError:
        return "(nested too deeply to show)"
