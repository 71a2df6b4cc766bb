"""Runs whose checkpoints say which step they are of."""

from pathlib import Path

import torch

from growthring.checkpoint import list_checkpoints, read_checkpoint


def state_of(step, size=1000):
    return {"weight": torch.full((size,), float(step)), "step": step, "order": (1, 2)}


def check_whole(run, *steps):
    """The newest checkpoint is of one of these steps, and holds what was written."""
    checkpoint = read_checkpoint(run)
    assert checkpoint.step in steps and not checkpoint.skipped
    assert checkpoint.state["step"] == checkpoint.step
    assert (checkpoint.state["weight"] == checkpoint.step).all()


def steps(run):
    return [step for step, _ in list_checkpoints(run)]


def names(run):
    return sorted(path.name for path in (Path(run) / "checkpoints").iterdir())
