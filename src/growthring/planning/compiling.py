"""Compiled training steps: how a stage is compiled, what its steps take then, and what compiling takes."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from growthring.errors import PlanError
from growthring.graph.isolation import callers_settings, fixed_random, untouched
from growthring.graph.trace import ExampleInputs
from growthring.planning.programs import drop_programs
from growthring.planning.timing import TrainingStep, clock_of, seconds_of_stages, turns

Backend = str | Callable[..., Any]


def compiled(model: nn.Module, backend: Backend = "inductor") -> Any:
    """A model compiled for batches of one size."""
    options: Any = None
    if backend == "inductor" and all(p.device.type == "cpu" for p in model.parameters()):
        # inductor would choose channels_last, in which oneDNN corrupts memory in thin networks
        options = {"layout_optimization": False}
    return torch.compile(model, dynamic=False, backend=backend, options=options)


@dataclass(frozen=True)
class Compiling:
    """What compiling a stage takes and gives.

    Attributes:
        seconds: of compiling it.
        ratio: of a compiled training step to a plain one.
    """

    seconds: float
    ratio: float

    def saves(self, steps: int, seconds: float) -> float:
        """Seconds that so many steps save, each of which takes `seconds` if it is not compiled.

        >>> Compiling(40.0, 0.75).saves(1000, 0.2)
        10.0
        """
        return steps * seconds * (1 - self.ratio) - self.seconds


def measure_compiling(
    stages: Sequence[tuple[nn.Module, ExampleInputs, int]],
    repeats: int,
    optimizer: str = "sgd",
    backend: Backend = "inductor",
) -> list[Compiling]:
    """Compiles throwaway models of stages (model, example inputs, batch size), and measures their steps.

    Raises:
        PlanError: one cannot be compiled.
    """
    found = []
    with contextlib.ExitStack() as around:
        for context in (callers_settings(), fixed_random(), torch.enable_grad()):
            around.enter_context(context)
        for number, (model, inputs, size) in enumerate(stages):
            around.enter_context(untouched(model))
            model.train()
            plain = TrainingStep(model, inputs, size, optimizer)
            fast = TrainingStep(compiled(model, backend), inputs, size, optimizer)
            plain()
            started = time.perf_counter()
            try:
                fast()
            except Exception as error:  # torch.compile fails in many ways
                line = (str(error).strip().splitlines() or [""])[0]
                raise PlanError(
                    f"stage {number} cannot be compiled ({type(error).__name__}: {line}); measure without compile."
                ) from error
            seconds = time.perf_counter() - started
            slow, quick = turns([plain, fast], repeats, clock_of(model))
            ratio = statistics.median(b / a for a, b in zip(slow, quick, strict=True))
            drop_programs([model])
            found.append(Compiling(seconds, ratio))
    return found


def measured(
    stages: Sequence[tuple[nn.Module, ExampleInputs, int]],
    repeats: int,
    optimizer: str,
    steps: Sequence[int] | None,
) -> tuple[tuple[float, ...], tuple[float, ...] | None]:
    """Seconds of a training step of each stage; and of compiling it, if it is told how many steps there are.

    Raises:
        PlanError: a step cannot be taken or compiled, or there are no steps to repay it.
    """
    if steps is not None and not steps:
        raise PlanError(
            "whether compiling pays depends on how many steps a stage has: plan with total_steps."
        )
    seconds = seconds_of_stages(stages, repeats, optimizer)
    if steps is None:
        return tuple(seconds), None
    return where_it_pays(measure_compiling(stages, repeats, optimizer), steps, seconds)


def where_it_pays(
    found: Sequence[Compiling], steps: Sequence[int], seconds: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of a step of each stage, compiled where its steps repay it; seconds of compiling, 0 elsewhere.

    >>> where_it_pays([Compiling(30.0, 0.5), Compiling(30.0, 0.5)], [100, 1000], [0.1, 0.1])
    ((0.1, 0.05), (0.0, 30.0))
    """
    both = [
        (s * c.ratio, c.seconds) if c.saves(n, s) > 0 else (s, 0.0)
        for c, n, s in zip(found, steps, seconds, strict=True)
    ]
    return tuple(step for step, _ in both), tuple(spent for _, spent in both)


def share_of_seconds(
    examples: Sequence[float], relative: Sequence[float], full: float, spent: Sequence[float] | None
) -> float:
    """Seconds of all stages as a share of fixed-size training, which is compiled if the last stage is.

    Args:
        examples: of each stage; where something is spent on compiling, how many there really are.
        relative: seconds of an example at each stage, as shares of a full-size one.
        full: seconds of that.
        spent: seconds of compiling each stage, if anything was measured.

    >>> share_of_seconds([200, 200], [0.5, 1.0], 0.05, [0.0, 5.0])
    0.8
    """
    grown = sum(n * s for n, s in zip(examples, relative, strict=True))
    if spent is None or not any(spent):
        return grown / sum(examples)
    return (grown * full + sum(spent)) / (sum(examples) * full + spent[-1])
