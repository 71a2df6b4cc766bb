"""States: the model and its optimizers as `torch.distributed.checkpoint` saves and loads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from growthring.growing.fading import fades_are_saved
from growthring.optim.held import held_optimizers


@dataclass(frozen=True)
class ModelState:
    """Weights and buffers by name, whatever the model is wrapped in; a `Stateful` of torch.

    Attributes:
        model: the plain module, or one that is cut by `fully_shard`.
        options: a `StateDictOptions`, or None.
    """

    model: nn.Module
    options: Any = None

    def state_dict(self) -> dict[str, Any]:
        """For `dcp.save`, and what `dcp.load` loads into."""
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        with fades_are_saved():  # beside it
            state: dict[str, Any] = get_model_state_dict(self.model, options=self.options)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Puts what was loaded in place."""
        from torch.distributed.checkpoint.state_dict import set_model_state_dict

        set_model_state_dict(self.model, state_dict, options=self.options)


@dataclass(frozen=True)
class OptimizerState:
    """State of optimizers by the names of parameters; a `Stateful` of torch.

    Attributes:
        model: that they step.
        optimizers: all of them.
        options: a `StateDictOptions`, or None.
    """

    model: nn.Module
    optimizers: Sequence[Optimizer]
    options: Any = None

    def state_dict(self) -> dict[str, Any]:
        """For `dcp.save`, and what `dcp.load` loads into."""
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        state: dict[str, Any] = get_optimizer_state_dict(
            self.model, self.optimizers, options=self.options
        )
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Puts what was loaded in place."""
        from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

        set_optimizer_state_dict(self.model, self.optimizers, state_dict, options=self.options)


def states_of(
    model: nn.Module, averages: Sequence[nn.Module], optimizers: Sequence[Optimizer], options: Any
) -> dict[str, Any]:
    """A model, averages of it and its optimizers, by the names that they have in a checkpoint."""
    states: dict[str, Any] = {"model": ModelState(model, options)}
    states |= {f"average{i}": ModelState(each, options) for i, each in enumerate(averages)}
    held = [id(inner) for one in optimizers for inner in held_optimizers(one)]
    outer = [one for one in optimizers if id(one) not in held]  # who drives others saves them
    if outer:
        states["optim"] = OptimizerState(model, outer, options)
    return states
