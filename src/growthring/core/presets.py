"""Presets: the defaults of every option that our results or the paper decide, in one place.

"default" is what did best in our own trials (docs/when-it-pays.md; docs/rates.md for SGD's rates and state).
"paper" is the paper's setting. `gr.plan(..., preset="paper")` chooses one for the plan, for the Grower and for the
optimizers that it is told of; an option that is given always wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from growthring.core.variance import Mode
from growthring.errors import InputError

PresetName = Literal["default", "paper"]


@dataclass(frozen=True)
class Preset:
    """Values for options that were not given.

    Attributes:
        plan: options of plans, see `PlanOptions`.
        rings: options of the optimizers of `gr.optim`, see `RingOptions`.
        variance_transfer: see `Grower`.
        noise: see `Grower`.
        fade: share of a stage over which statistics fade in.
        lr_schedule: of recipes, see `growthring.train.lr_schedules`.
        heads: which factor of heads × head size grows, where a plan has heads="auto": "whole" heads where their
            number can follow the widths of the stages, or the "larger" factor.
    """

    plan: Mapping[str, Any]
    rings: Mapping[str, Any]
    variance_transfer: Mode
    noise: float
    fade: float
    lr_schedule: str
    heads: Literal["whole", "larger"]


PRESETS: dict[str, Preset] = {
    "default": Preset(
        plan={
            "stages": None,  # doublings
            "start": None,  # half, see PlanOptions.seed_share
            "growth": None,
            "epochs": None,
            "schedule": "ramp",
            "grown_at": 0.7,  # docs/when-it-pays.md, From which width, and until when
        },
        rings={
            "rate_adaptation": None,
            "output_rate": False,
            "ring_schedule": "shared",
            "ages": "shared",
            "new_ring_rate": 1.0,
            "new_ring_warmup": 0,
            "state_at_growth": "keep",
        },
        variance_transfer="preserving",
        noise=1e-3,
        fade=0.1,  # docs/language-models.md, How long norms fade
        lr_schedule="wsd",
        heads="whole",  # thin heads are slow: docs/benchmarks.md, Stages
    ),
    "paper": Preset(
        plan={
            "stages": 9,
            "start": 0.25,
            "growth": 0.2,
            "epochs": 160,
            "schedule": "published",
            "grown_at": 0.5,  # of other schedules than the paper's
        },
        rings={
            "rate_adaptation": "norm",
            "output_rate": False,  # SGD alone divides by C_0 (Table 1)
            "ring_schedule": "shared",
            "ages": "ring",
            "new_ring_rate": 1.0,
            "new_ring_warmup": 0,
            "state_at_growth": "keep",
        },
        variance_transfer="paper",
        noise=1e-3,
        fade=1.0,  # the paper's norms do not fade: see docs/how-it-works.md
        lr_schedule="cosine",
        heads="larger",  # the paper's 8 heads grow from 8 to 64
    ),
}


def preset_named(name: Any) -> Preset:
    """A preset by name.

    >>> preset_named("paper").variance_transfer
    'paper'
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise InputError(f"preset={name!r} is not one of {', '.join(PRESETS)}.")
    return PRESETS[name]
