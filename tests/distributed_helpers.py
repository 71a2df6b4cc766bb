"""Several processes for a test: started once, kept for all tests of a run, joined by gloo."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed as dist, multiprocessing

ROOT = Path(__file__).parents[1]
TIMEOUT = timedelta(seconds=60)  # of a message between processes


class Processes:
    """Processes that do what they are told, in one process group.

    Args:
        count: of processes.
    """

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="ranks")
        self._pipes, self._processes = [], []
        for rank in range(count):
            here, there = context.Pipe()
            arguments = (rank, count, f"{self._folder.name}/group", there)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What `function(rank, *args)` returns on each rank; an error of any rank is raised here."""
        place = (function.__module__, function.__qualname__)
        for pipe in self._pipes:
            pipe.send((place, args))
        answers = [self._answer(rank) for rank in range(len(self._pipes))]
        failed = [f"rank {r}:\n{text}" for r, (is_done, text) in enumerate(answers) if not is_done]
        if failed:
            self.stop()  # nobody knows what the group is waiting for
            raise AssertionError("\n".join(failed))
        return [value for _, value in answers]

    def _answer(self, rank: int) -> tuple[bool, Any]:
        try:
            return self._pipes[rank].recv()
        except EOFError:
            self._processes[rank].join()  # its end of the pipe closes before it has an exit code
            return False, f"ended with exit code {self._processes[rank].exitcode}"

    @property
    def is_alive(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def stop(self) -> None:
        """Ends all of them."""
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()


def _serve(rank: int, count: int, file: str, pipe: Any) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
    sys.path.insert(0, str(ROOT))
    import importlib

    import torch

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=count, timeout=TIMEOUT
    )
    while True:
        try:
            (module, name), args = pipe.recv()
        except EOFError:
            os._exit(0)  # the tests are over
        try:
            pipe.send((True, getattr(importlib.import_module(module), name)(rank, *args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


_RUNNING: dict[int, Processes] = {}


def on_ranks(function: Callable[..., Any], *args: Any, count: int = 2) -> list[Any]:
    """Calls a function of a test module on several processes: `function(rank, *args)`, all in one group.

    Returns:
        What each rank returned: plain values and tensors.
    """
    if count not in _RUNNING or not _RUNNING[count].is_alive:
        _RUNNING[count] = Processes(count)
        atexit.register(_RUNNING[count].stop)
    return _RUNNING[count].run(function, *args)
