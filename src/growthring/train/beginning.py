"""The first moments of a run: what fails or is stopped before it can be resumed leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from growthring.checkpoint import RunLock
from growthring.checkpoint.files import write_error


@contextlib.contextmanager
def beginning(folder: Path) -> Iterator[None]:
    """Holds the lock of a run; removes what was made here if that did not become a run.

    A run is what has a config.json: from then on everything stays.
    """
    before = set(os.listdir(folder)) if folder.is_dir() else None
    with RunLock(folder):
        try:
            yield
        except BaseException:
            if not (folder / "config.json").exists():
                _remove(folder, before)
            raise


def _remove(folder: Path, before: set[str] | None) -> None:
    kept = before or set()
    with contextlib.suppress(OSError):
        for name in ("metrics.jsonl", "lock"):
            if name not in kept:
                (folder / name).unlink(missing_ok=True)
        if "checkpoints" not in kept:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        if before is None:
            folder.rmdir()  # fails where somebody has put something


def set_aside(path: Path) -> Path | None:
    """Renames a damaged log so that a new one can begin; nothing happens where there is none.

    Raises:
        CheckpointError: it cannot be renamed.
    """
    if not os.path.lexists(path):
        return None
    names = (path.with_name(f"{path.stem}.damaged-{n}{path.suffix}") for n in range(1, 10_000))
    target = next(name for name in names if not os.path.lexists(name))
    try:
        path.rename(target)
    except OSError as error:
        raise write_error(path, error) from error
    return target
