"""Parts: what a recipe is made into before it is trained: model, plan, data, optimizer, grower, loss."""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from growthring.data import LoaderBatches
from growthring.data.batch import Batch, Stream
from growthring.data.given import Data, as_stream, examples_of
from growthring.data.stream import BatchStream
from growthring.growing.grower import Grower
from growthring.growing.osgd import DynamicOSGD
from growthring.methods.base import Loss
from growthring.planning.costs import footprint
from growthring.planning.plan import Plan
from growthring.runs.metrics import FORGETTING, Metric, stored
from growthring.streams import GrowingData
from growthring.train.card import Card
from growthring.train.growing_data import enter, growing_data, with_stages
from growthring.train.lengths import num_examples, stage_lengths
from growthring.train.measure import OnDevice
from growthring.train.memory import PeakMemory
from growthring.train.processes import Processes
from growthring.train.recipe import Recipe
from growthring.train.regularisation import Regularisation
from growthring.train.setup import (
    check_data,
    fixed_batches,
    make_growth_method,
    make_model,
    make_optimizer,
    make_plan,
    make_streams,
)
from growthring.train.sharing import check_mean, common_facts
from growthring.train.tasks import Task, task_for, task_of
from growthring.train.trial import check_labels


@dataclass
class Parts:
    """All that a run works with.

    Attributes:
        recipe: the settings.
        device: where it is trained.
        plan: the stages.
        model: what is trained: the seed, or with `recipe.fixed` the full-size model.
        wrapped: what it is trained through: the same, or of several processes what averages their gradients.
        processes: that train it.
        full_model: of the recipe, on the CPU beside the plan's example inputs.
        train, test: batches of (inputs, targets).
        optimizer, loss: of the training.
        task: what it is for.
        test_loss: the loss on the test data.
        grower: None where nothing grows.
        stage_steps: optimizer steps of each stage, as far as the length of the data tells.
        memory: the peak since the model was made.
        regularisation: sets weight decay and augmentation of each stage.
        growing: the data of each stage, where it grows.
        stage_examples: examples of each stage, counted as `stage_steps`.
        osgd: where its recipe asks for it.
    """

    recipe: Recipe
    device: torch.device
    plan: Plan
    model: nn.Module
    wrapped: nn.Module
    processes: Processes
    full_model: nn.Module
    train: Stream
    test: Stream | None
    optimizer: torch.optim.Optimizer
    task: Task
    loss: Loss
    test_loss: Loss
    grower: Grower | None
    stage_steps: tuple[int, ...]
    memory: PeakMemory
    regularisation: Regularisation
    growing: GrowingData | None = None
    stage_examples: tuple[int, ...] = ()
    osgd: DynamicOSGD | None = None

    @property
    def total_steps(self) -> int:
        """Of all stages."""
        return sum(self.stage_steps)

    @property
    def num_examples(self) -> int:
        """Examples that the whole run trains on, as far as the length of the data tells by now."""
        if self.growing is None:
            return num_examples(self.plan, self.train)
        return sum(self.stage_examples)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What the run is judged by: as its task and, where classes are known on growing data, what it forgot."""
        knows_classes = self.growing is not None and self.growing.classes is not None
        return (*self.task.metrics, FORGETTING) if knows_classes else self.task.metrics

    def enter_data(self, stage: int) -> None:
        """Goes on with a stage's data, where that grows."""
        enter(self.growing, self.train, stage)

    def count_costs(self) -> Mapping[str, Any]:
        """What `Plan.as_dict` counts, and the FLOPs of the full-size model."""
        counted = self.plan.as_dict()
        full = counted["flops"][-1]
        if self.recipe.small:
            full = footprint(self.full_model, self.plan.inputs_for(self.full_model)).flops
        return {**counted, "full_flops": full}


def new_config(
    parts: Parts, costs: Mapping[str, Any], card: Card, source: Mapping[str, Any], device: str
) -> dict[str, Any]:
    """What config.json says of a run that begins.

    Args:
        parts: of the run.
        costs: that are counted of its plan.
        card: of its weights.
        source: how its recipe is found again.
        device: where it trains, in words.
    """
    recipe, machine = parts.recipe, f"{platform.machine()} {platform.system()}"
    return {
        "name": recipe.name,
        "fixed": recipe.fixed,
        "seed": recipe.seed,
        "settings": recipe.as_dict(),
        "source": source,
        "plan": costs,
        "card": card.as_dict(),
        "task": parts.task.name,
        "metrics": stored(parts.metrics),
        "machine": f"{machine}, {torch.get_num_threads()} threads, {device}",
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
    }


