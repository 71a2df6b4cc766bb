"""The random numbers that everybody shares: the states of torch's, Python's and numpy's generators as plain data.

Samplers and augmentations draw from them, and so does dropout on the CPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from growthring.errors import InputError


def shared_random() -> dict[str, Any]:
    """The states of all three; `set_shared_random` goes back there.

    >>> state = shared_random()
    >>> drawn = torch.rand(()), random.random(), np.random.rand()
    >>> set_shared_random(state)
    >>> drawn == (torch.rand(()), random.random(), np.random.rand())
    True
    """
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(),
    }


def set_shared_random(state: Mapping[str, Any]) -> None:
    """Gives the generators that `state` names the states that it has."""
    setters: dict[str, Callable[[Any], Any]] = {
        "torch": torch.set_rng_state,
        "python": random.setstate,
        "numpy": np.random.set_state,
    }
    for name, value in state.items():
        setters[name](value)


def check_shared_random(state: object) -> None:
    """Refuses what `set_shared_random` could not use.

    Raises:
        InputError: it is no such state.
    """
    tries: dict[str, Callable[[Any], Any]] = {
        "torch": torch.Generator().set_state,
        "python": random.Random().setstate,
        "numpy": np.random.RandomState().set_state,
    }
    try:
        for name, value in dict(state).items():  # type: ignore[call-overload]
            tries[name](value)
    except (TypeError, ValueError, LookupError, RuntimeError, OverflowError) as error:
        raise InputError(f"there is no such state of random numbers: {error}") from error


def seed_shared_random(seed: int) -> None:
    """Seeds all three, but not torch's generators of other devices."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # it takes no more
