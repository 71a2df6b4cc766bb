"""What cannot be shared out to several processes is refused before any of it is begun."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.data import DistributedSampler

from growthring.data.anatomy import holders_of
from growthring.distributed.ranks import Ranks
from growthring.errors import InputError
from growthring.train.recipe import Recipe


def check_shareable(ranks: Ranks, recipe: Recipe, loss: Any, **data: Any) -> None:
    """Refuses what several processes cannot do as one would; of one it refuses nothing.

    Args:
        ranks: the processes.
        recipe: the settings.
        loss: of the user's own.
        data: of the user's own, by its names.

    Raises:
        InputError: says what, and what to do.
    """
    if ranks.is_alone:
        return
    if recipe.compile:
        raise InputError(
            f"compile=True cannot be had with {ranks.size} processes: a program for each stage is compiled for "
            "batches of one size, and slices have several. Leave it out, or train on one process."
        )
    for name, given in data.items():
        if any(isinstance(holder, DistributedSampler) for holder in holders_of(given)):
            raise InputError(
                f"{name} has a DistributedSampler, which gives each process other batches; but every process is to "
                "have all batches, of which growthring takes its slice. Give it a loader without, whose batch_size "
                "is that of all processes together."
            )
    if isinstance(loss, nn.Module):
        _check_mean(loss)


def _check_mean(loss: nn.Module) -> None:
    """Refuses losses of torch that say that they are no mean over places that count alike."""
    kind = type(loss).__name__
    reduction = getattr(loss, "reduction", "mean")
    if reduction != "mean":
        raise InputError(
            f"loss={kind}(reduction='{reduction}') cannot be shared out to several processes: gradients of slices "
            "are weighted by their numbers of examples, as of a mean. Use reduction='mean'."
        )
    if getattr(loss, "weight", None) is not None:
        raise InputError(
            f"loss={kind}(weight=...) cannot be shared out to several processes: it is a mean over weights of "
            "classes, which slices have different sums of. Multiply each example's loss by its weight and take the "
            "mean over examples; or train on one process."
        )
