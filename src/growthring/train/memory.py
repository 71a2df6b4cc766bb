"""Peak memory of a run."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """The most memory in use since it was made, above what was in use then.

    On CUDA that of torch's allocator; on Linux the resident size of the process; None elsewhere.

    Args:
        device: where the run is.
        held: bytes that were in use before and count as well.

    >>> bytes_in_use = PeakMemory(torch.device("cpu"), held=8).read()
    >>> bytes_in_use is None or bytes_in_use >= 8
    True
    """

    def __init__(self, device: torch.device, held: int = 0) -> None:
        self._device, self._base, self._held = device, 0, held
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._base = torch.cuda.memory_allocated(device)
        else:
            self._base = _reset() or 0

    def read(self) -> int | None:
        """Bytes."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) - self._base + self._held
        peak = _status("VmHWM")
        return None if peak is None or not self._base else max(0, peak - self._base) + self._held


def _reset() -> int | None:
    """Sets the process's peak to its present size, freed memory given back first; None where that fails."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        _RESET.write_text("5")
    except (OSError, AttributeError, TypeError):  # not Linux with glibc, or /proc is not writable
        return None
    return _status("VmRSS")


def _status(key: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    return None
