"""One run of a comparison: kept if it is there, else trained, resumed, left to others or recorded as failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from growthring.checkpoint import CheckpointError, RunLock, RunLockedError, write_json
from growthring.compare.checks import check_run
from growthring.compare.standings import FAILED
from growthring.errors import GrowthError
from growthring.runs import RunFolder
from growthring.runs.results import damage_of
from growthring.train import Interrupted, Progress, Recipe, Trainer, TrainingError


class Attempt(Enum):
    """What became of an attempt at a run."""

    TRAINED = "trained"
    KEPT = "kept"
    FAILED = "failed"
    ELSEWHERE = "at work elsewhere"
    WAITING = "waiting for the cost to match"


@dataclass(frozen=True)
class Runner:
    """Trains runs below a folder, each by one process at a time.

    Attributes:
        out: folder of the comparison.
        options: of the `Trainer`: device, data and the like.
        retry: try again what failed, from its last checkpoint.
        progress: what shows how far it is.
    """

    out: Path
    options: Mapping[str, Any]
    retry: bool
    progress: Progress

    def attempt(
        self, recipe: Recipe, folder: Path, title: str, source: dict[str, Any] | None
    ) -> Attempt:
        """Brings a run to its end, if nobody else is at it.

        Args:
            recipe: of the run.
            folder: of the run, below `out`.
            title: said before it is trained.
            source: see `Trainer`.
        """
        # The run's own lock is the trainer's; this one is held from the look at the folder on, so that a
        # run that another process finishes in between is not trained twice.
        claim = RunLock(self.out / ".locks" / "-".join(folder.relative_to(self.out).parts))
        try:
            claim.acquire()
        except RunLockedError:
            return Attempt.ELSEWHERE
        try:
            check_run(folder, recipe)
            if RunFolder(folder).is_finished:
                damage = damage_of(folder)
                if damage is None:
                    return Attempt.KEPT
                self.progress.say(f"{folder / 'result.json'} {damage}; finishing the run again")
            if (folder / FAILED).exists():
                if not self.retry:
                    return Attempt.FAILED
                (folder / FAILED).unlink()
            self.progress.say(title)
            return self._train(recipe, folder, source)
        finally:
            claim.release()

    def _train(self, recipe: Recipe, folder: Path, source: dict[str, Any] | None) -> Attempt:
        try:
            trainer = Trainer(recipe, folder, progress=self.progress, source=source, **self.options)
            if RunFolder(folder).is_run:
                self._resume(trainer)
            trainer.fit()
        except RunLockedError:  # somebody resumed it with `growthring train`
            return Attempt.ELSEWHERE
        except (Interrupted, CheckpointError):  # a full disk would end every other run too
            raise
        except (GrowthError, torch.OutOfMemoryError) as error:
            self.progress.say(f"failed: {error}")
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / FAILED, {"error": type(error).__name__, "message": str(error)})
            return Attempt.FAILED
        return Attempt.TRAINED

    def _resume(self, trainer: Trainer) -> None:
        try:
            trainer.resume()
        except RunLockedError:
            raise
        except CheckpointError as error:  # of this run only, unlike a disk that is full
            raise TrainingError(str(error)) from error
