"""Outgrown: what is left of a model whose growth made a new one; whoever goes on with it is told so."""

from __future__ import annotations

import gc
from typing import Any

from torch import nn

from growthring.errors import GrowthStepError


class Outgrown(nn.Module):
    """A module of a model that has grown into another: nothing can be done with it.

    >>> net = nn.Sequential(nn.Linear(2, 2))
    >>> outgrow(net)
    >>> net.parameters()
    Traceback (most recent call last):
    ...
    growthring.errors.GrowthStepError: this model has grown into a new one (Grower(shard=...)), ...
    """

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return super().__getattribute__(name)
        raise _refusal()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refused."""
        raise _refusal()

    def __setattr__(self, name: str, value: Any) -> None:
        raise _refusal()

    def __getitem__(self, place: Any) -> Any:
        raise _refusal()

    def __repr__(self) -> str:
        return "Outgrown()"


def outgrow(model: nn.Module) -> None:
    """Takes everything from a model and its modules, so that nobody trains, measures or saves it by mistake."""
    for module in list(model.modules()):
        vars(module).clear()
        object.__setattr__(module, "__class__", Outgrown)
    gc.collect()  # FSDP's objects refer to each other, and hold the old shards


def _refusal() -> GrowthStepError:
    return GrowthStepError(
        "this model has grown into a new one (Grower(shard=...)), and holds nothing any more. Use grower.model, "
        "and take it anew after each growth: model = grower.model."
    )
