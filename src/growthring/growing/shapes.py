"""Shapes before weights: a model takes on the shapes of the weights that it is about to load, larger or smaller.

Other people's trainers load weights into a module before they tell anybody; so it has to find out from the weights
alone of which stage they are, and where in the module the model stands that grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.hooks import RemovableHandle

from growthring.core.axes import layout
from growthring.core.widen import formatted, old_part
from growthring.errors import InputError
from growthring.graph.computed import refresh
from growthring.graph.resize import named_tensors
from growthring.graph.restore import set_data
from growthring.growing.module import GrowingModule
from growthring.growing.transaction import all_or_nothing
from growthring.methods.base import Step
from growthring.planning.plan import Plan


def stage_of(tensors: Mapping[str, torch.Tensor], plan: Plan, prefix: str = "") -> int | None:
    """The stage whose shapes tensors have, of a module or a state_dict.

    Args:
        tensors: by name.
        plan: whose stages they are.
        prefix: of the names, before those that the plan's model has.

    Returns:
        None where none of the plan's weights are among them.

    Raises:
        InputError: the plan has no such stage.

    >>> import growthring as gr
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = gr.plan(net, torch.ones(1, 4), stages=2)
    >>> stage_of(plan.build_seed().state_dict(), plan), stage_of(net.state_dict(), plan)
    (0, 1)
    """
    specs = plan.groups.specs
    held = {n: tuple(tensors[f"{prefix}{n}"].shape) for n in specs if f"{prefix}{n}" in tensors}
    if not held:
        return None
    for stage, widths in enumerate(plan.stage_widths):
        if all(shape == specs[name].shape(widths) for name, shape in held.items()):
            return stage
    first = plan.stage_widths[0]
    name = next(name for name, shape in held.items() if shape != specs[name].shape(first))
    planned = [specs[name].shape(widths) for widths in plan.stage_widths]
    raise InputError(
        f"the weights have the shapes of no stage of the plan: '{prefix}{name}' is {held[name]}, in the plan it is "
        f"{', '.join(map(str, dict.fromkeys(planned)))}. Load them with the plan that they were saved with."
    )


def take_shapes(module: nn.Module, plan: Plan, stage: int) -> None:
    """Gives a module the shapes and sizes of a stage; what its tensors hold is for the weights to say.

    Args:
        module: at any stage of the plan; nothing of it fades in afterwards.
        plan: that it follows.
        stage: earlier or later than its own.

    >>> import growthring as gr
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = gr.plan(net, torch.ones(1, 4), stages=2)
    >>> take_shapes(net, plan, 0)
    >>> net[0].out_features
    4
    """
    at = stage_of(named_tensors(module), plan)
    if at is None or at == stage:
        return
    growing = GrowingModule(module, plan)
    step = Step(plan, plan.stage_widths[at], plan.stage_widths[stage], "off")

    def change() -> None:
        growing.fades.finish()
        if stage > at:
            growing.enter(step)
            growing.fades.finish()  # what fades is for a saved state to say
        else:
            _leave(growing, step)

    all_or_nothing([module, growing.fades], change, lambda: None)


def _leave(growing: GrowingModule, step: Step) -> None:
    """The way back: what is cut off was another stage's."""
    for name, tensor in growing.tensors.items():
        spec = step.plan.groups.specs.get(name)
        axes = () if spec is None else spec.axes
        part = old_part(tensor.detach(), [layout(axis, step.after, step.before) for axis in axes])
        if part.shape != tensor.shape:
            tensor.grad = None
            set_data(tensor, formatted(part, tensor))
    growing.follow(step)
    refresh(growing.module)


def shapes_before_weights(
    root: nn.Module, plan: Plan, find: Callable[[nn.Module], Mapping[str, nn.Module]]
) -> RemovableHandle:
    """Lets models within a module take on the shapes of whatever weights that loads.

    Args:
        root: whose `load_state_dict` will be called; copies of it do the same.
        plan: of the models.
        find: the models within `root`, or a copy of it, by their paths: see `models_in`.

    Returns:
        What ends it.

    >>> import growthring as gr
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = gr.plan(net, torch.ones(1, 4), stages=2)
    >>> seed = plan.build_seed()
    >>> with shapes_before_weights(seed, plan, lambda root: {"": root}):
    ...     seed.load_state_dict(net.state_dict())
    <All keys matched successfully>
    """

    def hook(module: nn.Module, weights: Mapping[str, Any], prefix: str, *_: Any) -> None:
        take_saved_shapes(module, plan, find, weights, prefix)

    return root.register_load_state_dict_pre_hook(hook)


def take_saved_shapes(
    root: nn.Module,
    plan: Plan,
    find: Callable[[nn.Module], Mapping[str, nn.Module]],
    weights: Mapping[str, Any],
    prefix: str = "",
) -> None:
    """Gives models within a module the shapes of the weights that it is about to load; others it leaves alone.

    Args:
        root: the module.
        plan: of the models.
        find: the models within it, by their paths.
        weights: a state_dict.
        prefix: of the names in it.
    """
    found = {path: f"{prefix}{path}." if path else prefix for path in find(root)}
    stages = {path: stage_of(weights, plan, start) for path, start in found.items()}
    for path, stage in stages.items():
        if stage is not None:
            take_shapes(root.get_submodule(path), plan, stage)


def models_in(
    root: nn.Module, plan: Plan, name: str | None = None, averages: Sequence[str] = ()
) -> dict[str, nn.Module]:
    """The model that grows within a module, then its averages, by their paths.

    Args:
        root: a module that holds them, or is the model.
        plan: of the model.
        name: of the model; None where only one fits the plan. Those in an `AveragedModel` are averages.
        averages: names of further averages.

    >>> import growthring as gr
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = gr.plan(net, torch.ones(1, 4), stages=2)
    >>> list(models_in(nn.ModuleDict({"net": net, "ema": AveragedModel(net)}), plan))
    ['net', 'ema.module']
    """
    averaging = tuple(
        f"{path}." for path, m in root.named_modules() if isinstance(m, AveragedModel) and path
    )
    fitting = {_plain(path): path for path in _fitting(root, plan)}
    known = [path for path in fitting.values() if path.startswith(averaging)]
    models = [plain for plain, path in fitting.items() if path not in known]
    for each in [*averages] if name is None else [name, *averages]:
        if each not in models:
            there = f" What does: {', '.join(map(repr, models))}." if models else ""
            raise InputError(
                f"'{each}' of the {type(root).__name__} is no module with the shapes of a stage of the plan.{there}"
            )
    free = [plain for plain in models if plain not in averages] if name is None else [name]
    if not free:
        raise InputError(
            f"nothing in the {type(root).__name__} has the shapes of a stage of the plan. Build it around the "
            "seed: self.net = plan.build_seed()."
        )
    if len(free) > 1:
        raise InputError(
            f"the plan fits {len(free)} models in the {type(root).__name__}: {', '.join(map(repr, free))}. Say "
            f"which one grows (module={free[0]!r}), and which are averages of it that grow along "
            f"(averages=[{free[1]!r}])."
        )
    paths = [*(fitting[each] for each in [*free, *averages]), *known]
    return {path: root.get_submodule(path) for path in paths}


def _plain(path: str) -> str:
    """A path as the user knows it: without the layers that torch.compile puts between."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod")


def _fitting(root: nn.Module, plan: Plan) -> Iterator[str]:
    for path, module in root.named_modules():
        tensors = named_tensors(module)
        if not all(name in tensors for name in plan.groups.specs):
            continue
        try:
            stage_of(tensors, plan)
        except InputError:  # another model, with the same names
            continue
        yield path
