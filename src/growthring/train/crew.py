"""Crew: how many processes have trained a run, which may be resumed on fewer or more."""

from __future__ import annotations

from collections.abc import Iterable

from growthring.core.wording import counted


class Crew:
    """Numbers of processes, and the steps from which on there were so many.

    Args:
        parts: as `state` has them; those of a run that one process has trained so far are empty.

    >>> crew = Crew([(0, 2)])
    >>> crew.join(30, 1)
    >>> crew.notes, crew.sizes
    (('trained by 2 processes, from step 30 on by 1 process.',), (2, 1))
    """

    def __init__(self, parts: Iterable[Iterable[int]] = ()) -> None:
        self._parts = [(int(step), int(size)) for step, size in parts] or [(0, 1)]

    def join(self, step: int, size: int) -> None:
        """There are so many from a step on."""
        if step == 0:
            self._parts = []
        if not self._parts or self._parts[-1][1] != size:
            self._parts.append((step, size))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many there were, one after the other; empty where it was one throughout."""
        sizes = tuple(size for _, size in self._parts)
        return () if sizes == (1,) else sizes

    @property
    def state(self) -> list[list[int]]:
        """For a checkpoint; empty where it was one throughout."""
        return [list(part) for part in self._parts] if self.sizes else []

    @property
    def notes(self) -> tuple[str, ...]:
        """In words; nothing where it was one throughout."""
        if not self.sizes:
            return ()
        (_, first), *later = self._parts
        words = [counted(first, "process", "processes")]
        words += [f"from step {s} on by {counted(n, 'process', 'processes')}" for s, n in later]
        return (f"trained by {', '.join(words)}.",)
