"""What can go wrong with the files of a run."""

from __future__ import annotations

from growthring.errors import GrowthError


class CheckpointError(GrowthError, RuntimeError):
    """A file of a run cannot be written or read, or holds what is not a checkpoint."""


class RunLockedError(CheckpointError):
    """Another process works on the run.

    Attributes:
        pid: that process, where it is known.
        host: the machine that it runs on, where it is known.
    """

    def __init__(self, message: str, pid: int | None = None, host: str | None = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.host = host
