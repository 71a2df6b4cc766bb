"""A trainer and a bare torch loop that take turns, and what else benchmarks of training need.

The trainer's own batch stream lets a bare torch loop take its turn on every batch, so `fit` itself is
measured beside its peer. A busy machine interrupts long work more than short: parts of a step are compared in
processor time. Forward and backward passes are the same in both and vary by more than the target, so what is
compared is the rest of the step; whole steps by the wall clock stand beside it.
"""

from __future__ import annotations

import copy
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.measure import Sample
from growthring import train
from growthring.data import Batches, ImageData

LOG_RATES = 50  # the trainer's default: every so many steps it records the rates
WARM_UP = 2


class EnoughError(Exception):
    """Ends a run that has shown what it was for."""


def fit_until_enough(trainer: train.Trainer, at_first_step: bool = False) -> None:
    """Runs until `EnoughError`."""
    stop = mock.Mock(side_effect=EnoughError) if at_first_step else trainer._step
    try:
        with mock.patch.object(trainer, "_step", stop):
            trainer.fit()
    except EnoughError:
        return
    raise AssertionError("the run came to its end")


def make_images(count: int, classes: int, seed: int) -> ImageData:
    """Random images of CIFAR's shape."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(classes, (count,), generator=generator)
    return ImageData(pixels, labels, classes, "noise")


def torch_step(model: nn.Module, optimizer: Any, inputs: Tensor, targets: Tensor) -> None:
    """A step as in a loop of one's own."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()


def grow_to_the_end(trainer: train.Trainer) -> None:
    """Puts a trainer to the start of its last stage, momentum included."""
    assert trainer.grower is not None
    while not trainer.grower.is_full:
        trainer.grower.finish()
        trainer.grower.grow(measure=False)
    trainer.totals.stage = trainer.plan.num_stages - 1
    for p in trainer.model.parameters():
        p.grad = torch.full_like(p, 1e-6)
    trainer.optimizer.step()


class Turns(Batches):
    """A trainer's batches, on each of which a bare loop trains as well."""

    def race(self, trainer: train.Trainer, steps: int) -> None:
        """Fills `times`: name -> values of the steps. Processor seconds, but for the whole steps."""
        self.trainer, self.steps = trainer, steps
        self.times: dict[str, list[float]] = {}
        self.passes = self.record = 0.0
        self.records: list[float] = []
        self.peer = copy.deepcopy(trainer.model).train()
        options = trainer.recipe.optimizer_options
        self.optimizer = torch.optim.SGD(self.peer.parameters(), lr=0.01, **options)
        kind = type(trainer.model)
        with (
            mock.patch.object(kind, "forward", self._counted(kind.forward)),
            mock.patch.object(Tensor, "backward", self._counted(Tensor.backward)),
            mock.patch.object(trainer, "after_step", self._after_step),
        ):
            fit_until_enough(trainer)
        share = statistics.median(self.records) / LOG_RATES
        self.times["adds"] = [seconds + share for seconds in self.times["adds"]]

    def sample(self, name: str) -> Sample:
        return Sample(tuple(self.times[name][WARM_UP:]))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.process_time()
            result = function(*args, **kwargs)
            self.passes += time.process_time() - started
            return result

        return call

    def _after_step(self) -> None:
        """The trainer's; after some steps once more, with the record of rates."""
        self.trainer._log_rates = 0
        train.Trainer.after_step(self.trainer)
        if self.trainer.totals.step % 8 == 0:
            self.trainer._log_rates, started = 1, time.process_time()
            train.Trainer.after_step(self.trainer)
            self.record = time.process_time() - started
            self.records.append(self.record)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        batches = super().__iter__()
        for i in range(self.steps + WARM_UP):
            started = time.process_time()
            batch = next(batches)
            found = {"load": time.process_time() - started}
            for name in ("trainer", "bare") if i % 2 else ("bare", "trainer"):
                gc.collect()
                self.passes = self.record = 0.0
                wall, started = time.perf_counter(), time.process_time()
                if name == "trainer":
                    yield batch
                else:
                    torch_step(self.peer, self.optimizer, *batch)
                spent, wall = time.process_time() - started, time.perf_counter() - wall
                found[f"{name}, whole"] = wall - self.record
                found[name] = spent - self.record
                found[f"{name}, rest"] = spent - self.passes - self.record
            found["adds"] = found["trainer, rest"] - found["bare, rest"]
            found["adds, whole"] = found["trainer, whole"] - found["bare, whole"]
            found["step"] = found["bare"] + found["load"]
            for name, value in found.items():
                self.times.setdefault(name, []).append(value)
        raise EnoughError
