"""How messages count: nouns in the plural unless there is one, names as long as there are few."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: float, noun: str, plural: str = "") -> str:
    """A count with its noun, in the plural unless it is one.

    >>> counted(1, "run"), counted(1200, "run"), counted(1.5, "epoch"), counted(2, "is", "are")
    ('1 run', '1,200 runs', '1.5 epochs', '2 are')
    """
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{number} {noun if count == 1 else plural or noun + 's'}"


def instances(names: Sequence[str], noun: str, verb: tuple[str, str]) -> str:
    """The subject of a sentence: how many there are, one of them by name, and the verb that follows.

    >>> (
    ...     instances(["a"], "parameter", ("is", "are")),
    ...     instances(["a", "b"], "parameter", ("is", "are")),
    ... )
    ("1 parameter, 'a', is", "2 parameters, such as 'a', are")
    """
    is_one = len(names) == 1
    such = "" if is_one else "such as "
    return f"{counted(len(names), noun)}, {such}'{names[0]}', {verb[0] if is_one else verb[1]}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first few of many names, and how many are left.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c", "d", "e"], 2)
    ('a', 'a and b', 'a, b and 3 more')
    """
    shown, left = list(names[:most]), len(names) - most
    if left > 0:
        shown.append(f"{left:,} more")
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))
