"""RingOptions: what a user can say about rings, for a whole optimizer or for each parameter group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from torch import Tensor

from growthring.core.presets import preset_named
from growthring.errors import InputError
from growthring.optim.rules import RateRule, check_rule


class RingOptions(TypedDict, total=False):
    """Options that the optimizers of `gr.optim` take beside torch's. Without a Grower they do nothing.

    Where an option says "preset", the plan's preset decides (`growthring.core.presets`); that is the default of
    all but two. The values for "default" and "paper" stand in brackets.

    Attributes:
        rate_adaptation: "norm" (η_k = η_0 ‖W_k‖ / ‖W_0‖), "max" (the appendix's max(1, ‖W_k‖)), None, or a function
            from the norms of one parameter's rings, (rings,), to their factors. Weights (two or more axes)
            only; vectors keep factor 1. [None; "norm", but None of LARS]
        output_rate: whether the output layer's rate is divided by C_0, its input width at stage 0
            (Table 1). None means: if rate adaptation is on. [False; None of SGD]
        ring_schedule: "shared", or "own": each ring follows the schedule's shape from its own birth to the end of
            training. ["shared"]
        ages: of Adam, AdamW and AvaGrad: "ring" corrects the bias of each ring's moments by the steps that it has
            seen, "shared" by those of the parameter, as torch does. ["shared"; "ring"]
        new_ring_rate: factor on the rate of all entries that a growth added, biases and norms included. [1]
        new_ring_warmup: optimizer steps over which that factor rises from 0 after their birth. [0]
        total_steps: optimizer steps of the whole run, which "own" needs.
        max_schedule_factor: cap on what "own" multiplies a rate by (default 10).
        state_at_growth: "keep" carries state over, with what a new parameter would have for new
            entries; "rescale" also follows what the growth did to the gradients; "reset" drops all
            of it. ["keep"; "reset" of SGD]
    """

    rate_adaptation: RateRule
    output_rate: bool | Literal["preset"] | None
    ring_schedule: Literal["shared", "own", "preset"]
    ages: Literal["ring", "shared", "preset"]
    new_ring_rate: float | Literal["preset"]
    new_ring_warmup: int | Literal["preset"]
    total_steps: int | None
    max_schedule_factor: float
    state_at_growth: Literal["keep", "rescale", "reset", "preset"]


PRESET = "preset"
DEFAULTS: dict[str, Any] = {
    "rate_adaptation": PRESET,
    "output_rate": PRESET,
    "ring_schedule": PRESET,
    "ages": PRESET,
    "new_ring_rate": PRESET,
    "new_ring_warmup": PRESET,
    "total_steps": None,
    "max_schedule_factor": 10.0,
    "state_at_growth": PRESET,
}
_UNSETTLED = preset_named("default").rings
_CHOICES = {
    "ring_schedule": ("shared", "own"),
    "ages": ("ring", "shared"),
    "state_at_growth": ("keep", "rescale", "reset"),
}


def check_options(options: Mapping[str, Any]) -> None:
    """Refuses options that cannot work.

    >>> check_options({**DEFAULTS, "ring_schedule": "own", "total_steps": 100})
    """
    if options["rate_adaptation"] != PRESET:
        check_rule(options["rate_adaptation"])
    output = options["output_rate"]
    if output is not None and output != PRESET and not isinstance(output, bool):
        raise InputError(f"output_rate={output!r} is not True, False or None.")
    for name, choices in _CHOICES.items():
        if options[name] not in (*choices, PRESET):
            raise InputError(f"{name}={options[name]!r} is not one of {', '.join(choices)}.")
    _check_new_rings(options["new_ring_rate"], options["new_ring_warmup"])
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


def _check_new_rings(rate: Any, warmup: Any) -> None:
    is_number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
    if rate != PRESET and not (is_number and 0 < rate < math.inf):
        raise InputError(f"new_ring_rate={rate!r} is not a positive number.")
    is_whole = isinstance(warmup, int) and not isinstance(warmup, bool)
    if warmup != PRESET and not (is_whole and warmup >= 0):
        raise InputError(f"new_ring_warmup={warmup!r} is not a number of optimizer steps.")


def complete(given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of an optimizer: those given, checked, and defaults for the rest.

    >>> complete({"rate_adaptation": None})["ring_schedule"]
    'preset'
    """
    unknown = [name for name in given if name not in DEFAULTS]
    if unknown:
        raise InputError(f"there is no option '{unknown[0]}'; there are {', '.join(DEFAULTS)}.")
    options = {**DEFAULTS, **given}
    check_options(options)
    return options


def settle(
    groups: list[dict[str, Any]], preset: str, overrides: Mapping[str, Mapping[str, Any]]
) -> None:
    """Writes what a preset decides into the groups, where nothing else was said.

    Args:
        groups: of an optimizer.
        preset: its name.
        overrides: by preset, what differs for this kind of optimizer.

    >>> group = {**DEFAULTS, "ages": "ring"}
    >>> settle([group], "default", {})
    >>> group["rate_adaptation"], group["ages"]
    (None, 'ring')
    """
    decided = {**preset_named(preset).rings, **overrides.get(preset, {})}
    for group in groups:
        group |= {name: value for name, value in decided.items() if _is_open(group.get(name))}


def loaded_groups(
    groups: list[dict[str, Any]], saved: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Saved groups with the present options where they have none (a torch state_dict) or cannot (code)."""
    result = []
    for group, theirs in zip(groups, saved, strict=False):
        own = {name: group[name] for name in DEFAULTS if name in group}
        merged = {**own, **{k: v for k, v in theirs.items() if not _is_open(v)}}
        if merged.get("rate_adaptation") == "callable":
            merged["rate_adaptation"] = own["rate_adaptation"]
        result.append(merged)
    return result + list(saved[len(result) :])


def keep_rate_tensors(groups: list[dict[str, Any]], before: Sequence[Any]) -> None:
    """Writes loaded rates into the tensors that held them before: a compiled step and others read those.

    Args:
        groups: after the loading.
        before: the `lr` of each group before it.
    """
    for group, rate in zip(groups, before, strict=False):
        if isinstance(rate, Tensor):
            loaded = group["lr"]
            rate.copy_(loaded) if isinstance(loaded, Tensor) else rate.fill_(loaded)
            group["lr"] = rate


def option(group: Mapping[str, Any], name: str) -> Any:
    """An option of a parameter group; what no Grower has settled yet is as in the default preset."""
    value = group.get(name, DEFAULTS[name])
    return _UNSETTLED[name] if _is_open(value) else value


def scales_output(group: Mapping[str, Any]) -> bool:
    """Whether the output layer's rate is divided by C_0; None means: if rate adaptation is on."""
    chosen = option(group, "output_rate")
    return option(group, "rate_adaptation") is not None if chosen is None else bool(chosen)


def _is_open(value: Any) -> bool:
    return isinstance(value, str) and value == PRESET
