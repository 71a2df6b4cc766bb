"""What cannot be shared out to several processes is refused before any of it is begun."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

from growthring.data.anatomy import holders_of
from growthring.data.batch import Batch, Stream, first_examples
from growthring.data.shares import Share
from growthring.data.stream import BatchStream
from growthring.distributed.digests import digest_of
from growthring.distributed.ranks import Ranks
from growthring.errors import InputError
from growthring.graph.isolation import kept_random
from growthring.methods.base import Loss
from growthring.train.choices import mode_of
from growthring.train.measure import apply, batch_sums, counts_nothing
from growthring.train.recipe import Recipe

_TRIED = 32  # examples


def check_shareable(ranks: Ranks, recipe: Recipe, **data: Any) -> None:
    """Refuses what several processes cannot do as one would; of one it refuses nothing.

    Args:
        ranks: the processes.
        recipe: the settings.
        data: of the user's own, by its names.

    Raises:
        InputError: says what, and what to do.
    """
    if ranks.is_alone:
        return
    if mode_of(recipe.compile) != "never":
        raise InputError(
            f"compile={recipe.compile!r} cannot be had with {ranks.size} processes: a program for each stage is "
            "compiled for batches of one size, and slices have several. Leave it out, or train on one process."
        )
    for name, given in data.items():
        if any(isinstance(holder, DistributedSampler) for holder in holders_of(given)):
            raise InputError(
                f"{name} has a DistributedSampler, which gives each process other batches; but every process is to "
                "have all batches, of which growthring takes its slice. Give it a loader without, whose batch_size "
                "is that of all processes together."
            )


def common_facts(recipe: Recipe, train: Stream, steps: Sequence[int]) -> dict[str, Any]:
    """What has to be equal on all processes before they agree on a model, by names that an error can use."""
    place = train.state_dict() if isinstance(train, BatchStream) else {}
    return {
        **{f"the recipe's {key}": value for key, value in recipe.as_dict().items()},
        "the number of training examples": train.num_examples,
        "the steps of each stage": tuple(steps),
        "the order of the training data": [
            int(digest_of(value)) for value in place.values() if isinstance(value, Tensor)
        ],
    }


def check_mean(ranks: Ranks, model: nn.Module, train: Stream, loss: Loss) -> None:
    """Refuses a loss whose value on a batch is not the mean of those on its slices; of one process nothing.

    Args:
        ranks: the processes.
        model: of full size; it runs once, in eval mode.
        train: the data, which stays where it is.
        loss: of the user's own.

    Raises:
        InputError: says how they differ.
    """
    if ranks.is_alone:
        return
    batch = first_examples(next(iter(train.fork(0))), _TRIED)
    modes = [(module, module.training) for module in model.modules()]
    with torch.no_grad(), kept_random():
        outputs = apply(model.eval(), batch[0])
        whole = float(loss(outputs, batch[1]))
        mean = _mean_of_slices(loss, (outputs, batch[1]))
    for module, mode in modes:
        module.training = mode
    if math.isfinite(whole) and not math.isclose(whole, mean, rel_tol=1e-4, abs_tol=1e-6):
        raise InputError(
            f"the loss cannot be shared out to {ranks.size} processes: on the first examples it is {whole:.6g}, on "
            f"two slices of them {mean:.6g} in the mean. Gradients of slices are put together as those of a mean "
            "over examples (or over targets that are not -100), which a sum, a mean that is weighted by classes or "
            "a loss that compares examples is not. Give a mean over examples, or train on one process."
        )


def _mean_of_slices(loss: Loss, pair: Batch) -> float:
    """The loss of (outputs, targets), put together from two slices."""
    total = torch.zeros(3, dtype=torch.float64)
    for share in (Share(0, 2), Share(1, 2)):
        outputs, targets = part = share.cut(pair)
        if not counts_nothing(part):
            total += batch_sums(loss(outputs, targets), outputs, part)
    return float(total[0] / total[2])
