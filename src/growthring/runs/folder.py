"""RunFolder: where a run keeps everything: config, log, checkpoints, result, weights, and the lock on them.

A run is what has a config.json: until then, what fails or is stopped leaves nothing behind; from then on
everything stays, and a killed run can be resumed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from growthring.checkpoint import (
    Checkpoint,
    JsonLines,
    Mark,
    RunLock,
    discard_after,
    load_weights,
    read_checkpoint,
    read_json,
    save_weights,
    write_checkpoint,
    write_json,
)
from growthring.checkpoint.files import write_error
from growthring.errors import InputError
from growthring.files.atomic import write_bytes
from growthring.files.foreign import refuse_link
from growthring.runs.records import LogRecord, Result


class RunFolder:
    """The folder of one run.

    Args:
        path: of the folder; it need not be there yet.

    >>> RunFolder("/no/such/run").is_run
    False
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.log_file = self.path / "metrics.jsonl"
        self.result_file = self.path / "result.json"
        self.weights_file = self.path / "model.safetensors"
        self.samples_file = self.path / "samples.json"
        self._log: JsonLines | None = None

    def __str__(self) -> str:
        return str(self.path)

    # What is there.

    @property
    def is_run(self) -> bool:
        """Whether it holds a run that can be resumed."""
        return self.config_file.exists()

    @property
    def is_finished(self) -> bool:
        """Whether its run has come to an end."""
        return self.result_file.exists()

    def read_config(self) -> Any:
        """What config.json says, unchecked.

        Raises:
            InputError: there is none.
            CheckpointError: it cannot be read, or is not JSON.
        """
        if not self.config_file.is_file():
            raise InputError(f"'{self}' holds no run: there is no config.json in it.")
        return read_json(self.config_file)

    def read_checkpoint(self, device: torch.device | str = "cpu") -> Checkpoint:
        """The newest checkpoint that is whole."""
        return read_checkpoint(self.path, device=device)

    def read_weights(self) -> dict[str, torch.Tensor]:
        """The weights of a finished run."""
        return load_weights(self.weights_file)

    def lock(self) -> RunLock:
        """Keeps other processes from the run, as a context."""
        return RunLock(self.path)

    # What a run at work does.

    @contextlib.contextmanager
    def at_work(self, with_new_log: bool = False) -> Iterator[None]:
        """Holds the lock and the log; removes what was made inside if that did not become a run.

        Args:
            with_new_log: the log that is there is damaged: it is set aside, and a new one begins.
        """
        before = set(os.listdir(self.path)) if self.path.is_dir() else None
        with self.lock():
            try:
                if with_new_log:
                    self._set_log_aside()
                with JsonLines(self.log_file) as self._log:
                    yield
            except BaseException:
                if not self.is_run:
                    self._remove(before)
                raise
            finally:
                self._log = None

    def begin(self, config: Mapping[str, Any]) -> None:
        """Makes it a run; the first checkpoint has to be there, so that what looks like a run can be resumed."""
        write_json(self.config_file, config)

    def go_back_to(self, step: int, log_size: int) -> None:
        """Forgets what a resumed run will do again: checkpoints after a step, and the log's end."""
        discard_after(self.path, step)
        self._open_log.truncate(log_size)

    def append(self, record: LogRecord) -> None:
        """Adds a line to the log."""
        self._open_log.append(record.as_line())

    def mark(self) -> Mark:
        """How far the log is."""
        return self._open_log.mark()

    def save(self, state: Mapping[str, Any], step: int, keep: int) -> None:
        """Writes a checkpoint, all or nothing; so many stay."""
        write_checkpoint(self.path, state, step, keep=keep)

    def finish(
        self, result: Result, weights: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
    ) -> None:
        """Writes the weights, and then the result: a run with a result is finished.

        Args:
            result: what the run came to.
            weights: of the final model.
            metadata: strings for the file of the weights.
        """
        save_weights(self.weights_file, weights, metadata)
        write_json(self.result_file, asdict(result))

    def write_file(self, name: str, text: str) -> None:
        """Writes a text beside the weights, whole or not at all."""
        try:
            write_bytes(self.path / name, text.encode())
        except OSError as error:
            raise write_error(self.path / name, error) from error

    def write_samples(self, samples: Sequence[Sequence[tuple[str, str]]]) -> None:
        """Writes what the model does, to look at."""
        write_json(self.samples_file, {"samples": [[list(pair) for pair in s] for s in samples]})

    def write_events(self, record: LogRecord) -> None:
        """Adds a record's numbers to the TensorBoard events in the folder."""
        from torch.utils.tensorboard import SummaryWriter

        refuse_link(self.path / "tensorboard")
        line = record.as_line()
        with SummaryWriter(str(self.path / "tensorboard")) as writer:
            for key, value in line.items():
                if isinstance(value, float):
                    writer.add_scalar(key, value, line["step"])

    @property
    def _open_log(self) -> JsonLines:
        assert self._log is not None, "only inside of at_work()"
        return self._log

    def _set_log_aside(self) -> None:
        """Renames a damaged log; nothing happens where there is none."""
        path = self.log_file
        if not os.path.lexists(path):
            return
        names = (path.with_name(f"{path.stem}.damaged-{n}{path.suffix}") for n in range(1, 10_000))
        try:
            path.rename(next(name for name in names if not os.path.lexists(name)))
        except OSError as error:
            raise write_error(path, error) from error

    def _remove(self, before: set[str] | None) -> None:
        """Removes what was not there before."""
        kept = before or set()
        with contextlib.suppress(OSError):
            for name in (self.log_file.name, "lock"):
                if name not in kept:
                    (self.path / name).unlink(missing_ok=True)
            if "checkpoints" not in kept:
                shutil.rmtree(self.path / "checkpoints", ignore_errors=True)
            if before is None:
                self.path.rmdir()  # fails where somebody has put something
