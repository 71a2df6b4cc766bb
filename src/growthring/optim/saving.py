"""What a state_dict says of the rings, where torch's own functions carry it along.

`torch.distributed.checkpoint.state_dict` takes "state" and "param_groups" apart by the names of parameters, may
flatten both, and loads into what a new optimizer has there already. So each group says under "rings" when rings
were born (None while the optimizer is in use, which keeps the place), and the births of a parameter are a dict of
whole numbers, with the same keys for every parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from growthring.errors import InputError

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
        history = list(histories[number]) if number < len(histories) else []
        rings = {**record, "births": list(record["births"]), "history": history}
        is_code = callable(group.get("rate_adaptation"))  # code is not saved
        groups.append(
            {**group, **({"rate_adaptation": "callable"} if is_code else {}), PLACE: rings}
        )
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
    groups = [{**group, PLACE: None} for group in state["param_groups"]]
    records = [g[PLACE] for g in state["param_groups"] if g.get(PLACE) is not None]
    record = state.get(PLACE)  # at the top, in older files
    if record is None and records:
        _check(records)
        record = {**records[0], "history": [r["history"] for r in records]}
    if record is not None:
        _check([record])
    entries = {}
    for key, entry in state["state"].items():
        births = entry.get("births") if isinstance(entry, Mapping) else None
        if isinstance(births, Mapping):
            own = tuple(int(births[str(ring)]) for ring in range(len(births)))
            entry = {**entry, "births": own}
        entries[key] = entry
    return entries, groups, record


def _check(records: Sequence[Mapping[str, Any]]) -> None:
    for record in records:
        missing = [key for key in FIELDS if key not in record]
        if missing:
            raise InputError(
                f"the saved rings lack '{missing[0]}': not whole, or not from gr.optim."
            )
