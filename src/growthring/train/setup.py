"""What a recipe means: its model, plan, data, optimizer and learning rate."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from growthring.data import LoaderBatches
from growthring.errors import InputError
from growthring.methods import GrowthMethod, Paired, make_method
from growthring.optim import OPTIMIZERS
from growthring.planning.plan import Plan
from growthring.planning.planner import fixed_plan, plan
from growthring.streams import GrowingData
from growthring.train.bounds import check_bounds
from growthring.train.choices import mode_of
from growthring.train.growing_data import (
    check_stream,
    expected_shares,
    pass_notes,
    stage_classes,
)
from growthring.train.lr_schedules import LR_SCHEDULES, lr_factor
from growthring.train.recipe import CODE, KINDS, Recipe, change
from growthring.train.tasks import Place, Streams, task_of


def make_model(
    recipe: Recipe, generator: torch.Generator, function: Callable[[], nn.Module] | None = None
) -> nn.Module:
    """The full-size model, with weights that depend on the generator only.

    Args:
        recipe: its model function is called with its options, and with a generator if it takes one.
        generator: one seed is drawn from it.
        function: called instead, without arguments.
    """
    seed = int(torch.randint(2**62, (), generator=generator))
    make: Callable[..., nn.Module] = recipe.model if function is None else function
    if isinstance(make, nn.Module):
        raise InputError(
            f"the model is a {type(make).__name__} that is made already; pass a function that makes it, such as "
            f"lambda: {type(make).__name__}(...), as its weights follow from the recipe's seed."
        )
    options: dict[str, Any] = dict(recipe.model_options) if function is None else {}
    if function is None and "generator" in inspect.signature(make).parameters:
        options["generator"] = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return make(**options)
        except (TypeError, ValueError, RuntimeError) as error:  # the user's own code
            given = {k: v for k, v in options.items() if k != "generator"}
            raise InputError(
                f"the model cannot be made with {given}: {type(error).__name__}: {error}"
            ) from error


def make_plan(
    recipe: Recipe,
    model: nn.Module,
    example: Any = None,
    growing: GrowingData | None = None,
) -> Plan:
    """The recipe's plan; of a fixed-size run one stage that takes all epochs, of a small one the seed's.

    On data that grows these two have the stages of the one that grows.

    Args:
        recipe: the settings.
        model: of full size.
        example: inputs of the model; by default the task's.
        growing: the data, where it grows; else what is known of it is what the recipe tells.
    """
    inputs = task_of(recipe).example(recipe) if example is None else example
    examples = expected_shares(recipe) if growing is None else growing.sizes
    options = recipe.plan if examples is None else recipe.plan.changed(stage_examples=examples)
    if examples is not None:
        classes = stage_classes(recipe, options.asked_stages or len(examples), growing)
        options = options if classes is None else options.changed(classes=classes)
    if recipe.fixed:
        return fixed_plan(model, inputs, options)
    grown = plan(model, inputs, options=options)
    notes = (*grown.notes, *late_growth(recipe, grown), *pass_notes(recipe, grown))
    grown = grown.at_same_widths(notes=notes)
    return fixed_plan(grown.build_seed(), inputs, options) if recipe.small else grown


def late_growth(recipe: Recipe, plan: Plan) -> list[str]:
    """A note on a last growth that comes when most of the learning rate is gone."""
    grown_at = 1.0 - plan.shares[-1]
    shape = LR_SCHEDULES.get(recipe.lr_schedule)  # an unknown one is refused elsewhere
    rate = 1.0 if shape is None else shape(grown_at, recipe.lr_decay)
    if plan.num_stages == 1 or rate >= 0.5:
        return []
    return [
        f"the last growth comes at {grown_at:.0%} of the training, where lr_schedule='{recipe.lr_schedule}' has "
        f"fallen to {rate:.0%} of its peak: what is added then can learn little. Grow earlier (grown_at), or let "
        "the rate fall later (lr_schedule='wsd'); see docs/when-it-pays.md."
    ]


def fixed_batches(recipe: Recipe, train: LoaderBatches) -> Recipe:
    """The recipe with the batch size of a loader, whose batches are as it makes them.

    Raises:
        InputError: the recipe asks for batches of other sizes at other stages.
    """
    plan = recipe.plan
    if plan.batch_growth or plan.batch_memory is not None:
        asked = "batch_growth" if plan.batch_growth else "batch_memory"
        raise InputError(
            f"{asked}={getattr(plan, asked)!r} asks for batches of another size at each stage, but those of a "
            f"loader are as it makes them ({train.batch_size} examples). Pass the data set itself as train, of "
            f"which batches of any size are made; or leave {asked} out."
        )
    return change(recipe, {"batch_size": train.batch_size}) if train.has_one_size else recipe


def make_streams(
    recipe: Recipe,
    root: Path | None,
    generator: torch.Generator,
    device: torch.device,
    download: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Streams:
    """The recipe's data as batches; what takes long is said."""
    return task_of(recipe).streams(recipe, generator, Place(root, device, download, say))


