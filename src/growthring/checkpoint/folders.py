"""Where the checkpoints of a run are, and how folders come and go without a moment of half.

RUN/checkpoints/step-000001234/          tensors.safetensors, state.json
RUN/checkpoints/step-000001234.old/      one that is being replaced by another of the same step
RUN/checkpoints/.writing-…, .deleting-…  on their way in and out, or left by a killed process
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from pathlib import Path

from growthring.checkpoint.errors import CheckpointError
from growthring.files.foreign import refuse_link

TENSORS = "tensors.safetensors"
STATE = "state.json"
FORMAT = "growthring checkpoint"
VERSION = 1  # every later version keeps "format", "version" and "crc32" as they are

_NAME = re.compile(r"step-(\d{9,})(\.old)?")
_LEFTOVER = (".writing-", ".deleting-")


def checkpoints_folder(run: str | os.PathLike[str]) -> Path:
    """The folder of all checkpoints of a run."""
    return Path(run) / "checkpoints"


def step_folder(parent: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return parent / f"step-{step:09d}"


def list_checkpoints(folder: str | os.PathLike[str]) -> list[tuple[int, Path]]:
    """Returns (step, path) of the checkpoints of a run, oldest first, without opening them.

    Raises:
        CheckpointError: the folder is there, but cannot be read.

    >>> list_checkpoints("no/such/run")
    []
    """
    return sorted(dict(reversed(candidates(folder))).items())


def candidates(run: str | os.PathLike[str]) -> list[tuple[int, Path]]:
    """As `list_checkpoints`, newest first, with those that were about to be replaced."""
    parent = checkpoints_folder(run)
    try:
        refuse_link(parent)
        with os.scandir(
            parent
        ) as entries:  # a link may lead out of the run, which is written and pruned here
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(
            f"cannot look for checkpoints in '{parent}': {error.strerror or error}."
        ) from error
    numbered = []
    for name in names:
        if match := _NAME.fullmatch(name):
            numbered.append((int(match[1]), match[2] is None, parent / name))
    numbered.sort(reverse=True)
    return [(step, path) for step, _, path in numbered]


def leftovers(parent: Path) -> list[Path]:
    """What killed processes have left in the folder of the checkpoints."""
    return [path for path in parent.iterdir() if path.name.startswith(_LEFTOVER)]


def new_folder(parent: Path, step: int) -> Path:
    """Makes an empty folder for a checkpoint on its way in."""
    folder = parent / f".writing-{step:09d}-{uuid.uuid4().hex[:12]}"
    folder.mkdir()
    return folder


def delete_folder(folder: Path) -> None:
    """Deletes a checkpoint: gone in one moment, or not at all."""
    if not folder.name.startswith(_LEFTOVER):
        away = folder.with_name(f".deleting-{folder.name}-{uuid.uuid4().hex[:12]}")
        os.rename(folder, away)
        folder = away
    shutil.rmtree(folder)
