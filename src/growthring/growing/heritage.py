"""Heritage: what a new model takes over from the one that it was made after, beside its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from growthring.errors import GrowthStepError, UnsupportedModelError
from growthring.graph.rebind import Rebinder

_OWN = frozenset(vars(nn.Module())) | {"_compiled_call_impl"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def take_buffers(model: nn.Module, old: nn.Module, grown: Mapping[str, Tensor]) -> None:
    """Gives a new model the buffers of the old one, those included that are not saved."""
    names = {id(buffer): name for name, buffer in old.named_buffers()}
    for path, module in old.named_modules():
        for own, buffer in module.named_buffers(recurse=False):
            setattr(model.get_submodule(path), own, grown.get(names[id(buffer)], buffer))


def take_attributes(
    model: nn.Module, old: nn.Module, added: Mapping[str, set[str]], moved: Mapping[Tensor, Tensor]
) -> None:
    """Gives a new model what training left on the modules of the old one; sizes follow later.

    Args:
        model: new.
        old: at the present stage.
        added: for each module, what `shard` put there, which is each model's own.
        moved: old parameters -> new ones.
    """
    counterparts: dict[int, Any] = {id(p): new for p, new in moved.items()}
    counterparts |= {id(module): model.get_submodule(path) for path, module in old.named_modules()}
    buffers = dict(model.named_buffers())
    counterparts |= {id(buffer): buffers[name] for name, buffer in old.named_buffers()}
    rebinder = Rebinder(counterparts, set())
    for path, module in old.named_modules():
        new, own = model.get_submodule(path), _OWN | added[path]
        new.training = module.training
        for name in set(vars(new)) - own - set(vars(module)):
            delattr(new, name)
        for name, value in vars(module).items():
            if name not in own and type(value).__name__ != "FadedForward":
                vars(new)[name] = _rebound(rebinder, value, f"'{name}' of '{path or '(model)'}'")


def _rebound(rebinder: Rebinder, value: Any, place: str) -> Any:
    try:
        return rebinder.value(value)
    except UnsupportedModelError as error:
        raise GrowthStepError(
            f"{place} holds a {type(value).__name__} that refers to the model, and a growth with shard= makes a "
            "new one, which it would not know. Let it reach the model in another way."
        ) from error


def check_same(model: nn.Module, old: nn.Module) -> None:
    """Refuses an old model to which more was done than `shard` does."""
    for path, module in old.named_modules():
        new, where = model.get_submodule(path), f"'{path}'" if path else "the model"
        what = None
        if type(new) is not type(module):
            what = f"is a {type(module).__name__}, shard makes a {type(new).__name__} of it"
        elif vars(module).get("_compiled_call_impl") and not vars(new).get("_compiled_call_impl"):
            what = "was compiled"
        elif any(_is_hooked(p) for p in module.parameters(recurse=False)):
            what = "has parameters with hooks"
        elif any(len(vars(module)[hooks]) > len(vars(new)[hooks]) for hooks in _HOOKS):
            what = "has hooks"
        if what is not None:
            raise GrowthStepError(
                f"{where} {what}: a growth with shard= makes a new model, to which nothing is done but what that "
                "function does. Do it there."
            )


def _is_hooked(parameter: Any) -> bool:
    held = (parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None))
    return any(held)
