"""Body: a module whose tensors, gradients, attributes and fading norms grow together.

The model is one; an average of it (EMA, SWA) is another that takes the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from growthring.core.axes import Layout
from growthring.core.widen import formatted, widen_constant
from growthring.fading import Fades
from growthring.graph.follow import adopt_attributes, follow_attributes
from growthring.graph.skeleton import named_tensors, set_data
from growthring.methods.base import Step
from growthring.plan import Plan, call_build

Undo = list[Callable[[], None]]


class Body:
    """A module that follows a plan.

    Args:
        module: has the shapes of some stage of the plan.
        plan: what it grows to.
    """

    def __init__(self, module: nn.Module, plan: Plan) -> None:
        self.module, self.plan = module, plan
        self.fades = Fades(module, plan.groups.norms)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name."""
        return named_tensors(self.module)

    def install(
        self,
        step: Step,
        grown: dict[str, torch.Tensor],
        factors: Mapping[str, float | torch.Tensor],
    ) -> Undo:
        """Puts grown tensors, attributes and fades in place; returns what undoes it.

        Gradients that are being accumulated grow along: a weight that was multiplied by c and computes
        the same function has 1/c of the gradient, and new entries have none yet. `grown` is updated where
        a tensor takes on the memory format of the one before.
        """
        undo: Undo = []
        tensors = self.tensors
        try:
            for name in grown:
                tensor = tensors[name]
                new = grown[name] = formatted(grown[name], tensor)
                layouts = step.layouts(step.plan.groups.specs[name].axes)
                undo.append(_setter(tensor, tensor.data, tensor.grad))
                gradient = tensor.grad
                tensor.grad = None
                set_data(tensor, new)
                if gradient is not None:
                    tensor.grad = _widen_gradient(gradient, layouts, factors.get(name, 1.0))
            undo += self._follow(step)
            undo += self.fades.extend(step.plan.groups.statistics, step.before, step.after)
        except BaseException:
            undo_all(undo)
            raise
        return undo

    def _follow(self, step: Step) -> Undo:
        plan = self.plan
        if plan.build is None:
            return follow_attributes(self.module, plan.groups.attributes, step.before, step.after)
        old, new = (
            call_build(plan.build, {g.name: widths[g.key] for g in plan.groups.growable})
            for widths in (step.before, step.after)
        )
        return adopt_attributes(self.module, old, new)


def undo_all(actions: Undo) -> None:
    """Takes everything back, the last first."""
    while actions:
        actions.pop()()


def _widen_gradient(
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


def _setter(
    tensor: torch.Tensor, data: torch.Tensor, gradient: torch.Tensor | None
) -> Callable[[], None]:
    def restore() -> None:
        tensor.grad = None
        set_data(tensor, data)
        tensor.grad = gradient

    return restore
