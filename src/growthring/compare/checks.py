"""What can be known to fail before hours are spent: recipes, data, plans, folders."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from growthring.checkpoint import read_json
from growthring.data.batch import Batch
from growthring.errors import GrowthError, InputError
from growthring.methods.base import Loss
from growthring.planning.options import OPTIONS
from growthring.runs.folder import RunFolder
from growthring.runs.values import canonical, mapping
from growthring.train import Recipe
from growthring.train.measure import apply
from growthring.train.recipe import differences
from growthring.train.regularisation import check_augmentation, check_weight_decay
from growthring.train.setup import check, make_model, make_optimizer, make_plan, make_streams
from growthring.train.tasks import task_of

_DATA = (
    "data",
    "task",
    "task_options",
    "num_train",
    "side",
    "shift",
    "mirror",
    "narrow_augmentation",
    "input_shape",
    "batch_size",
)
_PLAN = ("model", "model_options", "input_shape", "fixed", "small", *OPTIONS)


def check_base(recipe: Recipe) -> None:
    """Refuses a recipe that is a contender already.

    >>> from growthring.train.recipes import demo
    >>> check_base(demo())
    """
    for name in ("fixed", "small"):
        if getattr(recipe, name):
            raise InputError(f"the recipe has {name}=True, but that is for the contenders to say.")


def check_recipes(
    recipes: Iterable[tuple[str, Recipe]],
    data: str | Path | None,
    download: bool,
    device: torch.device,
) -> None:
    """Makes model, plan, data and optimizer of each recipe, equal ones once, and forgets them.

    Of different data one step is trained, too: model and data have to fit, and what a process
    allocates once must not count as memory and seconds of whichever run comes first.

    Raises:
        GrowthError: one of them cannot be made; the message names the contender.
    """
    done: set[str] = set()
    root = None if data is None else Path(data)
    for name, recipe in recipes:
        settings = recipe.as_dict()
        seen, planned = (canonical([settings.get(f) for f in fields]) for fields in (_DATA, _PLAN))
        try:
            check(recipe)
            model = make_model(recipe, torch.Generator().manual_seed(0))
            optimizer = make_optimizer(recipe, model, total_steps=1)
            check_weight_decay(recipe, optimizer)
            if seen not in done:
                generator = torch.Generator().manual_seed(0)
                streams = make_streams(recipe, root, generator, device, download)
                check_augmentation(recipe, streams.train)
                task = task_of(recipe)
                task.check(model, task.example(recipe), (streams.train, streams.test))
                loss = task.loss(recipe.label_smoothing)
                _step(model.to(device), optimizer, loss, next(iter(streams.train)))
            if planned not in done:
                make_plan(recipe, model.cpu())
        except GrowthError as error:
            raise type(error)(f"contender '{name}': {error}") from error
        done |= {seen, planned}


def _step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    batch: Batch,
) -> None:
    inputs, targets = batch
    try:
        loss(apply(model.train(), inputs), targets).backward()
        optimizer.step()
    except (RuntimeError, ValueError, IndexError) as error:  # the user's own model
        raise InputError(f"a first step failed: {type(error).__name__}: {error}") from error


def check_run(folder: Path, recipe: Recipe) -> None:
    """Refuses a folder that holds a run with other settings, naming them."""
    run = RunFolder(folder)
    if not run.is_run:
        return
    config = mapping(read_json(run.config_file))
    changed = differences(mapping(config.get("settings")), recipe.as_dict())
    if changed:
        raise InputError(
            f"'{folder}' holds a run with other settings ({'; '.join(changed)}). Move it away, or give the "
            "comparison another folder."
        )


def check_folder(out: Path) -> None:
    """Makes the folder of a comparison; refuses one that cannot be written or is a run itself."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=out, prefix=".try-")
        os.close(descriptor)
        os.unlink(name)
    except OSError as error:
        raise InputError(f"cannot write into '{out}': {error.strerror or error}.") from error
    if RunFolder(out).is_run:
        raise InputError(f"'{out}' holds a run. Give the comparison a folder of its own.")
