"""discover_width_groups: a model and example inputs -> its width groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import get_args

from torch import nn

from growthring.core.wording import instances
from growthring.errors import InputError, TraceError, UnsupportedModelError
from growthring.graph.analysis import Analysis, Build, Run
from growthring.graph.check import check_inputs, check_model
from growthring.graph.choosing import Heads, factor_rule
from growthring.graph.fresh import batch_size, resized
from growthring.graph.groups import WidthGroups
from growthring.graph.isolation import own_settings
from growthring.graph.resize import copy_with, named_tensors
from growthring.graph.search import Search
from growthring.graph.sizes import Stages
from growthring.graph.trace import ExampleInputs, Trace, trace

# How a note begins that says why train mode was not looked at.
UNTRACED = "the forward pass in train mode cannot be traced"


@own_settings()
def discover_width_groups(
    model: nn.Module,
    example_inputs: ExampleInputs,
    *,
    freeze: Iterable[str] = (),
    heads: Heads = "auto",
    outputs: Sequence[str] | None = None,
    build: Build | None = None,
) -> WidthGroups:
    """Finds which axes of a model's tensors share a width, and which of those widths can grow.

    The unmodified model is traced; each operator's rule joins axes, and a resized copy is traced to
    settle whether the model's own code follows. Nothing is computed and nothing of the model
    changes.

    Args:
        model: any `nn.Module`.
        example_inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments.
        freeze: names or globs of modules, parameters or groups whose written widths must not grow.
        heads: where an axis is a product (heads × head size, groups × channels) one factor grows:
            "size" the inner one, "count" the outer one; with "both" each of them. "auto" is what a plan does by
            default: the number of heads where it can be halved as often as the default plan halves widths (thin
            heads are slow), elsewhere the larger one that can.
        outputs: of a model output with named parts (a transformers one, say), the parts to keep;
            others, such as hidden states, may grow. By default all of them keep their shape.
        build: `build(widths by group name) -> module`, where attributes cannot make the model's
            code follow.

    Returns:
        The groups, growable ones first.

    Raises:
        GrowthError: the model or inputs cannot be used, or no width can grow.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> groups = discover_width_groups(net, torch.zeros(1, 4))
    >>> [(g.name, g.width, g.grows) for g in groups]
    [('0', 8, True), ('0.in', 4, False), ('2', 2, False)]
    """
    return discover(model, example_inputs, freeze, heads, outputs, build)


def discover(
    model: nn.Module,
    example_inputs: ExampleInputs,
    freeze: Iterable[str],
    heads: Heads,
    outputs: Sequence[str] | None,
    build: Build | None,
    stages: Stages | None = None,
    preset: str = "default",
) -> WidthGroups:
    """The work of `discover_width_groups`, for the stages of a plan; the preset says what "auto" is."""
    check_model(model)
    check_inputs(model, example_inputs)
    if heads not in get_args(Heads):
        raise InputError(f"heads={heads!r} is not one of {', '.join(get_args(Heads))}.")
    patterns = [freeze] if isinstance(freeze, str) else list(freeze)
    example_inputs, traces, modes, notes = _traces(model, example_inputs, outputs)
    classes = stages.classes[-1] if stages is not None and stages.classes else None
    run = Run(example_inputs, modes, outputs, build, classes)
    rule = factor_rule(heads, preset)
    groups = Search(Analysis(model, traces, patterns, rule, run)).run(stages)
    return replace(groups, notes=(*notes, *groups.notes))


def _traces(
    model: nn.Module, inputs: ExampleInputs, outputs: Sequence[str] | None
) -> tuple[ExampleInputs, list[Trace], list[bool], list[str]]:
    """The traces in eval and in train mode (one where both run the same operators).

    A copy that shares the tensors is traced: what its code leaves on itself (caches) is thrown away
    with it.

    Returns:
        The inputs they were made with (a batch of one is doubled if train mode needs that), the traces,
        their modes, and notes.
    """
    with contextlib.suppress(UnsupportedModelError):
        model = copy_with(model, {n: t.detach() for n, t in named_tensors(model).items()})
    first = _watched(model, inputs, outputs, training=False)
    try:
        second = _watched(model, inputs, outputs, training=True)
    except (TraceError, InputError) as error:
        if batch_size(inputs) == 1:  # no statistics over a batch of one
            with contextlib.suppress(TraceError, InputError):
                return _traces(model, resized(inputs, 2), outputs)
        missing = set(dict(model.named_parameters())) - first.used_parameters()
        if missing:
            raise TraceError(
                f"{instances(sorted(missing), 'parameter', ('is', 'are'))} not reached in eval mode, and the "
                f"forward pass in train mode cannot be traced with the example inputs ({error}), so what they are "
                "joined to is not known. Pass inputs that train mode accepts (larger ones, a batch of two or more)."
            ) from error
        note = (
            f"{UNTRACED} with the example inputs ({error}), so only eval mode "
            "was looked at. Pass inputs that train mode accepts (larger ones, a batch of two or more)."
        )
        return inputs, [first], [False], [note]
    if second.signature() == first.signature():
        first.reads.update(second.reads)
        return inputs, [first], [False], []
    return inputs, [first, second], [False, True], []


def _watched(
    model: nn.Module, inputs: ExampleInputs, outputs: Sequence[str] | None, training: bool
) -> Trace:
    try:
        return trace(model, inputs, training, watch=True, outputs=outputs)
    except TraceError:  # perhaps only because its attributes were watched
        return trace(model, inputs, training, outputs=outputs)
