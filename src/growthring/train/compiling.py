"""torch.compile in a training that grows: a program for each stage, all of them made before the first step.

Inductor keeps on disk what it made of a graph. So a throwaway model of each stage's widths is compiled ahead, and
when the stage comes its own model finds the result there: 3 seconds instead of 40 to 90 for a small GPT on a CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from growthring.graph.isolation import kept_random
from growthring.graph.results import output_tensors
from growthring.growing.grower import Grower
from growthring.planning.compiling import Backend, compiled
from growthring.planning.costs import repeated
from growthring.planning.plan import Plan
from growthring.planning.programs import drop_programs
from growthring.planning.timing import fit_to_run

Precision = Callable[[], contextlib.AbstractContextManager[Any]]


class CompiledStage:
    """The forward pass of one stage, compiled for batches of the stage's size.

    Other batches (the last one of an epoch) and steps in which norms fade in run as they are: each would be one
    more program, which takes longer to make than it saves.

    Args:
        model: what is trained.
        batch_size: of the stage.
        grower: of the model, or None where nothing grows.
        backend: of `torch.compile`.

    Attributes:
        has_run: whether a pass was compiled.
    """

    def __init__(
        self,
        model: nn.Module,
        batch_size: int,
        grower: Grower | None = None,
        backend: Backend = "inductor",
    ) -> None:
        drop_programs([model])  # of a stage before: all of them share one limit
        self._model, self._size, self._grower = model, batch_size, grower
        self.has_run = False
        self._compiled = compiled(model, backend)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of the model."""
        tensors = (t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
        size = next((len(t) for t in tensors if t.dim()), self._size)
        is_fading = self._grower is not None and bool(self._grower.fading_norms)
        if is_fading or size != self._size:
            return self._model(*args, **kwargs)
        self.has_run = True
        return self._compiled(*args, **kwargs)


def keeps_compiled() -> bool:
    """Whether what inductor makes is kept on disk, so that making it ahead is of use."""
    from torch._inductor import config

    return bool(config.fx_graph_cache) and not bool(config.force_disable_caches)


def compile_ahead(
    plan: Plan,
    stages: Iterable[int],
    device: torch.device,
    precision: Precision,
    backend: Backend = "inductor",
) -> list[str]:
    """Compiles throwaway models of stages, forward and backward.

    Args:
        plan: of all stages.
        stages: that are compiled.
        device: where they are trained.
        precision: the arithmetic that they run in.
        backend: of `torch.compile`.

    Returns:
        In words, which stages could not be compiled, and why; they are compiled when they come.
    """
    failed = []
    for stage in stages:
        try:
            with kept_random():  # dropout draws, and training shall draw the same
                twin = Twin(plan, stage, device, precision)
                twin.compile(backend)
                twin.drop()
        except Exception as error:  # the user's own code, on values that mean nothing
            failed.append(f"stage {stage} cannot be compiled ahead: {first_line(error)}")
    return failed


def first_line(error: Exception) -> str:
    """What went wrong, in one line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


class Twin:
    """A throwaway model of a stage's widths, and a batch for it.

    Args:
        plan: of all stages.
        stage: one of them.
        device: where it is trained.
        precision: the arithmetic that it runs in.
    """

    def __init__(self, plan: Plan, stage: int, device: torch.device, precision: Precision) -> None:
        self._model = fit_to_run(plan.empty_model(stage)).to(device).train()
        self._size, self._precision = plan.batch_sizes[stage], precision
        self._args, self._kwargs = repeated(plan.inputs_for(self._model), self._size)
        self._compiled: CompiledStage | None = None

    def compile(self, backend: Backend) -> None:
        """Compiles it, forward and backward."""
        self._compiled = CompiledStage(self._model, self._size, backend=backend)
        self.run_compiled()

    def run(self) -> None:
        """A forward and a backward pass, not compiled; waits for them."""
        self._pass(self._model)

    def run_compiled(self) -> None:
        """The same, compiled."""
        assert self._compiled is not None
        self._pass(self._compiled)

    def drop(self) -> None:
        """Forgets its program: the stage's own model finds it on the disk."""
        drop_programs([self._model])

    def _pass(self, forward: Callable[..., Any]) -> None:
        with self._precision():
            outputs = output_tensors(forward(*self._args, **self._kwargs))
        torch.stack([t.float().mean() for t in outputs if t.requires_grad]).sum().backward()
        self._model.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
