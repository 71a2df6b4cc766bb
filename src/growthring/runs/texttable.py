"""Tables of texts, for the terminal."""

from __future__ import annotations

from collections.abc import Container, Sequence

_LONGEST_NAME = 48


def aligned(lines: Sequence[Sequence[str]], left: Container[int] = (0,)) -> str:
    """Lines of cells as columns; those in `left` begin, the others end at the same place.

    >>> print(aligned([["run", "FLOPs"], ["mine", "52.0 %"]]))
    run    FLOPs
    mine  52.0 %
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def printable(name: str) -> str:
    r"""A name of any characters as a short one that a terminal can show.

    >>> printable("a\x1b[31m\nb")
    'a?[31m?b'
    """
    shown = "".join(c if c.isprintable() else "?" for c in name)
    if len(shown) <= _LONGEST_NAME:
        return shown
    half = (_LONGEST_NAME - 1) // 2
    return f"{shown[: _LONGEST_NAME - 1 - half]}…{shown[-half:]}"
