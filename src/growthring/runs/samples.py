"""Samples: what a run's final model does, as texts to look at."""

from __future__ import annotations

import os
from collections.abc import Sequence

from growthring.runs.folder import RunFolder
from growthring.runs.results import read_object
from growthring.runs.values import items

Sample = Sequence[tuple[str, str]]  # titles and texts


def read_samples(path: str | os.PathLike[str]) -> list[Sample]:
    """The samples of a run's folder; none where there are none, or where they are damaged.

    >>> read_samples("/no/such/run")
    []
    """
    found = []
    for sample in items(read_object(RunFolder(path).samples_file).get("samples")):
        pairs = [pair for pair in map(items, items(sample)) if len(pair) == 2]
        found.append([(str(title), str(text)) for title, text in pairs])
    return [sample for sample in found if sample]


def sample_lines(path: str | os.PathLike[str], most: int = 3) -> list[str]:
    """The first samples, a line for each of their texts."""
    lines = []
    for sample in read_samples(path)[:most]:
        width = max(len(title) for title, _ in sample)
        lines += ["", *(f"  {title:{width}}  {text}" for title, text in sample)]
    return lines
