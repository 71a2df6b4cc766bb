"""SharedFolder: the folder of a run that several processes train: the first one writes, and all fail with it.

Only the first process needs the folder: the others, on another machine maybe, are told what is in it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from growthring.checkpoint import Mark
from growthring.distributed.ranks import Ranks
from growthring.runs.folder import RunFolder
from growthring.runs.records import LogRecord, Result


class SharedFolder(RunFolder):
    """The folder of one run; all processes call what is called.

    Args:
        path: of the folder, as the first process sees it.
        ranks: the processes.

    >>> SharedFolder("/no/such/run", Ranks()).is_run
    False
    """

    def __init__(self, path: str | os.PathLike[str], ranks: Ranks) -> None:
        super().__init__(path)
        self._ranks, self._own = ranks, RunFolder(path)

    @property
    def is_run(self) -> bool:
        """Whether it holds a run that can be resumed."""
        return self._ranks.from_first(lambda: self._own.is_run)

    @contextlib.contextmanager
    def at_work(self, with_new_log: bool = False) -> Iterator[None]:
        """Holds the lock and the log."""
        with contextlib.ExitStack() as stack:
            self._first(lambda: stack.enter_context(self._own.at_work(with_new_log)))
            yield

    def begin(self, config: Mapping[str, Any]) -> None:
        """Writes the configuration."""
        self._first(lambda: self._own.begin(config))

    def go_back_to(self, step: int, log_size: int) -> None:
        """Forgets what a resumed run will do again."""
        self._first(lambda: self._own.go_back_to(step, log_size))

    def append(self, record: LogRecord) -> None:
        """Adds a line to the log."""
        self._first(lambda: self._own.append(record))

    def mark(self) -> Mark:
        """How far the log is."""
        return self._ranks.from_first(lambda: self._own.mark())

    def save(self, state: Mapping[str, Any], step: int, keep: int) -> None:
        """Writes a checkpoint."""
        self._first(lambda: self._own.save(state, step, keep))

    def finish(
        self, result: Result, weights: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
    ) -> None:
        """Writes the weights, and then the result."""
        self._first(lambda: self._own.finish(result, weights, metadata))

    def write_file(self, name: str, text: str) -> None:
        """Writes a text beside the weights."""
        self._first(lambda: self._own.write_file(name, text))

    def write_samples(self, samples: Sequence[Sequence[tuple[str, str]]]) -> None:
        """Writes what the model does."""
        self._first(lambda: self._own.write_samples(samples))

    def write_events(self, record: LogRecord) -> None:
        """Adds a record's numbers to the TensorBoard events."""
        self._first(lambda: self._own.write_events(record))

    def _first(self, act: Callable[[], object]) -> None:
        with self._ranks.together():
            if self._ranks.rank == 0:
                act()
