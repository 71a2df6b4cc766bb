"""FreshModule: a growth of a sharded model into a new one, where shards cannot be given new shapes in place.

The new model is built without memory, cut by the user's own `shard`, and takes over one tensor after the other; so
torch's public functions are enough, and the old model is whole until the new one stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from growthring.core.widen import formatted
from growthring.distributed.fullyshard import is_fully_sharded, settle
from growthring.distributed.publicly import choose
from growthring.distributed.shards import is_shard
from growthring.distributed.wrapping import Wrapping, unwrapped
from growthring.errors import GrowthStepError, InputError
from growthring.graph.computed import refresh
from growthring.graph.follow import follow_attributes
from growthring.graph.resize import copy_with, named_tensors
from growthring.growing.heritage import check_additions, check_kinds, take_attributes, take_buffers
from growthring.growing.module import GrowingModule, widen_gradient
from growthring.methods.base import Step
from growthring.optim.moving import move_parameters
from growthring.planning.plan import Plan

Shard = Callable[[nn.Module], nn.Module | None]


class FreshModule(GrowingModule):
    """A sharded module whose place a new one takes at each growth.

    Args:
        module: at some stage of the plan, cut by `shard`.
        plan: what it grows to.
        shard: what is done to a plain module before it is trained, `fully_shard` above all.
        optimizers: get the new parameters in place of the old ones.
    """

    makes_new = True

    def __init__(
        self, module: nn.Module, plan: Plan, shard: Shard, optimizers: Sequence[Optimizer]
    ) -> None:
        super().__init__(module, plan)
        self._shard, self._optimizers = shard, optimizers

    def settle(self) -> None:
        """Brings its parameters back into shards."""
        choose(self.module, is_public=True)
        settle(self.module)

    def install(
        self, step: Step, grown: dict[str, Tensor], factors: Mapping[str, float | Tensor]
    ) -> None:
        """Makes the next stage's module and puts it in the old one's place; nothing of that one changes."""
        if step.before == step.after:  # a saved state of this very stage
            super().install(step, grown, factors)
            return
        old, tensors, faded = self.module, self.tensors, self.fades.state_dict()
        for name, new in grown.items():
            grown[name] = formatted(new, tensors[name])
        model = _blank(self.plan, step.after, tensors)
        take_buffers(model, old, grown)
        added = _cut(model, self._shard)
        moved = _fill(model, old, grown)
        grown |= {name: moved[tensors[name]].detach() for name in grown if tensors[name] in moved}
        check_kinds(model, old)
        take_attributes(model, old, added, moved)
        choose(model, is_public=True)
        settle(model)
        self._hold(model)
        self.fades.load_state_dict(faded)
        check_additions(model, old)
        for name, tensor in tensors.items():
            if tensor in moved and tensor.grad is not None:
                layouts = step.layouts(self.plan.groups.specs[name].axes) if name in grown else []
                divisor = factors.get(name, 1.0)
                moved[tensor].grad = (
                    widen_gradient(tensor.grad, layouts, divisor) if name in grown else tensor.grad
                )
        move_parameters(self._optimizers, moved)
        refresh(model)
        self.follow(step)
        self.fades.extend(step.plan.groups.statistics, step.before, step.after)


def wrapping_of(model: nn.Module, through: nn.Module | None, shard: Shard | None) -> Wrapping:
    """What stands around a model; decides whether FSDP's own objects are left alone.

    Args:
        model: as its training loop calls it.
        through: what it is trained through.
        shard: what new models are cut by, if growths make such.
    """
    plain = unwrapped(model)
    if isinstance(plain, nn.Module):
        choose(plain, is_public=shard is not None)
    if shard is None:
        return Wrapping(model, through)
    if not callable(shard):
        raise InputError(
            f"shard is a {type(shard).__name__}; pass the function that cuts a plain model by fully_shard."
        )
    if plain is not model or through is not None or not is_fully_sharded(plain):
        how = "not cut by fully_shard" if plain is model and through is None else "wrapped"
        raise InputError(
            f"shard= is given, and the model is {how}: growths make new models by that function alone. Pass the "
            "model that it was called on."
        )
    return Wrapping(model)


def growing_module(
    model: nn.Module, plan: Plan, shard: Shard | None, optimizers: Sequence[Optimizer]
) -> GrowingModule:
    """What grows in place, or with `shard` into new models."""
    return (
        GrowingModule(model, plan) if shard is None else FreshModule(model, plan, shard, optimizers)
    )


def average_modules(
    averages: Iterable[nn.Module], plan: Plan, shard: Shard | None
) -> list[GrowingModule]:
    """Averages of the model, which grow in place; refuses shards where they cannot."""
    modules = list(averages)
    if shard is not None and any(map(is_fully_sharded, modules)):
        raise InputError(
            "an average of the model is cut by fully_shard, and with shard= shards do not grow in place. Let every "
            "process hold a whole one, or average at the end."
        )
    return [GrowingModule(module, plan) for module in modules]


def _blank(plan: Plan, widths: Mapping[int, int], like: Mapping[str, Tensor]) -> nn.Module:
    """A plain module of these widths whose parameters have no memory, of the types of the present ones."""
    specs, full = plan.groups.specs, plan.stage_widths[-1]

    def empty(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        shape = specs[name].shape(widths) if name in specs else shape
        return torch.empty(shape, dtype=like[name].dtype if name in like else dtype, device="meta")

    if plan.build is not None:
        model = plan.empty_model(plan.stage_widths.index(widths))
    else:
        held = named_tensors(plan.model)
        tensors = {name: empty(name, tuple(t.shape), t.dtype) for name, t in held.items()}
        model = copy_with(plan.model, tensors)
        follow_attributes(model, plan.groups.attributes, full, widths)
    missing = set(named_tensors(model)) ^ set(like)
    if missing:
        raise GrowthStepError(
            f"the model has other tensors than a new one of its plan ('{sorted(missing)[0]}'): it was changed "
            "after it was cut out, and a growth with shard= cannot know how. Change the model before gr.plan."
        )
    blanks: dict[int, nn.Parameter] = {}  # a shared one once
    names = {id(p): name for name, p in model.named_parameters()}
    for module in model.modules():
        for own, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in blanks:
                name = names[id(parameter)]
                blank = empty(name, tuple(parameter.shape), parameter.dtype)
                blanks[id(parameter)] = nn.Parameter(blank, like[name].requires_grad)
            setattr(module, own, blanks[id(parameter)])
    return model


def _cut(model: nn.Module, shard: Shard) -> dict[str, set[str]]:
    """Calls the user's function; what attributes it added to each module."""
    before = {path: set(vars(module)) for path, module in model.named_modules()}
    returned = shard(model)
    if returned is not None and returned is not model:
        raise InputError(
            f"shard returned another {type(returned).__name__} than it was given: it has to change that one in "
            "place, as fully_shard does."
        )
    after = dict(model.named_modules())
    if after.keys() != before.keys():
        raise InputError(
            f"shard gave the model other modules ('{sorted(after.keys() ^ before.keys())[0]}'), of which the plan "
            "knows nothing. Let it shard, hook and compile modules in place."
        )
    return {path: set(vars(module)) - before[path] for path, module in after.items()}


