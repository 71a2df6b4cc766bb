"""Search: asks a method what it decides on, with the data of those that search."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch

from growthring.distributed.ranks import Ranks
from growthring.errors import InputError
from growthring.graph.isolation import untouched
from growthring.graph.magnitudes import effective
from growthring.growing.module import GrowingModule
from growthring.methods import Growth, GrowthMethod, Job, Step
from growthring.methods.base import Loss, SearchBatch
from growthring.methods.magnitudes import following_magnitudes

SearchBatches = Iterable[SearchBatch] | Callable[[int], Iterable[SearchBatch]]


class Search:
    """A method and what it may look at.

    Args:
        method: how new units are made.
        batches: something to iterate over anew at every growth, or a function from a seed to such a thing.
        loss: from outputs and targets to a scalar.
    """

    def __init__(
        self, method: GrowthMethod, batches: SearchBatches | None, loss: Loss | None
    ) -> None:
        if method.searches and (batches is None or loss is None):
            raise InputError(
                f"method '{method.name}' searches on data: pass batches= (a DataLoader of inputs and "
                "targets) and loss=."
            )
        self.method, self._batches, self._loss = method, batches, loss

    def growth(
        self,
        step: Step,
        main: GrowingModule,
        generator: torch.Generator,
        hold_norms: bool,
        ranks: Ranks | None = None,
    ) -> Growth:
        """What the method decides on; a search runs the model's code, which leaves nothing.

        Of several processes the first one searches, on its data; the others get what it found.

        Args:
            step: from which widths to which.
            main: the model.
            generator: of random numbers.
            hold_norms: do not rescale what norms with a large ε normalise.
            ranks: the processes that grow the model.
        """

        def decide() -> tuple[Growth, torch.Tensor]:
            return self._decide(step, main, generator, hold_norms), generator.get_state()

        if ranks is None or ranks.is_alone or not self.method.searches:
            return decide()[0]
        shared = {"step": step, "plan": step.plan, "groups": step.plan.groups}
        growth, state = ranks.from_first(decide, shared)
        generator.set_state(state)
        return growth

    def _decide(
        self, step: Step, main: GrowingModule, generator: torch.Generator, hold_norms: bool
    ) -> Growth:
        batches = self._batches if self.method.searches else None
        if callable(batches):
            seed = torch.randint(2**62, (), generator=generator, device=generator.device)
            batches = batches(int(seed))
        tensors = effective(step.plan.groups.specs, main.tensors)
        job = Job(step, main.module, tensors, generator, batches, self._loss, hold_norms)
        with untouched(main.module) if self.method.searches else nullcontext():
            growth = self.method.grow(job)
        return following_magnitudes(growth, step)
