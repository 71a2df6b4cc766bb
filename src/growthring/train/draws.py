"""Draws: random numbers that each of several processes draws for itself, as dropout does.

Torch's, Python's and numpy's shared generators have the same states in all processes, since the order of a user's
loader may come from them. While a process trains on its slice they have states of its own: two slices must not be
dropped out alike.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from growthring.data.randomness import seed_shared_random, set_shared_random, shared_random
from growthring.distributed.ranks import Ranks


class Draws:
    """What a process draws for itself; of one process alone, nothing differs from what is shared.

    Args:
        ranks: the processes.
        device: where they train.
    """

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self._ranks, self._device = ranks, device
        self._own: Mapping[str, Any] = {}

    def begin(
        self, seed: int, step: int = 0, states: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Before the first step: takes up the state of this process, or draws one where it is new.

        Args:
            seed: of the run.
            step: where it is.
            states: of the processes that it was saved by.
        """
        if self._ranks.is_alone:
            return
        rank = self._ranks.rank
        if states is not None and rank < len(states):
            self._own = {k: v for k, v in states[rank].items() if k != "cuda"}
            if self._device.type == "cuda" and "cuda" in states[rank]:
                torch.cuda.set_rng_state(states[rank]["cuda"], self._device)
            return
        digest = hashlib.sha256(f"{seed}, {rank}, {step}".encode()).digest()
        own = int.from_bytes(digest[:7])
        shared = shared_random()
        seed_shared_random(own)
        self._own = shared_random()
        set_shared_random(shared)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(own)

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """What is drawn inside is drawn by this process for itself."""
        if self._ranks.is_alone:
            yield
            return
        shared = shared_random()
        set_shared_random(self._own)
        try:
            yield
        finally:
            self._own = shared_random()
            set_shared_random(shared)

    def states(self) -> dict[str, Any]:
        """Of this process, for a checkpoint."""
        if self._device.type != "cuda":
            return dict(self._own)
        return {**self._own, "cuda": torch.cuda.get_rng_state(self._device)}
