"""Fixed-size trainings at the cost of another contender: how many epochs, or steps, that is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from growthring.errors import InputError, PlanError
from growthring.planning.lengths import Length, fractions_of, lengths_of
from growthring.planning.options import PlanOptions
from growthring.runs.folder import RunFolder
from growthring.runs.results import CLOCKS, read_object, read_result
from growthring.runs.values import items, mapping, number
from growthring.train import Recipe

# What decides how the epochs of a plan are shared among its stages.
_LENGTH_OPTIONS = (
    *("preset", "start", "growth", "schedule", "epoch_growth", "first_epochs"),
    *("grown_at", "growth_at"),
)


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


def growing_length(
    share: float, whole: Length, settings: Mapping[str, Any], data_shares: Sequence[float]
) -> Length:
    """The same where the data grows with the stages, so that late epochs are longer than early ones.

    Args:
        share: of the cost of all.
        whole: epochs of all.
        settings: of the recipe; those of its plan say how epochs are shared among stages.
        data_shares: how much of its data each stage has.

    >>> settings = {"preset": "paper", "stages": 3, "epoch_growth": 1.0}
    >>> print(growing_length(0.5, Length(14, "epochs"), settings, [0.1, 0.2, 1.0]))
    9 epochs
    """
    known = {key: value for key, value in settings.items() if key in _LENGTH_OPTIONS}

    def cost(count: int) -> float | None:
        options = PlanOptions(**{**known, "epochs": count, "stages": len(data_shares)})
        try:
            epochs = lengths_of(options, fractions_of(options)).epochs
        except PlanError:  # fewer epochs than stages
            return None
        return sum(n * part for n, part in zip(epochs, data_shares, strict=True))

    full = cost(whole.count)
    for count in range(1, whole.count):
        found = cost(count)
        if full and found is not None and found >= share * full * (1 - 1e-9):
            return Length(count, whole.unit)
    return matched_length(share, whole) if share > 1 else whole


def _length_of(share: float, manifest: Manifest, config: Mapping[str, Any]) -> Length:
    """Of full-size training at a share of the cost."""
    shares = [number(value) for value in items(mapping(config.get("plan")).get("data_shares"))]
    known = [value for value in shares if value is not None]
    if manifest.length.unit == "steps" or len(known) < len(shares) or not known:
        return matched_length(share, manifest.length)
    return growing_length(share, manifest.length, manifest.settings, known)


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
        config = read_object(RunFolder(out / manifest.folder(FIXED, 0)).config_file)
        decisions = dict(manifest.decisions)
        keys = {"flops": "flops", "seconds": CLOCKS[manifest.clock]}
        for name in manifest.rivals:
            rival = MATCHED[name]
            key = keys[rival.cost]
            whole, cost = number(fixed.get(key)), number(other.get(key))
            if name in decisions or not whole or not cost:
                continue
            length = _length_of(cost / whole, manifest, config)
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
