"""What an operator is besides its axis rule: said where that is registered, read by all that looks at a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What becomes of the entries: each stays where it is, all are there but elsewhere or repeated, some are there,
# or new ones are computed.
Entries = Literal["same", "moved", "some", "new"]


@dataclass(frozen=True)
class Traits:
    """What an operator is.

    Attributes:
        entries: what becomes of the entries of its input.
        sizes: its whole numbers are sizes, axes or positions, which show in the shape of what it returns.
        size_at: the position of the argument that holds sizes, where other numbers are values.
        degrees: the powers with which its results answer a factor on its input (a square 2, a mean 1).
        reduces: it combines entries in a way that new ones can fade into.
        factor: the argument that it multiplies by, if it multiplies by one.
        modal: it takes train or eval mode as an argument, and its rule holds in both.
    """

    entries: Entries = "new"
    sizes: bool = False
    size_at: int | None = None
    degrees: tuple[float, ...] = ()
    reduces: bool = False
    factor: str = ""
    modal: bool = False

    @property
    def keeps_all(self) -> bool:
        """Whether it hands every entry on and does nothing with them."""
        return self.entries in ("same", "moved")


TRAITS: dict[str, Traits] = {}
_NOTHING_SAID = Traits()


def spellings(name: str) -> tuple[str, str, str]:
    """Under which names an operator is looked up: with its overload, without it, and not in place.

    >>> spellings("aten.add_.Tensor")
    ('aten.add_.Tensor', 'aten.add_', 'aten.add')
    """
    base = ".".join(name.split(".")[:2])
    return name, base, base.removesuffix("_")


def traits_of(name: str) -> Traits:
    """The traits of `aten.add.Tensor` and the like."""
    return next((TRAITS[n] for n in spellings(name) if n in TRAITS), _NOTHING_SAID)
