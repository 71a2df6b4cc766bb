"""Fixed-size trainings at the cost of another contender: how many epochs, or steps, that is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from growthring.compare.contenders import FIXED, MATCHED, Contender
from growthring.compare.manifest import (
    Decision,
    Entry,
    Manifest,
    entry_of,
    manifest_lock,
    read_manifest,
    write_manifest,
)
from growthring.errors import InputError
from growthring.planning.lengths import Length
from growthring.runs.results import CLOCKS, read_result
from growthring.runs.values import number
from growthring.train import Recipe


def matched_length(share: float, whole: Length) -> Length:
    """Epochs (or steps) of full-size training that cost at least a share of all; rounded up, in its favour.

    >>> print(
    ...     matched_length(0.51, Length(30, "epochs")), matched_length(0.001, Length(30, "epochs"))
    ... )
    16 epochs 1 epoch
    >>> print(matched_length(0.51, Length(900, "steps")))
    459 steps
    """
    count = max(1, math.ceil(share * whole.count - 1e-9))  # 0.1 · 30 is a little more than 3
    return Length(count, whole.unit)


def decide(out: Path) -> Manifest:
    """Decides what can be decided by now, once and for all processes, and returns the manifest.

    The shares are those of the first seed, so that the other seeds train for as long.
    """
    with manifest_lock(out):
        manifest = read_manifest(out)
        assert manifest is not None
        if manifest.match is None or len(manifest.decisions) == len(manifest.rivals):
            return manifest
        fixed = read_result(out / manifest.folder(FIXED, 0))
        other = read_result(out / manifest.folder(manifest.match, 0))
        decisions = dict(manifest.decisions)
        keys = {"flops": "flops", "seconds": CLOCKS[manifest.clock]}
        for name in manifest.rivals:
            rival = MATCHED[name]
            key = keys[rival.cost]
            whole, cost = number(fixed.get(key)), number(other.get(key))
            if name in decisions or not whole or not cost:
                continue
            length = matched_length(cost / whole, manifest.length)
            # The same settings need no second run.
            same = {
                decision.length: decision.runs
                for decided, decision in decisions.items()
                if MATCHED[decided].lr_schedule == rival.lr_schedule
            }
            whole_run = {} if rival.lr_schedule else {manifest.length: FIXED}
            runs = {**same, **whole_run}.get(length, name)
            decisions[name] = Decision(length, cost / whole, manifest.match, runs)
        if decisions != manifest.decisions:
            manifest = dataclasses.replace(manifest, decisions=decisions)
            write_manifest(out, manifest)
        return manifest


def choose_match(
    asked: str | None, contenders: Sequence[Contender], recipe: Recipe, old: Manifest | None
) -> str | None:
    """The contender whose cost is matched, if any grows."""
    entries: dict[str, Entry] = dict(old.contenders) if old is not None else {}
    entries |= {c.name: entry_of(c, recipe, 1) for c in contenders}
    if asked is not None:
        if asked not in entries or entries[asked].fixed:
            able = [name for name, entry in entries.items() if not entry.fixed]
            listed = ", ".join(able) or "none that can be matched"
            raise InputError(f"--match {asked}: the contenders are {listed}.")
        return asked
    if old is not None and old.match is not None:
        return old.match
    growing = [name for name, entry in entries.items() if entry.grows]
    return "paired" if "paired" in growing else next(iter(growing), None)
