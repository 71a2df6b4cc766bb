"""Results of runs, read by those who compare them: one that is damaged counts as none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from growthring.checkpoint import CheckpointError, read_json
from growthring.runs.folder import RunFolder
from growthring.runs.records import Result
from growthring.runs.values import items, mapping, number, numbers

_MAY_BE_NONE = ("test_accuracy", "test_loss", "peak_memory")
CLOCKS = {"wall": "seconds", "cpu": "cpu_seconds"}  # and where a result has that time


def read_result(folder: Path) -> dict[str, Any]:
    """What a run came to; empty if it is not finished, or damaged."""
    return {} if damage_of(folder) else read_object(RunFolder(folder).result_file)


def finished_result(folder: Path) -> Result | None:
    """What a run came to, if it is finished and nothing of that is missing or damaged."""
    try:
        stored = read_result(folder)
        told = {"scores": numbers(stored.get("scores")), "notes": tuple(items(stored.get("notes")))}
        result = Result(**{**stored, **told})
    except TypeError:  # of before, with other fields
        return None
    others = (*_MAY_BE_NONE, "scores", "notes")
    needed = [value for name, value in vars(result).items() if name not in others]
    is_whole = RunFolder(folder).weights_file.is_file() and None not in map(number, needed)
    return result if is_whole else None


def damage_of(folder: Path) -> str | None:
    """What is wrong with the result of a run; None if it is whole, or not there."""
    path = RunFolder(folder).result_file
    if not os.path.lexists(path):
        return None
    try:
        result = mapping(read_json(path))
    except CheckpointError as error:
        return f"cannot be used ({error})"
    if not result:
        return "is not a JSON object with the result of a run"
    for key in ("test_accuracy", "flops", *CLOCKS.values(), "peak_memory", "search_flops"):
        value = number(result.get(key))
        if result.get(key) is None:
            continue  # runs of before lack some
        if value is None or value < 0 or (key == "test_accuracy" and value > 1):
            return f"has {result[key]!r:.60} as its {key}"
    return None


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where there is none that can be read."""
    try:
        return mapping(read_json(path))
    except CheckpointError:
        return {}
