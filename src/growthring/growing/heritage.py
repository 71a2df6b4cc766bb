"""Heritage: what a new model takes over from the one that it was made after, beside its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from growthring.errors import GrowthStepError, UnsupportedModelError
from growthring.graph.rebind import Rebinder
from growthring.growing.fading.intercept import FadedForward

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
            if isinstance(value, FadedForward):  # the fades of the new model put theirs there
                value = value.own
                if value is None:
                    continue
            if name not in own:
                vars(new)[name] = _rebound(rebinder, value, f"'{name}' of '{path or '(model)'}'")


def _rebound(rebinder: Rebinder, value: Any, place: str) -> Any:
    try:
        return rebinder.value(value)
    except UnsupportedModelError as error:
        raise GrowthStepError(
            f"{place} holds a {type(value).__name__} that refers to the model, and a growth with shard= makes a "
            "new one, which it would not know. Let it reach the model in another way."
        ) from error


def check_kinds(model: nn.Module, old: nn.Module) -> None:
    """Refuses a new model whose modules are of other kinds."""
    for path, module in old.named_modules():
        kind, new = type(module), type(model.get_submodule(path))
        if new is not kind:
            what = f"is a {kind.__name__}, and shard makes a {new.__name__} of a new one"
            raise _differs(path, what)


def check_additions(model: nn.Module, old: nn.Module) -> None:
    """Refuses an old model to which more was added than `shard` adds."""
    for path, module in old.named_modules():
        new = vars(model.get_submodule(path))
        if vars(module).get("_compiled_call_impl") and not new.get("_compiled_call_impl"):
            raise _differs(path, "was compiled")
        if any(len(vars(module)[hooks]) > len(new[hooks]) for hooks in _HOOKS):
            raise _differs(path, "has hooks")
        if any(_is_hooked(parameter) for parameter in module.parameters(recurse=False)):
            raise _differs(path, "has parameters with hooks")


def _differs(path: str, what: str) -> GrowthStepError:
    where = f"'{path}'" if path else "the model"
    return GrowthStepError(
        f"{where} {what}: a growth with shard= makes a new model, to which nothing is done but what that "
        "function does. Do it there."
    )


def _is_hooked(parameter: Any) -> bool:
    held = (parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None))
    return any(held)
