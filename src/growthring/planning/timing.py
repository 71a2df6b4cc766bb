"""Seconds of training steps on this machine: stages in turns, so that other work on it distorts none of them."""

from __future__ import annotations

import contextlib
import copy
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from growthring.errors import PlanError
from growthring.graph.isolation import call, callers_settings, fixed_random, untouched
from growthring.graph.results import output_tensors
from growthring.graph.trace import ExampleInputs
from growthring.optim import OPTIMIZERS
from growthring.planning.costs import repeated
from growthring.planning.schedule import check_whole

Step = Callable[[], None]
_TURN = 0.05  # seconds that a turn shall last at least: a clock, and an interruption, are coarser than a small step
_MOST = 50  # steps of a turn


class TrainingStep:
    """Forward pass, backward pass and optimizer step of a model in train mode; each call is one.

    The rate is 0, and the loss stands for the user's: a cross entropy costs what a logsumexp does.

    Args:
        model: whose values need not be kept.
        inputs: example inputs, which are repeated up to the batch size.
        batch_size: examples of a step.
        optimizer: one of `growthring.optim.OPTIMIZERS`; "none" takes no step.
    """

    def __init__(
        self, model: nn.Module, inputs: ExampleInputs, batch_size: int, optimizer: str = "sgd"
    ) -> None:
        self._model = model
        self._args, self._kwargs = repeated(inputs, batch_size)
        self._optimizer = _make(optimizer, [p for p in model.parameters() if p.requires_grad])

    def __call__(self) -> None:
        """Takes one step, and waits for it."""
        outputs = [
            t
            for t in output_tensors(call(self._model, self._args, self._kwargs))
            if t.requires_grad
        ]
        if not outputs:
            raise PlanError("no output has a gradient, so there is no training step to measure.")
        torch.stack([_loss(t) for t in outputs]).sum().backward()
        if self._optimizer is not None:
            self._optimizer.step()
        self._model.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def fit_to_run(model: nn.Module) -> nn.Module:
    """A copy of a model with small random parameters: denormal or infinite ones would cost time."""
    twin = copy.deepcopy(model)  # a model of full width shares its tensors with the plan's
    with torch.no_grad():
        for p in twin.parameters():
            p.uniform_(-0.05, 0.05, generator=torch.Generator(p.device).manual_seed(0))
    return twin


def seconds_per_step(
    model: nn.Module,
    inputs: ExampleInputs,
    batch_size: int,
    repeats: int = 3,
    optimizer: str = "sgd",
) -> float:
    """Seconds of one training step (forward, backward, optimizer) on this machine: the median of some turns.

    The model's values are not kept: pass a copy.
    """
    return seconds_of_stages([(model, inputs, batch_size)], repeats, optimizer)[0]


def seconds_of_stages(
    stages: Sequence[tuple[nn.Module, ExampleInputs, int]], repeats: int, optimizer: str = "sgd"
) -> list[float]:
    """Seconds of one training step of each stage: (model, example inputs, batch size), the full size last.

    Raises:
        PlanError: a step of a stage fails.
    """
    check_whole("repeats", repeats)
    with contextlib.ExitStack() as around:
        for context in (callers_settings(), fixed_random(), torch.enable_grad()):
            around.enter_context(context)
        steps: list[Step] = []
        for number, (model, inputs, size) in enumerate(stages):
            around.enter_context(untouched(model))
            model.train()
            try:
                steps.append(TrainingStep(model, inputs, size, optimizer))
                steps[-1]()  # the first one warms up
            except PlanError:
                raise
            except (RuntimeError, ValueError, TypeError) as error:  # the user's own code
                raise PlanError(
                    f"a training step of stage {number} with a batch of {size} fails ({error}), so it cannot be "
                    "measured."
                ) from error
        return in_turns(steps, repeats, clock_of(stages[-1][0]))


def in_turns(
    steps: Sequence[Step], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds of each step, all of them taking turns.

    What counts of a turn is the ratio to the last step (the full size): a machine that is busy for a while slows
    all of them. The seconds are the median of the ratios times the median of the last.

    Args:
        steps: what to time; it ran before.
        repeats: number of turns.
        clock: seconds, from anywhere.
    """
    times = turns(steps, repeats, clock)
    full = statistics.median(times[-1])
    return [
        full * statistics.median(a / b for a, b in zip(row, times[-1], strict=True))
        for row in times
    ]


def turns(
    steps: Sequence[Step], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Seconds of each step in each turn, in which all of them are timed; see `in_turns`."""
    counts = [1] * len(steps)
    for i, step in enumerate(steps):
        started = clock()
        step()
        spent = max(clock() - started, 1e-9)
        counts[i] = max(1, min(_MOST, math.ceil(_TURN / spent)))
    times: list[list[float]] = [[] for _ in steps]
    for turn in range(repeats):
        # forth and back, so that none is always the one before another
        for i in range(len(steps)) if turn % 2 else reversed(range(len(steps))):
            started = clock()
            for _ in range(counts[i]):
                steps[i]()
            times[i].append(max(clock() - started, 1e-9) / counts[i])
    return times


def clock_of(model: nn.Module) -> Callable[[], float]:
    """What to time a model's steps by: with one thread on a CPU the processor, as other work does not add to it."""
    is_alone = torch.get_num_threads() == 1 and all(
        p.device.type == "cpu" for p in model.parameters()
    )
    return time.process_time if is_alone else time.perf_counter


def _loss(output: Tensor) -> Tensor:
    if output.is_floating_point() and output.dim() > 1 and output.shape[-1] > 1:
        return output.float().logsumexp(-1).mean()
    return output.float().square().mean()


def _make(name: str, parameters: list[nn.Parameter]) -> torch.optim.Optimizer | None:
    if name == "none" or not parameters:
        return None
    options: dict[str, Any] = {"momentum": 0.9} if name in ("sgd", "lars") else {}
    kind: Callable[..., torch.optim.Optimizer] = OPTIMIZERS[name]
    return kind(parameters, lr=0.0, **options)
