"""Trials: the inputs and modes in which a growth is looked at, and how large a change rounding explains."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from growthring.distributed.fullyshard import mesh_of
from growthring.distributed.publicly import lowered
from growthring.distributed.shards import ranks_over
from growthring.errors import GrowthError, RanksError
from growthring.graph.arithmetic import Arithmetic
from growthring.graph.discover import UNTRACED
from growthring.graph.fresh import batch_size, fresh_inputs, resized
from growthring.graph.groups import WidthGroups
from growthring.graph.isolation import NO_MEMORY, untouched
from growthring.graph.snapshot import Snapshot
from growthring.graph.trace import ExampleInputs
from growthring.growing.verify import Outputs, Verification, outputs_of
from growthring.planning.plan import Plan

# A change below so many units in the last place is rounding in any model. In 64 bits there is room: what
# is wrong changes outputs by far more, and deep networks need not be run again to see how they round.
_FEW = 64
_FEW_LIFTED = 1e5
# Rounding errors that are drawn at random are this much smaller than the worst that a sum can do.
_SAFETY = 64
_LARGEST = 0.05
# Units in the last place that deep networks may lose; where rounding cannot be measured.
_UNKNOWN = 4e4


@dataclass(frozen=True)
class Trial:
    """One pass: its inputs and the mode."""

    inputs: ExampleInputs
    training: bool


class Trials:
    """The passes that growths of a model are measured on: found once, and again if it was moved or cast."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._found: tuple[list[Trial], list[str]] = [], []
        self._kind: object = None

    def find(self, model: nn.Module) -> tuple[list[Trial], list[str]]:
        """The passes, and notes."""
        if lowered(model) is not None:
            return [], [
                f"outputs were not compared: the model computes in {lowered(model)} (MixedPrecisionPolicy), in "
                "which rounding hides what they would show"
            ]
        kind = {(p.device, p.dtype) for p in model.parameters()}
        if self._kind != kind:
            inputs = self._plan.inputs_for(model)
            mesh = mesh_of(model)
            if mesh is not None:  # passes are meetings: all have to take the same ones
                inputs = ranks_over(mesh).from_first(lambda: inputs)
            self._found, self._kind = make_trials(model, inputs, self._plan.outputs), kind
        return self._found


def make_trials(
    model: nn.Module,
    inputs: ExampleInputs,
    outputs: Sequence[str] | None,
    arithmetic: Arithmetic | None = None,
) -> tuple[list[Trial], list[str]]:
    """The passes that a model takes: the example inputs and fresh ones, in both modes; and notes.

    Args:
        model: is run on each of them; afterwards it is as it was.
        inputs: the example.
        outputs: the named parts of the output that count.
        arithmetic: how it computes.
    """
    how = arithmetic or Arithmetic()
    with untouched(model) as kept:

        def takes(tried: ExampleInputs, training: bool = False) -> bool:
            return runs(model, tried, outputs, training, how, kept)

        fresh = fresh_inputs(inputs, torch.Generator().manual_seed(0), takes)
        result = [Trial(inputs, False), Trial(fresh, False)]
        # statistics over a batch of one fail
        example = inputs if batch_size(inputs) != 1 or takes(inputs, True) else resized(inputs, 2)
        result += [Trial(tried, True) for tried in (example, fresh) if takes(tried, True)]
    if any(trial.training for trial in result):
        return result, []
    return result, ["train mode was not looked at: it does not take the example inputs"]


def runs(
    model: nn.Module,
    inputs: ExampleInputs,
    outputs: Sequence[str] | None,
    training: bool,
    arithmetic: Arithmetic,
    kept: Snapshot | None = None,
) -> bool:
    """Whether a model's own code runs on these inputs in this mode, and gives numbers."""
    try:
        returned = outputs_of(model, inputs, outputs, training, arithmetic, kept).returned
    except (GrowthError, *NO_MEMORY):
        raise
    except Exception:  # the model's own code may raise anything
        return False
    return not any(bool(torch.isnan(t).any()) for t in returned if t.is_floating_point())


def run(
    model: nn.Module,
    trials: Sequence[Trial],
    outputs: Sequence[str] | None,
    arithmetic: Arithmetic | None = None,
) -> list[Outputs]:
    """What the model gives in each trial."""
    how = arithmetic or Arithmetic()
    with untouched(model) if trials else contextlib.nullcontext() as kept:
        return [outputs_of(model, t.inputs, outputs, t.training, how, kept) for t in trials]


def worst(
    trials: Sequence[Trial],
    before: Sequence[Outputs],
    after: Sequence[Outputs],
    training: bool,
    leading: bool = False,
) -> Verification | None:
    """The largest change among the trials of one mode; None if there are none.

    Args:
        trials: what was run.
        before: what the model gave.
        after: what it gives now.
        training: which mode.
        leading: whether outputs may have gained classes, see `Outputs.change_to`.
    """
    changes = [
        a.change_to(b, leading)
        for trial, a, b in zip(trials, before, after, strict=True)
        if trial.training is training
    ]
    return max(changes, key=lambda change: change.relative) if changes else None


def explanation(groups: WidthGroups, training: bool) -> str:
    """Why outputs may have changed that should not have, as the end of a sentence, and what to do."""
    untraced = next((note for note in groups.notes if note.startswith(UNTRACED)), None)
    if training and untraced is not None:
        return f", and {untraced}"
    return (
        ", so some layer does not follow its rule. Please report the model, and freeze the layers concerned "
        "meanwhile (gr.plan(..., freeze=[...]))."
    )


def rounding_limit(
    model: nn.Module,
    trials: Sequence[Trial],
    outputs: Sequence[str] | None,
    relative: float,
    lifted: bool = False,
) -> float:
    """The largest change of the outputs that rounding explains.

    A few units in the last place always; more only if the model, run with random rounding errors, shows
    that it amplifies them.

    Args:
        model: one of the two models that were compared, the wider one.
        trials: what they were compared on.
        outputs: the named parts of the output that count.
        relative: the change in question: if it is small enough nothing is run.
        lifted: whether they ran in 64 bits.
    """
    types = {p.dtype for p in model.parameters() if p.is_floating_point()} or {torch.float32}
    eps = max(torch.finfo(t).eps for t in types)
    limit = min((_FEW_LIFTED if lifted else _FEW) * eps, _LARGEST)
    if relative <= limit:
        return limit
    try:
        plain = run(model, trials, outputs, Arithmetic(lifted=lifted))
        disturbed = run(model, trials, outputs, Arithmetic(lifted=lifted, rounded=0))
    except (RanksError, *NO_MEMORY):
        raise
    except Exception:  # code that runs with no other arithmetic than its own
        return min(_UNKNOWN * eps, _LARGEST)
    errors = [a.change_to(b).relative for a, b in zip(plain, disturbed, strict=True)]
    return max(limit, min(_SAFETY * max(errors, default=0.0), _LARGEST))
