"""What methods that try things on data share: going over batches, the loss, what it all costs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from growthring.errors import GrowthStepError, InputError
from growthring.methods.base import Job, SearchCost
from growthring.planning.costs import num_examples


class DataSearch:
    """Goes over batches and counts what that costs.

    FLOPs are counted by torch on the first batch of each phase, forward and backward as they are, and
    taken to go with the number of examples.

    Args:
        job: has the batches and the loss.
    """

    def __init__(self, job: Job) -> None:
        assert job.batches is not None and job.loss is not None  # the Grower sees to it
        self._batches, self._loss = job.batches, job.loss
        self.cost = SearchCost()

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """The task's loss."""
        loss = self._loss(outputs, targets)
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            raise InputError("loss(outputs, targets) must return a scalar tensor.")
        if not math.isfinite(float(loss.detach())):
            raise GrowthStepError(
                f"the loss is {float(loss.detach())} while searching for new units; nothing was changed."
            )
        return loss

    def over(
        self,
        steps: int | None,
        act: Callable[[Any, Any], None],
        examples: int | None = None,
        check: Callable[[Any], None] | None = None,
    ) -> int:
        """Calls `act(inputs, targets)` on batches and counts what that costs.

        Args:
            steps: how many batches; None is one pass.
            act: what to do.
            examples: stop when so many were seen, after more than one pass if need be.
            check: called with the first inputs, outside of the count.

        Returns:
            How many batches there were.
        """
        seen, per_example, number = 0, 0.0, 0
        for inputs, targets in self._some(steps, is_endless=examples is not None):
            size = num_examples(inputs)
            if number == 0:
                if check is not None:
                    check(inputs)
                with FlopCounterMode(display=False) as counter:
                    act(inputs, targets)
                per_example = counter.get_total_flops() / size
            else:
                act(inputs, targets)
            seen, number = seen + size, number + 1
            if examples is not None and seen >= examples:
                break
        if number == 0:
            raise InputError("batches= gave no batch to search on.")
        self.cost.flops += per_example * seen
        self.cost.examples += seen
        return number

    def _some(self, steps: int | None, is_endless: bool) -> Iterator[Any]:
        """Batches from the start; from the start again where the data has fewer than were asked for."""
        number = 0
        while True:
            before = number
            for batch in self._batches:
                yield _pair(batch)
                number += 1
                if number == steps:
                    return
            if number == before or (steps is None and not is_endless):
                return


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise InputError(f"batches= must give (inputs, targets); it gave a {type(batch).__name__}.")
    return batch[0], batch[1]


def uniform(like: Tensor, bound: float, generator: torch.Generator) -> Tensor:
    """U(-bound, bound), drawn on the generator's device."""
    drawn = torch.empty(like.shape, dtype=torch.float32, device=generator.device)
    return drawn.uniform_(-bound, bound, generator=generator).to(like)


def rmsprop(parameters: list[Tensor], rate: float) -> torch.optim.RMSprop:
    """The optimizer of the reference implementations' local searches."""
    return torch.optim.RMSprop(parameters, lr=rate, alpha=0.9, momentum=0.1)


def check_positive(method: Any, *names: str, zero: bool = False) -> None:
    """Refuses hyperparameters that are not positive numbers (or 0, if that is allowed); None is a default.

    Those that are annotated as whole numbers have to be.
    """
    kinds = {f.name: str(f.type) for f in dataclasses.fields(method)}
    for name in names:
        value, is_whole = getattr(method, name), kinds[name].startswith("int")
        if value is None and "None" in kinds[name]:
            continue
        number = isinstance(value, int if is_whole else (int, float)) and not isinstance(
            value, bool
        )
        if not (number and math.isfinite(value) and (value > 0 or (zero and value == 0))):
            kind = "a positive whole number" if is_whole else "a positive number"
            raise InputError(f"{name}={value!r} of method '{method.name}' is not {kind}.")
