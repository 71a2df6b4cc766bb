"""torch.compile in a training that grows: a program for each stage, all of them made before the first step.

Inductor keeps on disk what it made of a graph. So a throwaway model of each stage's widths is compiled ahead, and
when the stage comes its own model finds the result there: 3 seconds instead of 40 to 90 for a small GPT on a CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from growthring.graph.isolation import kept_random
from growthring.graph.results import output_tensors
from growthring.growing.grower import Grower
from growthring.planning.costs import repeated
from growthring.planning.plan import Plan
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
    """

    def __init__(
        self,
        model: nn.Module,
        batch_size: int,
        grower: Grower | None = None,
        backend: str | Callable[..., Any] = "inductor",
    ) -> None:
        torch.compiler.reset()  # else all stages share one limit of recompilations
        self._model, self._size, self._grower = model, batch_size, grower
        options: Any = None
        if backend == "inductor" and all(p.device.type == "cpu" for p in model.parameters()):
            # inductor would choose channels_last, in which oneDNN corrupts memory in thin networks
            options = {"layout_optimization": False}
        self._compiled = torch.compile(model, dynamic=False, backend=backend, options=options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of the model."""
        tensors = (t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
        size = next((len(t) for t in tensors if t.dim()), self._size)
        is_fading = self._grower is not None and bool(self._grower.fading_norms)
        run = self._model if is_fading or size != self._size else self._compiled
        return run(*args, **kwargs)


def keeps_compiled() -> bool:
    """Whether what inductor makes is kept on disk, so that making it ahead is of use."""
    from torch._inductor import config

    return bool(config.fx_graph_cache) and not bool(config.force_disable_caches)


def compile_ahead(
    plan: Plan,
    first: int,
    device: torch.device,
    precision: Precision,
    backend: str | Callable[..., Any] = "inductor",
) -> list[str]:
    """Compiles throwaway models of the stages from `first` on, forward and backward.

    Args:
        plan: the stages.
        first: the stage that comes next.
        device: where they are trained.
        precision: the arithmetic that they run in.
        backend: of `torch.compile`.

    Returns:
        In words, which stages could not be compiled, and why; they are compiled when they come.
    """
    failed = []
    for stage in range(first, plan.num_stages):
        try:
            with kept_random():  # dropout draws, and training shall draw the same
                _compile_stage(plan, stage, device, precision, backend)
        except Exception as error:  # the user's own code, on values that mean nothing
            line = (str(error).strip().splitlines() or [""])[0]
            failed.append(f"stage {stage} cannot be compiled ahead: {type(error).__name__}: {line}")
    torch.compiler.reset()
    return failed


def _compile_stage(
    plan: Plan,
    stage: int,
    device: torch.device,
    precision: Precision,
    backend: str | Callable[..., Any],
) -> None:
    twin = fit_to_run(plan.empty_model(stage)).to(device).train()
    size = plan.batch_sizes[stage]
    args, kwargs = repeated(plan.inputs_for(twin), size)
    forward = CompiledStage(twin, size, backend=backend)
    with precision():
        outputs = output_tensors(forward(*args, **kwargs))
    torch.stack([t.float().mean() for t in outputs if t.requires_grad]).sum().backward()
