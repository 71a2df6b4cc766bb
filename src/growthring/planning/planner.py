"""plan: chooses the width of every group, the epochs and the batch size of every stage, within a budget."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from growthring.errors import InputError, PlanError
from growthring.graph.check import check_finite, check_model
from growthring.graph.discover import discover
from growthring.graph.groups import WidthGroups
from growthring.graph.isolation import copied, kept_random, own_settings
from growthring.graph.sizes import Stages
from growthring.graph.trace import ExampleInputs, run_once
from growthring.planning.batches import lasting, with_batches
from growthring.planning.budget import within_budget
from growthring.planning.initial import initials_of
from growthring.planning.layouts import layout_notes
from growthring.planning.lengths import fractions_of, length_notes, lengths_of
from growthring.planning.notes import factor_notes, idle_notes, step_notes, unused_notes
from growthring.planning.options import PlanOptions
from growthring.planning.plan import Plan
from growthring.planning.schedule import check_whole
from growthring.planning.stated import Deviations, check_deviations, stated_initials
from growthring.planning.widths import (
    choose_widths,
    distinct_stages,
    explicit_widths,
    try_out,
)


@own_settings()
def plan(
    model: nn.Module,
    example_inputs: ExampleInputs,
    *,
    options: PlanOptions | None = None,
    deviations: Deviations | None = None,
    **changes: Any,
) -> Plan:
    """Plans a model's growth: widths, lengths and batch sizes of stages, and what they cost.

    Args:
        model: the full-size model; it is only read.
        example_inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments.
        options: what the plan shall be like; by default what did best in our trials.
        deviations: of a model on the meta device (one that fits into no memory): the standard deviations that its
            initialiser gives to its parameters at full size, as a number for all weights, a mapping from names or
            globs to numbers, or a function of name and parameter; 0 for what begins with zeros, as biases do of
            which nothing is said. Gains of norms begin with 1.
        changes: options by name (`total_steps=10_000`, `epochs=30`, `stages=5`, `preset="paper"`), in place of
            those in `options`. `PlanOptions` lists them.

    Returns:
        The plan; `print(plan)` shows it.

    Raises:
        GrowthError: there is no such option, or no such plan; or the model cannot be grown.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> ours = plan(net, torch.zeros(1, 4), total_steps=1000)
    >>> ours.widths("0"), ours.stage_steps
    ([8, 16], (700, 300))
    >>> published = plan(net, torch.zeros(1, 4), preset="paper")
    >>> published.widths("0"), published.epochs
    ([4, 4, 6, 6, 8, 10, 12, 14, 16], (8, 9, 11, 13, 16, 19, 23, 28, 33))
    """
    if options is not None and not isinstance(options, PlanOptions):
        raise InputError(
            f"options={options!r:.60} is a {type(options).__name__}, not a PlanOptions. Options by name are "
            "keywords: plan(model, inputs, stages=5)."
        )
    options = (PlanOptions() if options is None else options).changed(**changes)
    fractions = fractions_of(options)
    lengths_of(options, fractions)  # a run that is too short is refused before anything is traced
    check_model(model)
    check_deviations(model, deviations)
    given = example_inputs
    if deviations is not None:  # nothing is computed, on whatever device the inputs are
        example_inputs = pytree.tree_map_only(torch.Tensor, _to_meta, example_inputs)
    with kept_random():  # a factory may draw numbers
        groups = discover(
            model,
            example_inputs,
            options.freeze,
            options.heads,
            options.outputs,
            options.build,
            Stages(tuple(fractions), options.round_to, tuple(options.classes or ())),
            options.preset,
        )
    if deviations is None:
        check_finite(model)
        run_once(model, example_inputs)
        initial = initials_of(model, groups)
    else:
        initial = stated_initials(model, groups, deviations)
    explicit = explicit_widths(groups, options, len(fractions))
    _check_heads(groups, explicit)
    widths = choose_widths(groups, options, explicit, fractions)
    if options.asked_stages is None:
        kept = distinct_stages(widths)
        widths, fractions = tuple(widths[t] for t in kept), [fractions[t] for t in kept]
    if explicit and options.build is None:
        try_out(model, groups, widths[0], example_inputs)
    lengths = lengths_of(options, fractions)
    chosen = Plan(
        groups,
        widths,
        initial,
        (),
        copied(given),
        model,
        options.outputs,
        options.build,
        optimizer=options.optimizer,
        dtypes={n: p.dtype for n, p in model.named_parameters()},
        preset=options.preset,
    )
    chosen = lasting(with_batches(chosen, options), options, lengths)
    if options.budget is not None:
        chosen = within_budget(chosen, options, explicit, fractions)
    notes = (
        *chosen.notes,
        *length_notes(chosen.lengths, options, fractions),
        *_notes(chosen, options, explicit),
        *layout_notes(chosen),
    )
    return chosen.at_same_widths(notes=notes)


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("meta").requires_grad_(tensor.requires_grad)


def _check_heads(groups: WidthGroups, explicit: Mapping[str, Sequence[int]]) -> None:
    """Refuses numbers of heads that shall grow and cannot, unless their widths were given."""
    stuck = [g for g in groups.growable if g.key in groups.stuck and g.name not in explicit]
    if stuck:
        raise PlanError(
            f"heads='count': '{stuck[0].name}' has {stuck[0].width} heads, and two are the fewest: heads grow in "
            "pairs. Pass heads='size' or heads='auto' for this model."
        )


def fixed_plan(model: nn.Module, example_inputs: ExampleInputs, options: PlanOptions) -> Plan:
    """One stage of full size, of any model, with all epochs (or steps): the baseline. Nothing is traced.

    On data that grows with the stages it has the stages of a plan with these options, all of full size.

    >>> import torch
    >>> fixed_plan(nn.Linear(2, 2), torch.zeros(1, 2), PlanOptions(epochs=3)).flops_share
    1.0
    """
    groups = WidthGroups(type(model).__name__, (), {}, (), 0, (), {}, {}, ())
    options = options.changed(classes=None)
    stages = 1 if options.stage_examples is None else options.asked_stages or 1
    fixed = options if stages > 1 else options.changed(stages=1, growth_at=None)
    fractions = fractions_of(fixed) if stages > 1 else [1.0]
    plan = Plan(
        groups,
        ({},) * stages,
        {},
        (),
        example_inputs,
        model,
        batch_sizes=(check_whole("batch_size", options.batch_size),) * stages,
        rate_factors=(1.0,) * stages,
        optimizer=options.optimizer,
        preset=options.preset,
    )
    return lasting(plan, fixed, lengths_of(fixed, fractions))


def _notes(plan: Plan, options: PlanOptions, explicit: Collection[str]) -> list[str]:
    """What the groups, the rounding and the widths say about the plan, in words."""
    groups, first = plan.groups, plan.stage_widths[0]
    unused = [n for n, _ in plan.model.named_parameters() if n not in groups.specs]
    return [
        *groups.notes,
        *step_notes(groups, first, options.round_to, options.seed_share, explicit),
        *unused_notes(unused),
        *factor_notes(groups, plan.stage_widths),
        *idle_notes(plan.stage_widths),
    ]
