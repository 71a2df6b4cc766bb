"""The state of a loop: what a checkpoint holds of it, and how a loop takes that up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from growthring.checkpoint import CheckpointError
from growthring.data.randomness import check_shared_random, set_shared_random, shared_random
from growthring.errors import GrowthError
from growthring.growing.fading import fades_are_saved
from growthring.train.choices import choices_of
from growthring.train.loop import Loop
from growthring.train.saved import Saved, check_growth, check_plan, totals_of
from growthring.train.state import Totals, TrainingError


def state_of(loop: Loop) -> dict[str, Any]:
    """All that decides how a loop goes on."""
    with fades_are_saved():  # by the grower
        weights = loop.model.state_dict()
    own = loop.processes.gathered(loop.processes.draws.states())
    osgd = loop.parts.osgd  # the grower saves it, where there is one
    return {
        "model": weights,
        "optimizer": loop.optimizer.state_dict(),
        "grower": None if loop.grower is None else loop.grower.state_dict(),
        "train": loop.train.state_dict(),
        **({} if osgd is None or loop.grower is not None else {"osgd": osgd.state_dict()}),
        "totals": asdict(loop.totals),
        "sums": loop.sums,
        "compiled": [choice.as_dict() for choice in loop.compilation.choices],
        "random": _random(loop.device),
        "other_random": {key: v for key, v in shared_random().items() if key != "torch"},
        **({} if loop.processes.is_alone else {"own_random": own}),
    }


def take_up(loop: Loop, saved: Saved) -> Totals:
    """Brings a loop to where a run was saved; says what it had to pass over.

    Returns:
        Where that is. The random states are set by `set_random`, just before the next step.

    Raises:
        InputError: the plan is another one.
        CheckpointError: the state is not of this model, or not whole.
    """
    config, checkpoint = saved.config, saved.checkpoint
    check_plan(config, loop.plan, checkpoint.path.parents[1])
    for path, reason in checkpoint.skipped:
        loop.progress.say(f"checkpoint {path.name} cannot be used ({reason}); using the one before")
    began, now = config.versions.get("torch", torch.__version__), torch.__version__
    if began != now:
        loop.progress.say(
            f"the run began with torch {began}, this is {now}: it goes on, but not bit for bit as it would have"
        )
    totals = totals_of(checkpoint, loop.plan)
    check_growth(checkpoint, loop.plan, totals)
    try:
        loop.parts.enter_data(totals.stage)
        _load(loop, checkpoint.state)
    except GrowthError:
        raise
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise CheckpointError(
            f"the checkpoint '{checkpoint.path}' does not fit this model: {type(error).__name__}: {error}. Nothing "
            "in the folder was changed."
        ) from error
    return totals


def _load(loop: Loop, state: Mapping[str, Any]) -> None:
    if (loop.grower is None) != (state["grower"] is None):
        raise ValueError("it is of a run that grows, or this one is")
    if loop.grower is not None:
        loop.grower.load_state_dict(state["grower"])
    loop.model.load_state_dict(state["model"])
    loop.optimizer.load_state_dict(state["optimizer"])
    if loop.parts.osgd is not None and loop.grower is None:
        loop.parts.osgd.load_state_dict(state["osgd"])
    loop.train.load_state_dict(state["train"])
    torch.Generator().set_state(state["random"][0])  # refuses what is none, before it is used
    check_shared_random(state.get("other_random", {}))  # runs of before have none
    for own in state.get("own_random", ()):
        check_shared_random({key: v for key, v in own.items() if key != "cuda"})
    loop.compilation.choices = choices_of(state.get("compiled", []), loop.plan.num_stages)
    loop.sums = state["sums"].cpu()


def check_finite_weights(loop: Loop, kept: str) -> None:
    """Weights that are not finite must not replace a checkpoint of ones that are."""
    bad = [n for n, p in loop.model.named_parameters() if not bool(torch.isfinite(p).all())]
    if bad:
        raise TrainingError(
            f"'{bad[0]}' is not finite after step {loop.totals.step}, stage {loop.totals.stage}; {kept}. Try a "
            "smaller lr, warmup_steps or clip_norm."
        )


def _random(device: torch.device) -> list[Tensor]:
    """State of torch's own generators, which dropout draws from."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def set_random(state: Mapping[str, Any], device: torch.device) -> None:
    """Gives the generators that everybody shares the states of a checkpoint."""
    states = state["random"]
    set_shared_random({"torch": states[0], **state.get("other_random", {})})
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
