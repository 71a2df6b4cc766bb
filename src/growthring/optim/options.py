"""RingOptions: what a user can say about rings, for a whole optimizer or for each parameter group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from growthring.errors import InputError
from growthring.optim.rules import RateRule, check_rule


class RingOptions(TypedDict, total=False):
    """Options that the optimizers of `gr.optim` take beside torch's. Without a Grower they do nothing.

    Attributes:
        rate_adaptation: "norm" (default: η_k = η_0 ‖W_k‖ / ‖W_0‖), "max" (the appendix's
            max(1, ‖W_k‖)), None, or a function from the norms of one parameter's rings, (rings,), to
            their factors. Weights (two or more axes) only; vectors keep factor 1.
        output_rate: whether the output layer's rate is divided by C_0, its input width at stage 0
            (Table 1). None means: if rate adaptation is on.
        ring_schedule: "shared" (default, the paper) or "own": each ring follows the schedule's shape
            from its own birth to the end of training.
        total_steps: optimizer steps of the whole run, which "own" needs.
        max_schedule_factor: cap on what "own" multiplies a rate by (default 10).
        state_at_growth: "keep" carries state over, with what a new parameter would have for new
            entries; "rescale" also follows what the growth did to the gradients; "reset" drops all
            of it.
    """

    rate_adaptation: RateRule
    output_rate: bool | None
    ring_schedule: Literal["shared", "own"]
    total_steps: int | None
    max_schedule_factor: float
    state_at_growth: Literal["keep", "rescale", "reset"]


DEFAULTS: dict[str, Any] = {
    "rate_adaptation": "norm",
    "output_rate": False,
    "ring_schedule": "shared",
    "total_steps": None,
    "max_schedule_factor": 10.0,
    "state_at_growth": "keep",
}


def check_options(options: Mapping[str, Any]) -> None:
    """Refuses options that cannot work.

    >>> check_options({**DEFAULTS, "ring_schedule": "own", "total_steps": 100})
    """
    check_rule(options["rate_adaptation"])
    if options["output_rate"] is not None and not isinstance(options["output_rate"], bool):
        raise InputError(f"output_rate={options['output_rate']!r} is not True, False or None.")
    if options["ring_schedule"] not in ("shared", "own"):
        raise InputError(f"ring_schedule={options['ring_schedule']!r} is not 'shared' or 'own'.")
    total = options["total_steps"]
    if total is not None and (isinstance(total, bool) or not isinstance(total, int) or total < 1):
        raise InputError(f"total_steps={total!r} is not a number of optimizer steps.")
    if options["ring_schedule"] == "own" and total is None:
        raise InputError(
            "ring_schedule='own' stretches the schedule from each ring's birth to the end of training, "
            "so it needs total_steps=, the optimizer steps of the whole run."
        )
    cap = options["max_schedule_factor"]
    if isinstance(cap, bool) or not isinstance(cap, (int, float)) or not cap > 0:
        raise InputError(
            f"max_schedule_factor={options['max_schedule_factor']!r} is not a positive number."
        )
    choices = ("keep", "rescale", "reset")
    if options["state_at_growth"] not in choices:
        raise InputError(
            f"state_at_growth={options['state_at_growth']!r} is not one of {', '.join(choices)}."
        )


def complete(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """All options of an optimizer: those given, checked, and defaults for the rest.

    >>> complete({"rate_adaptation": None}, DEFAULTS)["ring_schedule"]
    'shared'
    """
    unknown = [name for name in given if name not in DEFAULTS]
    if unknown:
        raise InputError(f"there is no option '{unknown[0]}'; there are {', '.join(DEFAULTS)}.")
    options = {**DEFAULTS, **defaults, **given}
    check_options(options)
    return options


def saved_groups(groups: list[dict[str, Any]]) -> None:
    """Makes the groups of a state_dict plain data: code is not saved."""
    for group in groups:
        if callable(group.get("rate_adaptation")):
            group["rate_adaptation"] = "callable"


def loaded_groups(
    groups: list[dict[str, Any]], saved: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Saved groups with the present options where they have none (a torch state_dict) or cannot (code)."""
    result = []
    for group, theirs in zip(groups, saved, strict=False):
        own = {name: group[name] for name in DEFAULTS if name in group}
        merged = {**own, **theirs}
        if merged.get("rate_adaptation") == "callable":
            merged["rate_adaptation"] = own["rate_adaptation"]
        result.append(merged)
    return result + list(saved[len(result) :])


def option(group: Mapping[str, Any], name: str) -> Any:
    """An option of a parameter group."""
    return group.get(name, DEFAULTS[name])


def scales_output(group: Mapping[str, Any]) -> bool:
    """Whether the output layer's rate is divided by C_0; None means: if rate adaptation is on."""
    chosen = option(group, "output_rate")
    return option(group, "rate_adaptation") is not None if chosen is None else bool(chosen)
