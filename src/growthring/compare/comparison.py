"""Comparison: trains all contenders for all seeds, one run after the other, whatever happens in between."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from growthring.compare.checks import check_base, check_folder, check_recipes, check_run
from growthring.compare.contenders import (
    DEFAULT,
    FIXED,
    MATCHED,
    Contender,
    Settings,
    line_up,
    rivals_of,
)
from growthring.compare.manifest import (
    Manifest,
    base_settings,
    entry_of,
    manifest_lock,
    matched_settings,
    merge,
    read_manifest,
    write_manifest,
)
from growthring.compare.match import choose_match, decide
from growthring.compare.output import write_outputs
from growthring.compare.runner import Attempt, Runner
from growthring.compare.standings import Standing
from growthring.compare.stored import MOST_SEEDS, without_length
from growthring.errors import InputError
from growthring.runs import RunFolder
from growthring.runs.results import CLOCKS
from growthring.train import Interrupted, Progress, Recipe, format_settings
from growthring.train.setup import find_device


@dataclass(frozen=True)
class PlannedRun:
    """One run of the comparison."""

    name: str
    seed: int


class Comparison:
    """Trains contenders on the same data, in the same order, for each seed, and tabulates them.

    Everything is in the folder, so that the same comparison in a new process goes on where it was
    stopped, several processes share the work, and one with more contenders or seeds adds to it.

    Args:
        recipe: that every contender changes.
        contenders: names of known ones (see `KNOWN`) or your own.
        seeds: how many, from 0.
        out: folder of the comparison.
        data: folder of the recipe's data.
        download: fetch data that is missing.
        match: the contender whose cost `fixed-flops` and `fixed-seconds` have; by default the one of before,
            `paired` or the first that grows.
        clock: "wall", or "cpu" for processor time, which other work on the machine does not add to.
        device: where to train.
        keep: how many checkpoints of a run stay.
        checkpoint_minutes: how often one is written.
        log_rates: see `Trainer`; off, as it would be most of a comparison's size.
        retry: try again what failed, from its last checkpoint.
        progress: what shows how far it is.
        source: how to find the recipe again (`recipe`, `settings`, `data`), for `growthring train --resume`.

    >>> import tempfile
    >>> from growthring.train import Recipe, Silence
    >>> from growthring.zoo import mlp8
    >>> digits = {"data": "digits", "input_shape": (1, 8, 8), "mirror": False, "num_train": 64}
    >>> net = {"width": 8, "in_features": 64}
    >>> small = Recipe("small", mlp8, net, **digits, stages=2, epochs=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = Comparison(small, ["paired"], 1, folder, progress=Silence()).run()
    >>> [row.name for row in rows]
    ['fixed', 'fixed-flops', 'fixed-flops-linear', 'fixed-seconds', 'fixed-seconds-linear', 'paired']
    """

    def __init__(
        self,
        recipe: Recipe,
        contenders: Sequence[str | Contender] = DEFAULT,
        seeds: int = 3,
        out: str | Path = "comparison",
        *,
        data: str | Path | None = None,
        download: bool = False,
        match: str | None = None,
        clock: str = "wall",
        device: str | torch.device = "cpu",
        keep: int = 3,
        checkpoint_minutes: float = 10.0,
        log_rates: int = 0,
        retry: bool = False,
        progress: Progress | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= MOST_SEEDS:
            raise InputError(
                f"seeds={seeds!r}: give the number of seeds, at least 1 and at most {MOST_SEEDS:,}."
            )
        if clock not in CLOCKS:
            raise InputError(f"clock={clock!r} is not one of {', '.join(CLOCKS)}.")
        if keep < 1:
            raise InputError(f"keep={keep!r}: at least one checkpoint stays.")
        check_base(recipe)
        self.recipe, self.seeds, self.out = recipe, seeds, Path(out)
        self.progress = progress or Progress()
        place = find_device(device)
        self._place, self._source = (data, download, place), source
        options: dict[str, Any] = {"data": data, "download": download, "device": place}
        options |= {"keep": keep, "checkpoint_minutes": checkpoint_minutes, "log_rates": log_rates}
        self._runner = Runner(self.out, options, retry, self.progress)
        old = read_manifest(self.out)
        own = line_up(contenders, recipe)
        match = choose_match(match, own, recipe, old)
        if old is not None and match is not None and match not in {c.name for c in own}:
            entry = old.contenders[match]  # whose cost is matched takes part in every command
            own.append(Contender(match, entry.settings, entry.text))
        self.contenders = {c.name: c for c in own}
        self._manifest = Manifest(
            recipe=None if source is None else str(source["recipe"]),
            changes=() if source is None else tuple(source["settings"]),
            settings=base_settings(recipe),
            clock=clock,
            match=match,
            contenders={c.name: entry_of(c, recipe, seeds) for c in own},
            rivals=rivals_of(recipe),
            machine=f"{platform.machine()} {platform.system()}, {torch.get_num_threads()} threads, {place}",
        )
        self.left: dict[PlannedRun, Attempt] = {}

    @property
    def tasks(self) -> list[PlannedRun]:
        """All runs in order: seed by seed, and first those that tell the most."""
        match = self._manifest.match
        first = [FIXED] if match is None else [FIXED, match, *self._manifest.rivals]
        names = list(dict.fromkeys([*first, *self.contenders]))
        return [PlannedRun(name, seed) for seed in range(self.seeds) for name in names]

    def run(self) -> list[Standing]:
        """Trains what is not trained yet and returns the rows; `left` then has what others work on.

        Raises:
            Interrupted: Ctrl-C; the run at work is saved, and the same comparison goes on.
            InputError: the folder holds another comparison, or a contender cannot work.
        """
        check_folder(self.out)
        with manifest_lock(self.out):
            self._manifest = merge(self._manifest, read_manifest(self.out))
            write_manifest(self.out, self._manifest)
        self._check()
        tasks, settled = self.tasks, set[PlannedRun]()
        trained = True
        while trained:  # from the start after each run: what had to wait may be possible now
            trained, self.left = False, {}
            for task in tasks:
                outcome = Attempt.KEPT if task in settled else self._attempt(task, tasks)
                if outcome in (Attempt.TRAINED, Attempt.FAILED, Attempt.KEPT):
                    settled.add(task)
                else:
                    self.left[task] = outcome
                if outcome is Attempt.TRAINED:
                    write_outputs(self.out, with_page=False)
                    trained = True
                    break
        return write_outputs(self.out)

    def _check(self) -> None:
        """Before any training: runs of before have the right settings, those to come can be made."""
        unfinished: dict[str, Recipe] = {}
        for task in self.tasks:
            if task.name in MATCHED and task.name not in self._manifest.decisions:
                continue
            recipe, folder = self._recipe(task), self._folder(task)
            check_run(folder, recipe)
            if not RunFolder(folder).is_finished:
                unfinished.setdefault(task.name, recipe)
        check_recipes(unfinished.items(), *self._place)
        done = sum(RunFolder(self._folder(t)).is_finished for t in self.tasks)
        if done:
            self.progress.say(f"{done} of {len(self.tasks)} runs are there already")

    def _attempt(self, task: PlannedRun, tasks: list[PlannedRun]) -> Attempt:
        if task.name in MATCHED and task.name not in self._manifest.decisions:
            decided = decide(self.out).decisions
            self._manifest = dataclasses.replace(self._manifest, decisions=decided)
            if task.name not in decided:
                return Attempt.WAITING
        title = f"run {tasks.index(task) + 1} of {len(tasks)}: {task.name}, seed {task.seed}"
        try:
            return self._runner.attempt(
                self._recipe(task), self._folder(task), title, self._run_source(task)
            )
        except Interrupted as error:
            raise Interrupted(
                f"stopped in {task.name}, seed {task.seed}; it is saved, and so are the runs before it. The "
                f"same command goes on; `growthring compare --table --out {self.out}` shows what there is."
            ) from error

    def _settings(self, name: str) -> Settings:
        if name in MATCHED:
            return matched_settings(name, self._manifest.decisions[name].length)
        return self.contenders[name].settings

    def _recipe(self, task: PlannedRun) -> Recipe:
        return Contender(task.name, self._settings(task.name)).recipe(self.recipe, task.seed)

    def _folder(self, task: PlannedRun) -> Path:
        return self.out / self._manifest.folder(task.name, task.seed)

    def _run_source(self, task: PlannedRun) -> dict[str, Any] | None:
        if self._source is None:
            return None
        own = {**self._settings(task.name), "seed": task.seed}
        settings = [*without_length(self._source["settings"], own), *format_settings(own)]
        return {**self._source, "settings": settings, "fixed": False}
