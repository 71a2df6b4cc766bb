"""The manifest: what a folder compares, kept by all processes that work on it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from growthring.checkpoint import RunLock, RunLockedError, read_json, write_json
from growthring.compare.contenders import FIXED, MATCHED, Contender, Settings
from growthring.compare.stored import check_stored, flat, length_in, with_length
from growthring.errors import InputError
from growthring.planning.lengths import Length
from growthring.runs.clocks import clock_words
from growthring.runs.results import CLOCKS
from growthring.train import Recipe, format_settings, parse_settings
from growthring.train.bounds import check_bounds
from growthring.train.recipe import differences

FILE = "comparison.json"
FIRST_RIVALS = ("fixed-flops", "fixed-seconds")  # of comparisons that were stored without a list
_PATIENCE = 60.0  # seconds; the lock is held for milliseconds


@dataclass(frozen=True)
class Decision:
    """How long a matched fixed-size training lasts, decided once from runs of the first seed.

    Attributes:
        length: ⌈share · that of fixed-size training⌉.
        share: cost of the matched contender over that of fixed-size training.
        of: the matched contender.
        runs: folder with the runs; that of another row if it is as long.
    """

    length: Length
    share: float
    of: str
    runs: str


@dataclass(frozen=True)
class Entry:
    """A contender in the manifest, and how many seeds of it were asked for."""

    settings: Settings
    text: str
    seeds: int
    length: Length | None  # None while it is not decided
    fixed: bool
    grows: bool


@dataclass(frozen=True)
class Manifest:
    """What a folder compares.

    Attributes:
        recipe: how the recipe was named; None in a comparison without the command line.
        changes: what `--set` changed of it.
        settings: the recipe that all contenders change, without the seed.
        clock: "wall" or "cpu".
        match: the contender whose cost is matched; None if none grows.
        contenders: by name, in the order of rows, without the matched fixed-size ones.
        decisions: for the matched fixed-size trainings, as soon as they are made.
        machine: where it began.
        rivals: names of the matched fixed-size trainings.
    """

    recipe: str | None
    changes: tuple[str, ...]
    settings: Mapping[str, Any]
    clock: str
    match: str | None
    contenders: Mapping[str, Entry]
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    machine: str = ""
    rivals: tuple[str, ...] = FIRST_RIVALS

    @property
    def length(self) -> Length:
        """Of the recipe."""
        length = length_in(self.settings)
        assert length is not None  # a manifest that is read was checked
        return length

    @property
    def seeds(self) -> int:
        """The most seeds of any contender."""
        return max((entry.seeds for entry in self.contenders.values()), default=0)

    def entries(self) -> dict[str, Entry]:
        """All rows: the matched fixed-size trainings follow the fixed one."""
        rows: dict[str, Entry] = {}
        for name, entry in self.contenders.items():
            rows[name] = entry
            if name == FIXED and self.match is not None:
                for matched in self.rivals:
                    rows[matched] = self._matched(matched, entry.seeds)
        return rows

    def folder(self, name: str, seed: int) -> str:
        """Where a run is, relative to the comparison."""
        decision = self.decisions.get(name)
        return f"{name if decision is None else decision.runs}/seed-{seed}"

    def _matched(self, name: str, seeds: int) -> Entry:
        decision = self.decisions.get(name)
        length = None if decision is None else decision.length
        settings = {} if length is None else matched_settings(name, length)
        rival = MATCHED[name]
        what = "FLOPs" if rival.cost == "flops" else clock_words("seconds", self.clock)
        text = f"full size for as many {self.length.unit} as cost the {what} of {self.match}"
        text += "" if rival.lr_schedule is None else f", with a {rival.lr_schedule} schedule"
        return Entry(settings, text, seeds, length, fixed=True, grows=False)


def matched_settings(name: str, length: Length) -> Settings:
    """Settings of a fixed-size training that ends, its learning rate's decay included, after that length."""
    schedule = MATCHED[name].lr_schedule
    own = {} if schedule is None else {"lr_schedule": schedule}
    return {"fixed": True, length.option: length.count, **own}


def base_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings that all runs share before the contenders' changes."""
    return {key: value for key, value in recipe.as_dict().items() if key != "seed"}


def read_manifest(out: Path) -> Manifest | None:
    """The manifest of a folder, or None if there is none yet."""
    path = out / FILE
    if not path.exists():
        return None
    content = read_json(path)
    if isinstance(content, dict):
        content.setdefault("rivals", list(FIRST_RIVALS))
    check_stored(content, path, CLOCKS)
    contenders = {
        name: Entry(**{**with_length(entry), "settings": parse_settings(entry["settings"])})
        for name, entry in content["contenders"].items()
    }
    decisions = {name: Decision(**with_length(d)) for name, d in content["decisions"].items()}
    rest = {key: content[key] for key in ("recipe", "settings", "clock", "match", "machine")}
    return Manifest(
        changes=tuple(content["changes"]),
        contenders=contenders,
        decisions=decisions,
        rivals=tuple(content["rivals"]),
        **rest,
    )


def merge(new: Manifest, old: Manifest | None) -> Manifest:
    """What two commands on one folder ask for together.

    Raises:
        InputError: they compare different things; the differences are named.
    """
    if old is None:
        return new
    changed = differences(old.settings, new.settings)
    if old.clock != new.clock:
        changed.append(f"clock: {old.clock!r} -> {new.clock!r}")
    if old.match is not None and new.match != old.match:
        changed.append(f"match: {old.match!r} -> {new.match!r}")
    for name, entry in new.contenders.items():
        before = old.contenders.get(name)
        if before is not None and before.settings != entry.settings:
            was, now = format_settings(before.settings), format_settings(entry.settings)
            changed.append(f"{name}: {was} -> {now}")
    if changed:
        raise InputError(
            f"the folder holds a comparison with other settings ({'; '.join(changed)}). Give this one another "
            "folder."
        )
    contenders = dict(new.contenders)
    for name, entry in old.contenders.items():
        both = contenders.setdefault(name, entry)
        contenders[name] = replace(both, seeds=max(both.seeds, entry.seeds))
    return replace(
        new,
        contenders=contenders,
        decisions=old.decisions,
        machine=old.machine or new.machine,
        rivals=old.rivals,
    )


def entry_of(contender: Contender, recipe: Recipe, seeds: int) -> Entry:
    """A contender as the manifest has it."""
    own = contender.recipe(recipe, seed=0)
    try:
        check_bounds(own)
        format_settings(contender.settings)  # what is stored can be read again
    except InputError as error:
        raise InputError(f"contender '{contender.name}': {error}") from error
    grows = not (own.fixed or own.small)
    return Entry(contender.settings, contender.text, seeds, own.length, own.fixed, grows)


def write_manifest(out: Path, manifest: Manifest) -> None:
    """Writes it, whole or not at all; hold `manifest_lock` from reading to writing."""
    stored = dataclasses.asdict(manifest)
    for name, entry in manifest.contenders.items():
        stored["contenders"][name] = {**flat(entry), "settings": format_settings(entry.settings)}
    stored["decisions"] = {name: flat(decision) for name, decision in manifest.decisions.items()}
    write_json(out / FILE, stored)


@contextlib.contextmanager
def manifest_lock(out: Path) -> Iterator[None]:
    """While it is entered no other process changes the manifest, so that no decision is lost."""
    lock = RunLock(out / ".locks" / "manifest")
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            lock.acquire()
            break
        except RunLockedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
    try:
        yield
    finally:
        lock.release()
