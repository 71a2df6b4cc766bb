"""Arrival: a model takes on the shapes of a saved growth, before anybody has weights or an optimizer for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from growthring.growing.matching import check_saved, find_stage
from growthring.growing.module import GrowingModule
from growthring.growing.transaction import all_or_nothing
from growthring.methods import Step
from growthring.planning.plan import Plan


def take_shapes(model: nn.Module, plan: Plan, state: Mapping[str, Any]) -> None:
    """Brings a plain model to the shapes of a saved growth; any error leaves it as it was.

    The weights are to be loaded then. A `Grower` of the model, given the same state, takes up the rest.

    Args:
        model: the seed from `plan.build_seed()`, or a model of an earlier stage than the saved one.
        plan: that the growth follows.
        state: of `Grower.state_dict()`.

    >>> import torch, growthring as gr
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = gr.plan(net, torch.ones(1, 4), stages=3)
    >>> grower, seed = gr.Grower(plan.build_seed(), plan), plan.build_seed()
    >>> report = grower.grow()
    >>> take_shapes(seed, plan, grower.state_dict())
    >>> seed[0].out_features == grower.model[0].out_features
    True
    """
    at = find_stage(model, plan)
    stage = check_saved(state, plan, at)
    step = Step(plan, plan.stage_widths[at], plan.stage_widths[stage], "off")
    module = GrowingModule(model, plan)
    all_or_nothing([model, module.fades], lambda: module.enter(step), lambda: None)
