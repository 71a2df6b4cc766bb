"""plan: chooses the width of every group, the epochs and the batch size of every stage, within a budget."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from growthring.errors import InputError
from growthring.graph.check import check_finite
from growthring.graph.discover import discover
from growthring.graph.groups import WidthGroups
from growthring.graph.isolation import copied, kept_random, own_settings
from growthring.graph.search import Share
from growthring.graph.trace import ExampleInputs, run_once
from growthring.planning.batches import with_batches
from growthring.planning.budget import within_budget
from growthring.planning.epochs import epochs_of
from growthring.planning.initial import initials_of
from growthring.planning.notes import idle_notes, step_notes, unused_notes
from growthring.planning.options import PlanOptions
from growthring.planning.plan import Plan
from growthring.planning.schedule import check_whole
from growthring.planning.widths import (
    choose_widths,
    explicit_widths,
    fractions_of,
    try_out,
)


@own_settings()
def plan(
    model: nn.Module,
    example_inputs: ExampleInputs,
    *,
    options: PlanOptions | None = None,
    **changes: Any,
) -> Plan:
    """Plans a model's growth: widths, epochs and batch sizes, and what they cost.

    Args:
        model: the full-size model; it is only read.
        example_inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments.
        options: what the plan shall be like; by default the paper's.
        changes: options by name (`stages=5, epochs=30`), in place of those in `options`. `PlanOptions` lists them.

    Returns:
        The plan; `print(plan)` shows it.

    Raises:
        GrowthError: there is no such option, or no such plan; or the model cannot be grown.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> published = plan(net, torch.zeros(1, 4))
    >>> published.widths("0"), published.epochs
    ([4, 4, 6, 6, 8, 10, 12, 14, 16], (8, 9, 11, 13, 16, 19, 23, 28, 33))
    >>> plan(net, torch.zeros(1, 4), options=PlanOptions(stages=3), growth=None).widths("0")
    [4, 8, 16]
    """
    if options is not None and not isinstance(options, PlanOptions):
        raise InputError(
            f"options={options!r:.60} is a {type(options).__name__}, not a PlanOptions. Options by name are "
            "keywords: plan(model, inputs, stages=5)."
        )
    options = (PlanOptions() if options is None else options).changed(**changes)
    first, epochs = fractions_of(options)[0], epochs_of(options)
    with kept_random():  # a factory may draw numbers
        groups = discover(
            model,
            example_inputs,
            options.freeze,
            options.heads,
            options.outputs,
            options.build,
            Share(first, options.round_to),
        )
    check_finite(model)
    run_once(model, example_inputs)
    explicit = explicit_widths(groups, options)
    widths = choose_widths(groups, options, explicit)
    if explicit and options.build is None:
        try_out(model, groups, widths[0], example_inputs)
    chosen = Plan(
        groups,
        widths,
        initials_of(model, groups),
        (),
        copied(example_inputs),
        model,
        options.outputs,
        options.build,
        epochs,
        optimizer=options.optimizer,
        dtypes={n: p.dtype for n, p in model.named_parameters()},
    )
    chosen = with_batches(chosen, options)
    if options.budget is not None:
        chosen = within_budget(chosen, options, explicit, options.budget)
    return chosen.at_same_widths(notes=(*chosen.notes, *_notes(chosen, options, explicit)))


def fixed_plan(model: nn.Module, example_inputs: ExampleInputs, options: PlanOptions) -> Plan:
    """One stage of full size, of any model: the baseline. Nothing is traced.

    >>> import torch
    >>> fixed_plan(nn.Linear(2, 2), torch.zeros(1, 2), PlanOptions(epochs=3)).flops_share
    1.0
    """
    groups = WidthGroups(type(model).__name__, (), {}, (), 0, (), {}, {}, ())
    return Plan(
        groups,
        ({},),
        {},
        (),
        example_inputs,
        model,
        epochs=(check_whole("epochs", options.epochs),),
        batch_sizes=(check_whole("batch_size", options.batch_size),),
        rate_factors=(1.0,),
        optimizer=options.optimizer,
    )


def _notes(plan: Plan, options: PlanOptions, explicit: Collection[str]) -> list[str]:
    """What the groups, the rounding and the widths say about the plan, in words."""
    groups, first = plan.groups, plan.stage_widths[0]
    unused = [n for n, _ in plan.model.named_parameters() if n not in groups.specs]
    return [
        *groups.notes,
        *step_notes(groups, first, options.round_to, options.start, explicit),
        *unused_notes(unused),
        *idle_notes(plan.stage_widths),
    ]
