"""net2net: new units are copies of random old ones, whose readers share the weight (Chen et al. 2016).

    g(j) = j for j < n ;  g(j) ~ Uniform{0 .. n-1} for j >= n ;  c_i = #{j : g(j) = i}
    W1'[j] = W1[g(j)] ; b1'[j] = b1[g(j)] ; norms' gains, biases and statistics indexed by g
    W2'[:, j] = W2[:, g(j)] / c_{g(j)}

Exact without noise; the noise on the copies is what lets them part. Outputs for new classes are no copies: their
rows are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from growthring.core.variance import Mode
from growthring.core.widen import normal
from growthring.distributed.shards import local_of
from growthring.errors import InputError
from growthring.methods.base import Growth, Job, Step
from growthring.methods.copies import CopyGrowth, NewUnits, UnitMap
from growthring.methods.rescale import constant_of, transfer
from growthring.planning.plan import Plan


@dataclass(frozen=True)
class Net2Net:
    """Net2WiderNet on every width group. It has no hyperparameters but the Grower's noise."""

    name: ClassVar[str] = "net2net"
    searches: ClassVar[bool] = False
    mode: ClassVar[Mode] = "off"

    def check(self, plan: Plan, model: nn.Module) -> None:
        """Refuses tensors that are both written and read: their copies would need two divisors."""
        refuse_tied(self.name, plan)

    def grow(self, job: Job) -> Growth:
        """Draws one map per group."""
        step, sources = job.step, {}
        classes = step.classes
        for group in step.growing:
            if group in classes:  # a copy of a class would be no other class
                sources[group] = torch.arange(step.after[group])
                continue
            width = step.before[group]
            drawn = torch.randint(
                width,
                (step.after[group] - width,),
                generator=job.generator,
                device=job.generator.device,
            )
            sources[group] = torch.cat([torch.arange(width), drawn.cpu()])
        new = _new_classes(job) if classes else None
        return CopyGrowth(step, transfer(step, job.tensors), UnitMap(sources), candidates=new)


def _new_classes(job: Job) -> NewUnits:
    """Rows for the classes that come, drawn for the widths before; what reads copies is shared in them as well."""
    step = job.step
    widths = {**step.before, **{group: step.after[group] for group in step.classes}}
    adding, tensors = Step(step.plan, step.before, widths, step.mode), dict[str, torch.Tensor]()
    for name, spec in step.plan.groups.specs.items():
        if adding.changes(spec) and constant_of(adding, spec) is None:
            like = local_of(job.tensors[name])
            tensors[name] = normal(spec.shape(widths), adding.std(spec), like, job.generator)
    return NewUnits(widths, tensors)


def refuse_tied(method: str, plan: Plan) -> None:
    """Raises where a tensor that grows is written by one operator and read by another."""
    growing = {g.key for g in plan.groups.growable}
    for name, spec in plan.groups.specs.items():
        if spec.read_and_written and growing & spec.groups():
            raise InputError(
                f"method '{method}' cannot grow this model: '{name}' is tied, so its copies would have to be "
                "divided where it is read and not where it is written. Use method 'paired', or freeze it."
            )


def refuse_classes(method: str, plan: Plan) -> None:
    """Raises where outputs gain classes, for which there is nothing to search: no unit is to be split."""
    if len(set(plan.classes)) > 1:
        raise InputError(
            f"method '{method}' cannot grow this model: its outputs gain classes (classes={plan.classes}), whose "
            "rows are drawn and not searched for. Use method 'paired', 'net2net' or 'random'."
        )
