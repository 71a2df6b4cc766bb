"""GrowingModule: a module whose tensors, gradients, attributes and fading norms grow together.

The model is one; an average of it (EMA, SWA) is another that takes the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from growthring.core.axes import Layout
from growthring.core.widen import formatted, widen_constant
from growthring.distributed.fullyshard import refit, settle
from growthring.distributed.publicly import choose
from growthring.distributed.shards import on_whole
from growthring.graph.computed import refresh
from growthring.graph.follow import adopt_attributes, follow_attributes
from growthring.graph.resize import named_tensors
from growthring.graph.restore import set_data
from growthring.growing.fading import Fades
from growthring.methods.base import Step
from growthring.planning.factories import call_build
from growthring.planning.plan import Plan


class GrowingModule:
    """A module that follows a plan.

    Args:
        module: has the shapes of some stage of the plan.
        plan: what it grows to.
    """

    makes_new = False  # whether another module takes its place

    def __init__(self, module: nn.Module, plan: Plan) -> None:
        self.plan = plan
        self._held: dict[str, Any] = {}
        self._hold(module)

    def _hold(self, module: nn.Module) -> None:
        fades = Fades(module, self.plan.groups.statistics)
        self._held |= {"module": module, "fades": fades}

    @property
    def module(self) -> nn.Module:
        """The module itself."""
        module: nn.Module = self._held["module"]
        return module

    @property
    def fades(self) -> Fades:
        """Statistics of it that fade in."""
        fades: Fades = self._held["fades"]
        return fades

    @property
    def roots(self) -> list[Any]:
        """Everything that a growth changes."""
        return [self.module, self.fades, self._held]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name."""
        return named_tensors(self.module)

    def settle(self) -> None:
        """Brings parameters that are shards into the state between two steps."""
        choose(self.module, is_public=False)
        settle(self.module)

    def install(
        self,
        step: Step,
        grown: dict[str, torch.Tensor],
        factors: Mapping[str, float | torch.Tensor],
    ) -> None:
        """Puts grown tensors, attributes and fades in place.

        Gradients that are being accumulated grow along: a weight that was multiplied by c and computes
        the same function has 1/c of the gradient, and new entries have none yet. `grown` is updated where
        a tensor takes on the memory format of the one before.
        """
        tensors = self.tensors
        for name in grown:
            tensor = tensors[name]
            new = grown[name] = formatted(grown[name], tensor)
            layouts = step.layouts(step.plan.groups.specs[name].axes)
            gradient = tensor.grad
            tensor.grad = None
            set_data(tensor, new)
            if gradient is not None:
                tensor.grad = widen_gradient(gradient, layouts, factors.get(name, 1.0))
        refit(self.module)
        refresh(self.module)
        self.follow(step)
        self.fades.extend(step.plan.groups.statistics, step.before, step.after)

    def enter(self, step: Step) -> None:
        """Takes on the shapes of a step; what new entries hold is for a saved state to say."""
        tensors = self.tensors
        grown = {
            name: on_whole(tensors[name].detach(), partial(_padded, step.layouts(spec.axes)))
            for name, spec in self.plan.groups.specs.items()
            if step.changes(spec)
        }
        self.install(step, grown, {})

    def follow(self, step: Step) -> None:
        """Lets attributes that hold sizes follow a step, forwards or backwards."""
        plan = self.plan
        if plan.build is None:
            follow_attributes(self.module, plan.groups.attributes, step.before, step.after)
            return
        old, new = (
            call_build(plan.build, plan.groups.named(widths), self.module)
            for widths in (step.before, step.after)
        )
        adopt_attributes(self.module, old, new)


def _padded(layouts: list[Layout], whole: torch.Tensor) -> torch.Tensor:
    return widen_constant(whole, layouts, 0.0)


def widen_gradient(
    gradient: torch.Tensor, layouts: list[Layout], factor: float | torch.Tensor
) -> torch.Tensor:
    """The gradient of a grown tensor of which `factor` times the old one computes what that did."""
    return on_whole(gradient, partial(_widened, layouts=layouts, factor=factor))


def _widened(
    gradient: torch.Tensor, layouts: list[Layout], factor: float | torch.Tensor
) -> torch.Tensor:
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    if not isinstance(factor, float) or factor != 1.0:
        dense = dense / factor
    if any(lay.grows for lay in layouts):
        dense = formatted(widen_constant(dense, layouts, 0.0), dense)
    if not gradient.is_sparse:
        return dense
    return dense.to_sparse(gradient.sparse_dim())
