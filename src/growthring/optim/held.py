"""What optimizers keep beside their state: other optimizers that they drive, and tensors that nobody would grow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from growthring.errors import GrowthStepError
from growthring.optim.packed import packs


def held_optimizers(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizers that an optimizer drives (Lookahead and other wrappers), those that they drive included."""
    optimizers = [optimizer]
    for one in optimizers:
        for value in vars(one).values():
            inside = value.values() if isinstance(value, dict) else value
            for held in inside if isinstance(value, (dict, list, tuple)) else [value]:
                if isinstance(held, Optimizer) and not any(held is other for other in optimizers):
                    optimizers.append(held)
    return optimizers[1:]


def refuse_hidden(
    optimizer: Optimizer, changed: Mapping[Tensor, tuple[str, tuple[int, ...]]]
) -> None:
    """Raises where an optimizer keeps tensors of its parameters' shapes in attributes or groups of its own.

    Args:
        optimizer: to look at.
        changed: parameters that grew -> their names and old shapes.
    """
    own = [p for group in optimizer.param_groups for p in group["params"]]
    named = [changed[p] for p in reversed(own) if p in changed]
    shapes = {shape: name for name, shape in named if math.prod(shape) > 1}
    ids = {id(p) for p in own}
    places = {k: v for k, v in vars(optimizer).items() if k not in ("state", "param_groups")}
    if packs(optimizer):
        places.pop("name2qmap", None)  # code books, of 256 entries whatever the parameters are
    for number, group in enumerate(optimizer.param_groups):
        places |= {f"param_groups[{number}].{k}": v for k, v in group.items() if k != "params"}
    for place, value in places.items():
        for tensor in tensors_in(value):
            shape = tuple(tensor.shape)
            if shape in shapes and id(tensor) not in ids:
                raise GrowthStepError(
                    f"{type(optimizer).__name__}.{place} holds a tensor of shape {shape}, that of "
                    f"'{shapes[shape]}', outside the optimizer's state, so it would not grow with the "
                    "parameter. Keep it in optimizer.state[parameter], where the Grower finds it."
                )


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, list, tuple, set)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(one)
