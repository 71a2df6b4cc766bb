"""Moves an optimizer from parameters to others that take their places: groups, state and rings, in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor
from torch.optim import Optimizer

from growthring.errors import GrowthStepError
from growthring.optim.held import tensors_in
from growthring.optim.wrap import ring_rates_of


def move_parameters(optimizers: Iterable[Optimizer], moved: Mapping[Tensor, Tensor]) -> None:
    """Puts new parameters into the places of old ones; what is remembered of them stays what it is.

    Args:
        optimizers: changed in place; nothing is changed if it raises.
        moved: old parameters -> new ones.

    Raises:
        GrowthStepError: one of them holds a parameter where nobody would look for it.

    >>> import torch
    >>> old, new = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    >>> optimizer = torch.optim.SGD([old])
    >>> move_parameters([optimizer], {old: new})
    >>> optimizer.param_groups[0]["params"][0] is new
    True
    """
    chosen = list(optimizers)
    for optimizer in chosen:
        _check_hidden(optimizer, moved)
    for optimizer in chosen:
        for group in optimizer.param_groups:
            group["params"][:] = [moved.get(p, p) for p in group["params"]]
        state = list(optimizer.state.items())
        optimizer.state.clear()
        for p, entries in state:
            optimizer.state[moved.get(p, p)] = entries
        ring_rates = ring_rates_of(optimizer)
        if ring_rates is not None:
            ring_rates.rings = {moved.get(p, p): rings for p, rings in ring_rates.rings.items()}


def _check_hidden(optimizer: Optimizer, moved: Mapping[Tensor, Tensor]) -> None:
    ids = {id(p) for p in moved}
    known = [id(group["params"]) for group in optimizer.param_groups]
    places = {k: v for k, v in vars(optimizer).items() if k not in ("state", "param_groups")}
    places |= {
        f"param_groups[{number}].{key}": value
        for number, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if key != "params"
    }
    for place, value in places.items():
        if id(value) not in known and any(id(tensor) in ids for tensor in tensors_in(value)):
            raise GrowthStepError(
                f"{type(optimizer).__name__}.{place} holds parameters of the model, and a growth with shard= makes "
                "new ones. Let it look them up in param_groups."
            )
