"""How messages count: nouns in the plural unless there is one, names as long as there are few."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun, in the plural unless it is one.

    >>> counted(1, "run"), counted(1200, "run"), counted(2, "is", "are")
    ('1 run', '1,200 runs', '2 are')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first few of many names, and how many are left.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c", "d", "e"], 2)
    ('a', 'a and b', 'a, b and 3 more')
    """
    shown, left = list(names[:most]), len(names) - most
    if left > 0:
        shown.append(f"{left:,} more")
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))
