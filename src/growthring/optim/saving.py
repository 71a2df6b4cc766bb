"""What a state_dict says of the rings, where torch's own functions carry it along.

`torch.distributed.checkpoint.state_dict` takes "state" and "param_groups" apart by the names of parameters,
flattens what is nested, and loads into the places that a new optimizer has. So each group says under "rings", in
one string, when rings were born (it is None while the optimizer is in use, which keeps the place); and the births
of a parameter are a dict of whole numbers, with the same keys for every parameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from growthring.core.wording import counted
from growthring.errors import InputError
from growthring.optim.ringrates import RingRates

PLACE = "rings"
FIELDS = ("births", "steps", "history")


def packed(state: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """A state_dict of torch's with the record of the rings, as plain data.

    Args:
        state: as `Optimizer.state_dict` made it.
        record: of `RingRates.state_dict`.
    """
    groups = []
    for number, group in enumerate(state["param_groups"]):
        histories = record["history"]
        history = histories[number] if number < len(histories) else []
        rings = json.dumps({**record, "history": history})
        is_code = callable(group.get("rate_adaptation"))  # code is not saved
        rule = {"rate_adaptation": "callable"} if is_code else {}
        groups.append({**group, **rule, PLACE: rings})
    entries = {}
    for key, entry in state["state"].items():
        entries[key] = entry
        if "births" in entry:
            own = {str(ring): int(birth) for ring, birth in enumerate(entry["births"])}
            entries[key] = {**entry, "births": own}
    return {**state, "state": entries, "param_groups": groups}


def unpacked(
    state: Mapping[str, Any],
) -> tuple[dict[int | str, Any], list[dict[str, Any]], dict[str, Any] | None]:
    """The state and the groups for torch, and the record of the rings; None if there is none.

    Raises:
        InputError: the record is not whole.
    """
    records = [_read(g[PLACE]) for g in state["param_groups"] if g.get(PLACE) is not None]
    record = None
    if records:
        record = {**records[0], "history": [each["history"] for each in records]}
    elif PLACE in state:  # at the top, in older files
        record = _read(state[PLACE])
    groups = [{**group, PLACE: None} for group in state["param_groups"]]
    entries = {}
    for key, entry in state["state"].items():
        births = entry.get("births") if isinstance(entry, Mapping) else None
        if isinstance(births, Mapping):
            own = tuple(int(births[str(ring)]) for ring in range(len(births)))
            entry = {**entry, "births": own}
        entries[key] = entry
    return entries, groups, record


def _read(saved: Any) -> dict[str, Any]:
    try:
        record = json.loads(saved) if isinstance(saved, str) else dict(saved)
    except (TypeError, ValueError):
        record = {}
    missing = [key for key in FIELDS if key not in record]
    if missing:
        raise InputError(f"the saved rings lack '{missing[0]}': not whole, or not from gr.optim.")
    return record


def check_saved(
    ring_rates: RingRates,
    optimizer: Optimizer,
    saved: Mapping[str, Any],
    record: Mapping[str, Any] | None,
) -> None:
    """Refuses a state_dict of other widths or of another number of rings.

    Args:
        ring_rates: of the optimizer.
        optimizer: that would load it.
        saved: the state_dict.
        record: what it says of the rings, if anything.
    """
    _check_shapes(ring_rates, optimizer, saved)
    num_saved = ring_rates.num_rings if record is None else len(record["births"])
    if ring_rates and num_saved != ring_rates.num_rings:
        raise InputError(
            f"the saved optimizer knows {counted(num_saved, 'ring')}, the model has {ring_rates.num_rings}. "
            "Bring the model to the saved stage first: grower.load_state_dict(...), then the optimizer's."
        )


def _check_shapes(
    ring_rates: RingRates, optimizer: Optimizer, state_dict: Mapping[str, Any]
) -> None:
    groups, saved = optimizer.param_groups, state_dict["param_groups"]
    if [len(g["params"]) for g in groups] != [len(g["params"]) for g in saved]:
        return  # torch says it
    own = [p for group in groups for p in group["params"]]
    ids = [i for group in saved for i in group["params"]]
    for parameter, i in zip(own, ids, strict=True):
        for key, value in state_dict["state"].get(i, {}).items():
            if not isinstance(value, Tensor) or value.dim() != parameter.dim():
                continue
            pairs = zip(value.shape, parameter.shape, strict=True)
            if any(n not in (1, m) for n, m in pairs):
                rings = ring_rates.rings.get(parameter)
                name = f"'{rings.name}'" if rings else f"parameter {i}"
                raise InputError(
                    f"the saved '{key}' of {name} is {tuple(value.shape)}, the parameter "
                    f"{tuple(parameter.shape)}: the state is of other widths. Bring the model to "
                    "the saved stage first: grower.load_state_dict(...), then the optimizer's."
                )