def check_data(settings: Mapping[str, Any], root: Path | None, download: bool = False) -> None:
    """Reads the data of a recipe that is known by its settings only, as `Recipe.as_dict` has them, and forgets it.

    Raises:
        GrowthError: there is no such data, or it does not fit the settings.
    """
    if settings.get("task") is not None:  # only its code can read it
        return
    known = {key: value for key, value in settings.items() if key in KINDS and key not in CODE}
    recipe = Recipe(**{"name": "", **known, "model": nn.Identity})
    make_streams(recipe, root, torch.Generator().manual_seed(0), torch.device("cpu"), download)


def make_optimizer(recipe: Recipe, model: nn.Module, total_steps: int) -> torch.optim.Optimizer:
    """The recipe's optimizer over all parameters."""
    name = recipe.plan.optimizer
    if name not in OPTIMIZERS:
        raise InputError(f"optimizer='{name}' is not one of {', '.join(OPTIMIZERS)}.")
    kind: Callable[..., torch.optim.Optimizer] = OPTIMIZERS[name]
    options = {"total_steps": total_steps, **recipe.optimizer_options}
    try:
        return kind(model.parameters(), lr=recipe.lr, **options)
    except (TypeError, ValueError) as error:
        raise InputError(f"the optimizer cannot be made: {error}") from error


def check(recipe: Recipe) -> None:
    """Refuses settings that would fail or do harm in the middle of a run."""
    check_bounds(recipe)
    learning_rate(recipe, 0, 1)
    wrong = {
        "precision": recipe.precision not in ("float32", "bfloat16"),
        "warmup_steps": recipe.warmup_steps < 0,
        "clip_norm": recipe.clip_norm is not None and not recipe.clip_norm > 0,
        "label_smoothing": not 0 <= recipe.label_smoothing <= 1,
        "lr": not recipe.lr >= 0,
        "small": recipe.small and recipe.fixed,
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise InputError(f"{name}={getattr(recipe, name)!r} cannot work.")
    for name in ("narrow_weight_decay", "narrow_augmentation"):
        if not 0 <= getattr(recipe, name) <= 1:
            raise InputError(
                f"{name}={getattr(recipe, name)!r}: a share of the full strength at the seed's width, from 0 to 1."
            )
    mode_of(recipe.compile)
    check_stream(recipe)
    task_of(recipe).options_of(recipe.task_options)
    make_growth_method(recipe)


def make_growth_method(recipe: Recipe) -> GrowthMethod:
    """The recipe's growth method with its hyperparameters."""
    options = dict(recipe.method_options)
    if recipe.method == Paired.name:
        options = {"variance_transfer": recipe.variance_transfer, **options}
    return make_method(recipe.method, options)


def find_device(name: str | torch.device) -> torch.device:
    """A device that is there."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"device '{name}' cannot be used: {first}") from error
    return device


def learning_rate(recipe: Recipe, step: int, total_steps: int) -> float:
    """Rate of a step: a linear rise over warmup_steps, times the recipe's schedule over the whole run.

    >>> from growthring.zoo import mlp8
    >>> learning_rate(Recipe("mine", mlp8, lr=1.0, lr_schedule="cosine"), step=50, total_steps=100)
    0.5
    """
    factor = lr_factor(
        recipe.lr_schedule, step, total_steps, recipe.warmup_steps, decay=recipe.lr_decay
    )
    return round(recipe.lr * factor, 15)
