"""A module beside the models of test_harm: caches that models reach through an import."""

import torch

TABLE: dict[int, torch.Tensor] = {}
OTHER: dict[int, torch.Tensor] = {}
COUNT = 0


def table(n: int) -> torch.Tensor:
    """Ones, kept in a dict of this file."""
    global COUNT
    COUNT += 1
    if n not in TABLE:
        TABLE[n] = torch.ones(n)
    return TABLE[n]


class Kept:
    """An object that keeps what it made."""

    def __init__(self) -> None:
        self.made: dict[int, torch.Tensor] = {}

    def get(self, n: int) -> torch.Tensor:
        """Ones, made once."""
        if n not in self.made:
            self.made[n] = torch.ones(n)
        return self.made[n]


KEPT = Kept()
