"""Accord: what the processes that train one model agree on before it grows, and bit for bit afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from growthring.distributed.ranks import Ranks
from growthring.distributed.shards import is_shard
from growthring.graph.resize import named_tensors
from growthring.graph.restore import set_data
from growthring.optim.held import tensors_in
from growthring.planning.plan import Plan


class Accord:
    """Holds several processes to one model; of one process it asks nothing.

    Args:
        ranks: the processes.
        modules: the model, and averages of it.
        optimizers: that step it.
    """

    def __init__(
        self, ranks: Ranks, modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]
    ) -> None:
        self._ranks, self._modules, self._optimizers = ranks, modules, optimizers

    def reach(self, plan: Plan, settings: Mapping[str, Any], when: str) -> Plan:
        """Refuses processes that would not grow the same model in the same way.

        Args:
            plan: of this process.
            settings: what else has to be equal, by names that an error can use.
            when: this is, in words.

        Returns:
            The plan, with the first process's deviations of weights that each has initialised on its own.
        """
        if self._ranks.is_alone:
            return plan
        self._ranks.same({**facts_of(plan, self._modules[0], self._optimizers), **settings})
        self._ranks.same_tensors(self._tensors(buffers=False), when)
        return replace(plan, initial=self._ranks.from_first(lambda: plan.initial))

    def meet(self, place: Mapping[str, Any], generator: torch.Generator) -> None:
        """Before a growth: the same stage, step and weights; statistics and draws become the first process's.

        Args:
            place: where this process is.
            generator: of the growth's random numbers.
        """
        if self._ranks.is_alone:
            return
        self._ranks.same(place)
        self._ranks.same_tensors(self._tensors(buffers=False), "before the growth")
        generator.set_state(self._ranks.from_first(generator.get_state))
        for module in self._modules:
            buffers = dict(module.named_buffers())
            for name, values in self._ranks.broadcast(buffers).items():
                set_data(buffers[name], values)

    def hold(self) -> None:
        """After a growth: everything has the same bits everywhere."""
        if not self._ranks.is_alone:
            self._ranks.same_tensors(self._tensors(), "after the growth")

    def _tensors(self, buffers: bool = True) -> dict[str, Tensor]:
        """Weights, statistics, and what optimizers remember of them, but for shards: nobody else has those."""
        found: dict[str, Tensor] = {}
        for number, module in enumerate(self._modules):
            where = "" if number == 0 else f"average {number}: "
            held = named_tensors(module) if buffers else dict(module.named_parameters())
            found |= {f"{where}{name}": tensor for name, tensor in held.items()}
        names = {id(p): name for name, p in self._modules[0].named_parameters()}
        for optimizer in self._optimizers:
            kind = type(optimizer).__name__
            for parameter, state in optimizer.state.items():
                name = names.get(id(parameter), "a parameter of its own")
                for key, value in state.items():
                    for place, tensor in enumerate(tensors_in(value)):
                        found[f"{kind}'s {key} ({place}) of {name}"] = tensor
        return {name: tensor for name, tensor in found.items() if not is_shard(tensor)}


def facts_of(plan: Plan, model: nn.Module, optimizers: Iterable[Optimizer]) -> dict[str, Any]:
    """What a plan, a model and optimizers are, by names that an error can use.

    >>> import torch, growthring as gr
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> facts_of(gr.plan(net, torch.ones(1, 4), stages=2), net, [])["the widths of '0'"]
    [4, 8]
    """
    tensors = {n: (tuple(t.shape), t.dtype) for n, t in named_tensors(model).items()}
    return {
        "the model's class": f"{type(model).__module__}.{type(model).__qualname__}",
        "the model's tensors": len(tensors),
        **{f"the shape and type of '{name}'": kind for name, kind in tensors.items()},
        "the plan's stages": plan.num_stages,
        **{f"the widths of '{group.name}'": plan.widths(group.name) for group in plan.groups},
        "the plan's steps": plan.stage_steps,
        "the plan's preset": plan.preset,
        "the optimizers": [type(optimizer).__name__ for optimizer in optimizers],
    }