def assemble(
    recipe: Recipe,
    device: torch.device,
    processes: Processes | None = None,
    *,
    model: Callable[[], nn.Module] | None = None,
    train: Data | GrowingData | None = None,
    test: Data | None = None,
    loss: Loss | None = None,
    data: str | Path | None = None,
    download: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Parts:
    """Makes everything that a recipe names, or takes what is given instead; see `Trainer`.

    Raises:
        GrowthError: something cannot be made, or does not fit the rest.
    """
    processes = processes or Processes(device)
    generator = torch.Generator().manual_seed(recipe.seed)
    if (
        download and train is None and not processes.is_alone
    ):  # all at once would be in each other's way
        root = None if data is None else Path(data)
        processes.from_first(lambda: check_data(recipe.as_dict(), root, download))
    with processes.together():
        parts = _prepared(
            recipe, device, processes, generator, model, train, test, loss, data, download, say
        )
    recipe = parts.recipe
    processes.same(common_facts(recipe, parts.train, parts.stage_steps))
    parts.wrapped = processes.wrapped(parts.model)
    if recipe.osgd is not None:
        anneal: Any = recipe.osgd
        parts.osgd = DynamicOSGD(parts.wrapped, parts.optimizer, anneal=anneal)
    if not (recipe.fixed or recipe.small):
        parts.grower = Grower(
            parts.wrapped,
            parts.plan,
            optimizer=parts.optimizer,
            method=make_growth_method(recipe),
            noise=recipe.noise,
            generator=generator,
            batches=_forks(parts.train, device),
            loss=parts.loss,
            osgd=parts.osgd,
        )
    return parts


def _prepared(
    recipe: Recipe,
    device: torch.device,
    processes: Processes,
    generator: torch.Generator,
    model: Callable[[], nn.Module] | None,
    train: Data | GrowingData | None,
    test: Data | None,
    loss: Loss | None,
    data: str | Path | None,
    download: bool,
    say: Callable[[str], None],
) -> Parts:
    """All that a process makes by itself, without the grower."""
    full = make_model(recipe, generator, model)
    if train is None:
        root = None if data is None else Path(data)
        streams = make_streams(recipe, root, generator, device, download, say)
        batches: BatchStream | LoaderBatches = streams.train
        test = streams.test if test is None else test
        growing = growing_data(recipe, batches)
    else:
        growing = train if isinstance(train, GrowingData) else growing_data(recipe, train)
        given: Any = train if growing is None else growing.whole
        batches = as_stream(given, "train", recipe.batch_size, generator)
    if isinstance(batches, LoaderBatches):
        recipe = fixed_batches(recipe, batches)
        if test is train:  # one stream for both: it knows when testing has ended its pass
            test = batches
    if growing is not None:
        recipe = with_stages(recipe, growing)
    tests = None if test is None else as_stream(test, "test", recipe.batch_size, None)
    is_own = model is not None or train is not None
    task = task_for(None) if is_own and recipe.task is None else task_of(recipe)
    example = examples_of(batches) if is_own else (task.example(recipe), None)
    plan = make_plan(recipe, full, example[0], growing)
    if loss is None and is_own and recipe.task is None:
        check_labels(full, example, (batches, tests))
    elif loss is None:
        task.check(full, example[0], (batches, tests))
    grows = not (recipe.fixed or recipe.small)
    # From here, as reading the data may take more than training; the weights that are there count.
    held = 0 if grows else sum(p.numel() * p.element_size() for p in full.parameters())
    memory = PeakMemory(device, held)
    trained = _trained(plan, grows, device)
    steps, examples = stage_lengths(plan, batches, growing)
    optimizer = make_optimizer(recipe, trained, sum(steps))
    regularisation = Regularisation(recipe, plan, optimizer, batches)
    if loss is not None:
        check_mean(processes, full, batches, loss)
    test_loss = loss or task.test_loss(recipe.label_smoothing)
    loss = loss or task.loss(recipe.label_smoothing)
    for one in dict.fromkeys((loss, test_loss)):  # which may be the same
        if isinstance(one, nn.Module):
            one.to(device)  # weights of classes, say
    return Parts(
        recipe,
        device,
        plan,
        trained,
        trained,
        processes,
        full,
        batches,
        tests,
        optimizer,
        task,
        loss,
        test_loss,
        None,
        steps,
        memory,
        regularisation,
        growing,
        examples,
    )


def _trained(plan: Plan, grows: bool, device: torch.device) -> nn.Module:
    """The seed or the plan's own model, where it is trained.

    The plan's own model stays beside its example inputs, on the CPU: costs are counted on both.
    """
    if grows:
        return plan.build_seed().to(device)
    return (copy.deepcopy(plan.model) if device.type != "cpu" else plan.model).to(device)


def _forks(train: Stream, device: torch.device) -> Callable[[int], Iterable[Batch]]:
    """From a seed to batches of a search, which leave those of training as they are."""
    if device.type == "cpu":
        return train.fork
    return lambda seed: OnDevice(train.fork(seed), device)
