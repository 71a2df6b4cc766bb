"""Twins of a model to try things on: the model itself is never touched."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from growthring.core.widen import widen_constant
from growthring.graph.follow import follow_attributes
from growthring.graph.resize import copy_with, named_tensors
from growthring.methods.base import Job, Step
from growthring.methods.rescale import constant_of
from growthring.planning.factories import built
from growthring.planning.plan import Plan


def searching_copy(model: nn.Module) -> nn.Module:
    """A copy of the model that shares its parameters, in eval mode and without gradients of its own.

    Buffers are copied: a forward pass may count its calls in one.
    """
    tensors = {n: p.detach() for n, p in model.named_parameters()}
    return copy_with(model, tensors).eval().requires_grad_(False)


def widened_copy(job: Job, step: Step, given: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model at the widths after a step, in eval mode and without gradients.

    Args:
        job: has the model.
        step: from the model's widths to the twin's.
        given: tensors at the widths of the twin; others get the constants that new entries start with.
    """
    plan, tensors = job.step.plan, {}
    for name, tensor in named_tensors(job.model).items():
        spec = plan.groups.specs.get(name)
        if name in given:
            tensors[name] = given[name]
        elif spec is not None and step.changes(spec):
            constant = constant_of(step, spec) or 0.0
            tensors[name] = widen_constant(tensor.detach(), step.layouts(spec.axes), constant)
        else:
            tensors[name] = tensor.detach().clone()
    if plan.build is None:
        twin = copy_with(job.model, tensors)
        follow_attributes(twin, plan.groups.attributes, step.before, step.after)
    else:
        twin = built(plan.build, plan.groups.named(step.after), job.model, tensors)
    return twin.eval().requires_grad_(False)


def present_step(plan: Plan, model: nn.Module) -> Step | None:
    """The next growth of a model in which a width grows; None if there is none."""
    tensors, widths = named_tensors(model), plan.stage_widths
    for stage, now in enumerate(widths[:-1]):
        fits = all(tuple(tensors[n].shape) == s.shape(now) for n, s in plan.groups.specs.items())
        step = Step(plan, now, widths[stage + 1], "off")
        if fits and step.growing:
            return step
    return None