def _fill(model: nn.Module, old: nn.Module, grown: Mapping[str, Tensor]) -> dict[Tensor, Tensor]:
    """Gives a new model its weights, as shards that are there already; old parameters -> new ones."""
    cut = dict(model.named_parameters())
    moved: dict[Tensor, Tensor] = {}
    for name, parameter in old.named_parameters():
        new: Any = grown.get(name, parameter.detach())
        place: Any = cut[name]
        if is_shard(place) != is_shard(new) or (
            is_shard(new)
            and (place.device_mesh != new.device_mesh or place.placements != new.placements)
        ):
            raise GrowthStepError(
                f"shard spread '{name}' of the new model in another way than it is spread now: "
                f"{_spread(place)}, and {_spread(new)}. Let it do the same to every model."
            )
        moved[parameter] = nn.Parameter(new, requires_grad=parameter.requires_grad)
    own = {id(p): new for p, new in moved.items()}
    names = old.named_parameters(remove_duplicate=False)  # tied ones under all of their names
    state = {name: own[id(parameter)] for name, parameter in names}
    model.load_state_dict(state, strict=False, assign=True)
    held = dict(model.named_parameters())
    for name, parameter in old.named_parameters():
        if held[name] is not moved[parameter]:
            raise GrowthStepError(
                f"'{name}' of the new model did not take the weights that load_state_dict(assign=True) gave it: "
                "the model's own code loads weights in another way."
            )
    return moved


def _spread(tensor: Any) -> str:
    return f"{tensor.placements} over {tensor.device_mesh}" if is_shard(tensor) else "whole"
