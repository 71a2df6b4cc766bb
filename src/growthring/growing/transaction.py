"""All or nothing: an action that an error or an interrupt takes back entirely."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from growthring.graph.interrupts import uninterrupted
from growthring.graph.isolation import CALLERS, generators, own_settings
from growthring.graph.snapshot import Snapshot

Returned = TypeVar("Returned")


def all_or_nothing(
    roots: Iterable[Any], act: Callable[[], Returned], after_undoing: Callable[[], None]
) -> Returned:
    """What `act` returns; if it raises, or Ctrl-C stops it at any line, the roots are exactly as they were.

    What there is was noted before anything happens, so nothing depends on how far `act` came. It has to
    replace tensors, not to write into them.

    Args:
        roots: modules, optimizers, generators, dicts and plain objects that `act` changes.
        act: does it, under settings of our own.
        after_undoing: what the roots need then; may be repeated.
    """
    dtype, has_grad, callers = torch.get_default_dtype(), torch.is_grad_enabled(), CALLERS.get()
    kept = Snapshot([*roots, *generators()], values=False, code=False)
    try:
        with own_settings():
            return act()
    except BaseException:
        try:
            kept.restore()
        finally:  # a Ctrl-C that had to wait for it
            # what a `with` leaves that is interrupted as it ends
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(has_grad)
            CALLERS.set(callers)
            uninterrupted(after_undoing)
        raise
