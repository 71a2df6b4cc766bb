"""Names and widths as users give them, brought into one form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from growthring.errors import PlanError


def names_of(names: Any) -> tuple[str, ...]:
    """Names of what must not grow: one, or a list.

    Raises:
        PlanError: they are none.

    >>> names_of("stem"), names_of(["stem", "head.*"])
    (('stem',), ('stem', 'head.*'))
    """
    if not isinstance(names, Iterable):
        raise PlanError(f"freeze={names!r} is not a list of names.")
    return (names,) if isinstance(names, str) else tuple(names)


def pairs_of(widths: Any) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    """(name, widths) pairs of a mapping or of a sequence of pairs: a name may be a glob, and come twice."""
    if widths is None:
        return None
    if not isinstance(widths, Iterable) or isinstance(widths, str):
        raise PlanError(f"widths={widths!r}: expected a mapping from group names to widths.")
    pairs = []
    for item in widths.items() if isinstance(widths, Mapping) else widths:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise PlanError(
                f"widths={widths!r}: expected a mapping from group names to one width per stage, such as "
                "{'layer1.conv1': [16, 32, 64]}."
            )
        name, values = item
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise PlanError(
                f"widths['{name}'] = {values!r}: expected one width per stage, such as [16, 32, 64]."
            )
        pairs.append((str(name), tuple(values)))
    return tuple(pairs)
