"""A run as it was saved: everything in its folder that can be checked before any of it is used."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor

from growthring.checkpoint import (
    Checkpoint,
    CheckpointError,
    Mark,
    mark_of,
)
from growthring.errors import InputError
from growthring.planning.plan import Plan
from growthring.runs import RunFolder
from growthring.train.config import RunConfig, changes, read_config
from growthring.train.kinds import fits
from growthring.train.state import Totals

_PARTS: dict[str, tuple[type, ...]] = {
    "model": (dict,),
    "optimizer": (dict,),
    "grower": (dict, type(None)),
    "train": (dict,),
    "totals": (dict,),
    "sums": (Tensor,),
    "random": (list,),
}


@dataclass(frozen=True)
class Saved:
    """What a run's folder holds, checked.

    Attributes:
        config: its config.json.
        checkpoint: the newest one that is whole.
        log: how far the log was when it was written; None if it is damaged and to be forgotten.
    """

    config: RunConfig
    checkpoint: Checkpoint
    log: Mark | None


def open_run(
    folder: Path, device: torch.device | str = "cpu", forget_metrics: bool = False
) -> Saved:
    """Reads and checks what a run has saved, without running anything that it names.

    Args:
        folder: of the run.
        device: where tensors go that were on an accelerator.
        forget_metrics: a damaged log is no error.

    Raises:
        InputError: config.json is not as it was written; the field is named.
        CheckpointError: there is no usable checkpoint, the log is damaged, or another process works on the run.
    """
    config, run = read_config(folder), RunFolder(folder)
    with run.lock():  # a run at work would prune what is being read
        checkpoint = run.read_checkpoint(device)
        state = _checked_state(checkpoint)
        if state.get("config") is not None:  # runs of before have none
            differ = changes(state["config"], config.content)
            if differ:
                raise InputError(
                    f"'{run.config_file}' was changed since the run began: {'; '.join(differ[:5])}. Put the "
                    "old values back; other settings need another run."
                )
        log = _log(run.log_file, state, forget_metrics)
    return Saved(config, checkpoint, log)


def totals_of(checkpoint: Checkpoint, plan: Plan) -> Totals:
    """Where the run was, if that is a place in the plan.

    Raises:
        CheckpointError: it is not.
    """
    try:
        totals = Totals(**checkpoint.state["totals"])
    except TypeError as error:
        raise _foreign(checkpoint, f"'totals' does not fit: {error}") from None
    for name, kind in get_type_hints(Totals).items():
        value = getattr(totals, name)
        if not fits(value, kind) or (value is not None and not 0 <= value < math.inf):
            raise _foreign(checkpoint, f"'totals.{name}' is {value!r}")
    unit, counts = plan.lengths.unit or "epochs", plan.lengths.counts
    (done, inside), stage = totals.done(unit), totals.stage
    limit = counts[stage] if stage < plan.num_stages else 0
    is_place = stage <= plan.num_stages and inside <= limit
    if not is_place or done != sum(counts[:stage]) + inside:
        one = unit.removesuffix("s")
        raise _foreign(
            checkpoint,
            f"it is at {one} {done}, the {inside + 1}. of stage {stage}, which the plan with {list(counts)} "
            f"{unit} does not have",
        )
    if totals.step != checkpoint.step:
        raise _foreign(
            checkpoint, f"'totals.step' is {totals.step}, its folder says {checkpoint.step}"
        )
    return totals


def check_growth(checkpoint: Checkpoint, plan: Plan, totals: Totals) -> None:
    """Refuses rings that are not those of the plan: they say how large the optimizer's tables are.

    Raises:
        CheckpointError: they are not.
    """
    grower = checkpoint.state["grower"]
    if grower is None:
        return
    stage = min(totals.stage, plan.num_stages - 1)
    if grower.get("stage", stage) != stage:
        raise _foreign(
            checkpoint, f"the growth is at stage {grower['stage']!r:.60}, the run at {stage}"
        )
    rings = grower.get("rings", {})
    history = rings.get("history") if isinstance(rings, dict) else None
    if not isinstance(history, dict):
        return  # the Grower says what it lacks
    names = {str(g.key): g.name for g in plan.groups}
    for group, widths in history.items():
        planned = [at.get(int(group)) if group.isdigit() else None for at in plan.stage_widths]
        if widths != planned[: stage + 1]:
            name = f"'{names[group]}'" if group in names else "a width"
            raise _foreign(
                checkpoint,
                f"{name} was {widths!r:.60} over the stages, planned is {planned[: stage + 1]}",
            )


def check_plan(config: RunConfig, plan: Plan, folder: Path) -> None:
    """Refuses a plan that is not the one that the run began with.

    Raises:
        InputError: stages, their lengths, batch sizes or widths differ.
    """
    widths = [plan.named_widths(t) for t in range(plan.num_stages)]
    planned = {
        "stages": plan.num_stages,
        "epochs": list(plan.epochs),
        "steps": list(plan.stage_steps),
        "batch_sizes": list(plan.batch_sizes),
        "widths": widths,
    }
    old = {key: config.plan[key] for key in planned if key in config.plan}
    differ = changes(old, {key: planned[key] for key in old}, "plan")
    if differ:
        raise InputError(
            f"'{folder}' was planned otherwise than the recipe is now ({'; '.join(differ[:5])}). The model's code "
            "or config.json was changed: resume the run as it was, or start another."
        )


def how_to_resume(folder: str | Path, source: Mapping[str, Any]) -> str:
    """What to type to go on with a run.

    >>> how_to_resume("runs/a b", {"recipe": "demo"})
    "growthring train --resume 'runs/a b'"
    """
    if "recipe" not in source:
        return "Trainer.resume(), then fit()"
    command = f"growthring train --resume {shlex.quote(str(folder))}"
    recipe = str(source["recipe"])
    return f"{command} --recipe {shlex.quote(recipe)}" if ".py:" in recipe else command


def _checked_state(checkpoint: Checkpoint) -> dict[str, Any]:
    state = checkpoint.state
    if not isinstance(state, dict):
        raise _foreign(checkpoint, f"it holds a {type(state).__name__}")
    for key, kinds in _PARTS.items():
        if key not in state:
            raise _foreign(checkpoint, f"it has no '{key}'")
        if not isinstance(state[key], kinds):
            raise _foreign(checkpoint, f"'{key}' is a {type(state[key]).__name__}")
    sums = state["sums"]
    if sums.shape != (3,) or sums.dtype != torch.float64:
        raise _foreign(checkpoint, f"'sums' is {sums.dtype} of shape {tuple(sums.shape)}")
    _check_optimizer(checkpoint, state["optimizer"].get("state"))
    for name, value in state["model"].items():
        if not isinstance(name, str):
            raise _foreign(checkpoint, f"'model' has the key {name!r}")
        if isinstance(value, Tensor) and value.is_floating_point() and not _finite(value):
            raise _foreign(checkpoint, f"the weight '{name}' is not finite")
    return state


def _check_optimizer(checkpoint: Checkpoint, state: Any) -> None:
    """Refuses entries that are tensors for some parameters and something else for others."""
    if not isinstance(state, dict) or not all(isinstance(e, dict) for e in state.values()):
        raise _foreign(checkpoint, "'optimizer' has no table of states")
    tensors = {
        key for entries in state.values() for key, v in entries.items() if isinstance(v, Tensor)
    }
    for index, entries in state.items():
        for key, value in entries.items():
            if key in tensors and not isinstance(value, Tensor | None):
                kind = type(value).__name__
                raise _foreign(
                    checkpoint, f"'{key}' of parameter {index} is a {kind}, of others a tensor"
                )


def _finite(value: Tensor) -> bool:
    return value.dtype.itemsize < 2 or bool(
        torch.isfinite(value).all()
    )  # float8 has no such function


def _log(path: Path, state: Mapping[str, Any], forget: bool) -> Mark | None:
    """How far the log was; None if it is damaged since and that is to be forgotten."""
    try:
        if "metrics" in state:
            mark = Mark(**state["metrics"])
        else:  # of before: where it ended is all that is known
            mark = mark_of(path, int(state["metrics_position"]))
            mark = dataclasses.replace(mark, size=int(state["metrics_position"]))
        if not all(type(v) is int and v >= 0 for v in dataclasses.astuple(mark)):
            raise TypeError
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(
            f"the checkpoint beside '{path}' does not say how far that was: it is not of a training run."
        ) from None
    try:
        mark.check(path)
    except CheckpointError as error:
        if forget:
            return None
        raise CheckpointError(
            f"{error} Nothing was changed. Put the file back as it was; or go on without its lines with "
            "--forget-metrics (forget_metrics=True), which sets it aside and begins a new one."
        ) from None
    return mark


def _foreign(checkpoint: Checkpoint, what: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint '{checkpoint.path}' is not one of this training run: {what}. Nothing was changed."
    )
