"""How much memory there is: what a file says that it holds is compared with that before it is allocated."""

from __future__ import annotations

import os

from growthring.data.errors import DataError

MOST_INFLATED = 1032  # bytes that deflate makes out of one, at the most


def machine_memory() -> int | None:
    """Bytes of the machine; None where that is not known.

    >>> machine_memory() is None or machine_memory() > 1_000_000
    True
    """
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not a Unix
        return None


def check_memory(num_bytes: int, where: str) -> None:
    """Refuses what does not fit into the machine's memory.

    Raises:
        DataError: it would be too much.
    """
    limit = machine_memory()
    if limit is not None and num_bytes > limit:
        raise DataError(
            f"{where}: takes {num_bytes / 1e9:,.1f} GB in memory, this machine has {limit / 1e9:,.1f} GB."
        )
