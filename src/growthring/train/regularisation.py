"""Regularisation: weight decay and augmentation as strong as each stage wants them."""

from __future__ import annotations

import torch

from growthring.data import Batches
from growthring.data.batch import Stream
from growthring.data.stream import AugmentedStream
from growthring.errors import InputError
from growthring.planning.plan import Plan
from growthring.planning.strengths import strengths
from growthring.train.recipe import Recipe


class Regularisation:
    """Sets weight decay and augmentation at the start of each stage.

    What it sets follows from the recipe and the stage alone, so that a resumed run needs nothing of it; the weight
    decays are those of the optimizer as it was made, before a checkpoint brings those of its stage.

    Args:
        recipe: its `narrow_weight_decay` and `narrow_augmentation`.
        plan: the stages.
        optimizer: as it was made.
        stream: of the training.

    Raises:
        InputError: one of them is to be weaker where there is none.
    """

    def __init__(
        self, recipe: Recipe, plan: Plan, optimizer: torch.optim.Optimizer, stream: Stream
    ) -> None:
        check_weight_decay(recipe, optimizer)
        check_augmentation(recipe, stream)
        self._optimizer, self._stream = optimizer, stream
        self._decays = [group.get("weight_decay") for group in optimizer.param_groups]
        self._decay, self._augmentation = (
            None if narrow == 1 else (narrow,) if recipe.small else strengths(plan, narrow)
            for narrow in (recipe.narrow_weight_decay, recipe.narrow_augmentation)
        )

    def enter(self, stage: int) -> None:
        """Sets what the stage has; nothing where all stages are alike."""
        if self._decay is not None:
            for group, decay in zip(self._optimizer.param_groups, self._decays, strict=True):
                if decay is not None:
                    group["weight_decay"] = decay * self._decay[stage]
        if self._augmentation is not None and isinstance(self._stream, AugmentedStream):
            self._stream.augment(self._augmentation[stage])


def check_weight_decay(recipe: Recipe, optimizer: torch.optim.Optimizer) -> None:
    """Refuses a weaker weight decay where there is none."""
    narrow = recipe.narrow_weight_decay
    if narrow != 1 and not any(group.get("weight_decay") for group in optimizer.param_groups):
        raise InputError(
            f"narrow_weight_decay={narrow}: the optimizer '{recipe.plan.optimizer}' has no weight decay that could "
            "be weaker. Give it one (optimizer_options.weight_decay), or leave narrow_weight_decay out."
        )


def check_augmentation(recipe: Recipe, stream: Stream) -> None:
    """Refuses a weaker augmentation where there is none."""
    narrow = recipe.narrow_augmentation
    if narrow == 1:
        return
    why = None
    if not isinstance(stream, AugmentedStream):
        why = "the batches of this data come as they are, without augmentation by growthring"
    elif isinstance(stream, Batches) and not stream.augmentation.moves_images:
        why = "the images are neither shifted nor mirrored (shift=0, mirror=False)"
    if why is not None:
        raise InputError(
            f"narrow_augmentation={narrow}: {why}, so nothing could be weaker. Leave narrow_augmentation out."
        )
