"""Contenders: ways to train one network, each a set of changes to the same recipe."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from growthring.errors import GrowthError, InputError
from growthring.train import Recipe, change, parse_settings

FIXED = "fixed"


@dataclass(frozen=True)
class Rival:
    """Full size at the cost of another contender, from which its length follows.

    Attributes:
        cost: "flops" or "seconds".
        lr_schedule: its own; None for the recipe's. Both end with the run's last step.
    """

    cost: str
    lr_schedule: str | None = None


# The recipe's schedule may suit growing better than it suits full size, so the rivals have a second one.
MATCHED = {
    "fixed-flops": Rival("flops"),
    "fixed-flops-linear": Rival("flops", "linear"),
    "fixed-seconds": Rival("seconds"),
    "fixed-seconds-linear": Rival("seconds", "linear"),
}
_RESERVED = {FIXED, *MATCHED, "lock"}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # also a folder, so no dots and no slashes

Settings = Mapping[str, Any]  # by name, with `optimizer_options.momentum` for a part of a mapping


@dataclass(frozen=True)
class Contender:
    """One way to train the recipe's network.

    Attributes:
        name: in tables, and of the folder with its runs.
        settings: changes to the recipe, as for `growthring.train.change`.
        text: what it is, in a sentence.

    >>> from growthring.train.recipes import demo
    >>> Contender("noisy", {"noise": 0.1}).recipe(demo(), seed=3).noise
    0.1
    """

    name: str
    settings: Settings = field(default_factory=dict)
    text: str = ""

    def recipe(self, base: Recipe, seed: int) -> Recipe:
        """The recipe of one of its runs."""
        try:
            return change(base, {**self.settings, "seed": seed})
        except GrowthError as error:
            raise type(error)(f"contender '{self.name}': {error}") from error


@dataclass(frozen=True)
class Known:
    """A contender that has a name of its own; its settings may depend on the recipe."""

    text: str
    settings: Callable[[Recipe], Settings]

    def of(self, name: str, recipe: Recipe) -> Contender:
        """The contender of a recipe."""
        return Contender(name, self.settings(recipe), self.text)


def _always(settings: Settings) -> Callable[[Recipe], Settings]:
    return lambda recipe: settings


def _rates(
    adaptation: str | None, output: bool | None = False, schedule: str = "shared"
) -> Settings:
    return {
        "optimizer_options.rate_adaptation": adaptation,
        "optimizer_options.output_rate": output,
        "optimizer_options.ring_schedule": schedule,
    }


_PLAIN = _rates(None)  # one rate for all entries, as the rivals were published
_PAPER = _rates("norm", output=None)  # output_rate=None: divided by C_0 as rates are adapted
_PAPER_STATE: Settings = {"optimizer_options.state_at_growth": "reset"}  # of SGD's momentum
_OURS: Settings = {"method": "paired", "variance_transfer": "paper"}


def _rival(method: str, text: str) -> Known:
    return Known(text, _always({"method": method, **_PLAIN}))


def _ours(text: str, variance: str, rates: Settings) -> Known:
    settings = {**_OURS, "variance_transfer": variance, **rates}

    def of(recipe: Recipe) -> Settings:
        # a recipe of the paper's preset has the paper's state already
        is_ours = recipe.plan.optimizer != "sgd" or recipe.plan.preset == "paper"
        return settings if rates is not _PAPER or is_ours else {**settings, **_PAPER_STATE}

    return Known(text, of)


def _as_it_is(recipe: Recipe) -> Settings:
    return {} if recipe.method == "paired" else {"method": "paired"}


def _optimizer(
    text: str, name: str, lr: float, adaptation: str | None = None, **options: Any
) -> Known:
    """Another optimizer; its options replace the recipe's as a whole: momentum means nothing to Adam."""
    whole = {**options, "rate_adaptation": adaptation, "output_rate": False, "ages": "ring"}
    return Known(text, _always({**_OURS, "optimizer": name, "lr": lr, "optimizer_options": whole}))


def _lars(recipe: Recipe) -> Settings:
    # A layer's step is lr · 0.001 · ‖w‖ in place of lr · ‖g‖, and ‖w‖ is some tens of ‖g‖.
    decay = recipe.optimizer_options.get("weight_decay", 0.0)
    options = {"momentum": 0.9, "weight_decay": decay}
    return {**_OURS, "optimizer": "lars", "lr": 50 * recipe.lr, "optimizer_options": options}


def _adam(text: str, **options: Any) -> Known:
    return _optimizer(f"Adam: {text}", "adam", 3e-3, weight_decay=1e-4, **options)


def _avagrad(text: str, **options: Any) -> Known:
    return _optimizer(f"AvaGrad: {text}", "avagrad", 0.5, eps=10.0, weight_decay=5e-4, **options)


KNOWN: dict[str, Known] = {
    FIXED: Known(
        "full size from the start: what all costs are compared with", _always({"fixed": True})
    ),
    "small": Known("the seed's width throughout, never growing", _always({"small": True})),
    "paired": Known("the recipe as it is: growing in ± pairs", _as_it_is),
    "osgd": Known(
        "the recipe with dynamic OSGD: steps leave alone what the old data asked for, less and less so",
        lambda recipe: {**_as_it_is(recipe), "osgd": recipe.osgd or "linear"},
    ),
    "fixed-osgd": Known(
        "full size from the start, with dynamic OSGD",
        lambda recipe: {"fixed": True, "osgd": recipe.osgd or "linear"},
    ),
    "net2net": _rival("net2net", "Net2Net: copies of random units, whose readers share the weight"),
    "splitting": _rival("splitting", "splitting steepest descent: splits the units that gain most"),
    "firefly-split": _rival("firefly-split", "Firefly, splits only"),
    "firefly": _rival("firefly", "Firefly: splits and new units, chosen by a local optimisation"),
    "gradmax": _rival("gradmax", "GradMax: new units with the largest gradient"),
    "random": _rival("random", "new units at random"),
    "growing": _ours("pairs with standard initialisation only", "off", _PLAIN),
    "vt": _ours("pairs and variance transfer", "paper", _PLAIN),
    "ra": _ours("pairs and rate adaptation", "off", _PAPER),
    "paper": _ours(
        "the paper's method: pairs, variance transfer, rate adaptation", "paper", _PAPER
    ),
    "paper-global-output": _ours(
        "paper, the output layer at the global rate", "paper", _rates("norm")
    ),
    "vt-own": _ours(
        "variance transfer, a schedule for each ring", "paper", _rates(None, schedule="own")
    ),
    "paper-own": _ours(
        "paper-global-output, a schedule for each ring", "paper", _rates("norm", schedule="own")
    ),
    "constraint": _ours("paper, scales as in the appendix's theorem", "constraint", _PAPER),
    "max": _ours("paper, rates by max(1, norm)", "paper", _rates("max", output=None)),
    "lars": Known("variance transfer and LARS, at 50 times the rate", _lars),
    "adam": _adam("moments kept at a growth", state_at_growth="keep"),
    "adam-reset": _adam("moments dropped at a growth", state_at_growth="reset"),
    "adam-ra": _adam("kept, with rate adaptation", adaptation="norm", state_at_growth="keep"),
    "avagrad": _avagrad("moments kept at a growth", state_at_growth="keep"),
    "avagrad-reset": _avagrad("moments dropped at a growth", state_at_growth="reset"),
    "avagrad-ra": _avagrad("kept, with rate adaptation", adaptation="norm", state_at_growth="keep"),
}

DEFAULT = [
    "fixed",
    "small",
    "net2net",
    "splitting",
    "firefly-split",
    "firefly",
    "gradmax",
    "paired",
]


def rivals_of(recipe: Recipe) -> tuple[str, ...]:
    """The matched rivals of a recipe; where its own schedule is linear, there is no second one.

    >>> from growthring.train.recipes import demo
    >>> from growthring.train import change
    >>> rivals_of(change(demo(), {"lr_schedule": "linear"}))
    ('fixed-flops', 'fixed-seconds')
    """
    return tuple(name for name, rival in MATCHED.items() if rival.lr_schedule != recipe.lr_schedule)


def line_up(asked: Sequence[str | Contender], recipe: Recipe) -> list[Contender]:
    """The contenders that were asked for, in that order, with `fixed` among them.

    Args:
        asked: names of known contenders, and your own; `fixed-flops` and `fixed-seconds` may be named, as
            they are in every comparison.
        recipe: that all of them change.

    >>> from growthring.train.recipes import demo
    >>> [contender.name for contender in line_up(["paired", "vt"], demo())]
    ['fixed', 'paired', 'vt']
    """
    contenders: list[Contender] = []
    for one in asked:
        if isinstance(one, Contender):
            if one.name in KNOWN or one.name in _RESERVED or not NAME.fullmatch(one.name):
                raise InputError(
                    f"a contender of your own cannot be called '{one.name}': choose letters, digits, - and _, "
                    f"and none of {', '.join(dict.fromkeys([*KNOWN, *MATCHED, 'lock']))}."
                )
            if "seed" in one.settings:
                raise InputError(f"contender '{one.name}': the seeds are those of the comparison.")
            contenders.append(one)
        elif one in KNOWN:
            contenders.append(KNOWN[one].of(one, recipe))
        elif one not in MATCHED:
            raise InputError(
                f"there is no contender '{one}'. Known: {', '.join(KNOWN)}; or one of your own with "
                "--variant NAME:KEY=VALUE."
            )
    names = [contender.name.lower() for contender in contenders]  # some file systems ignore case
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"contender '{twice[0]}' is given twice.")
    if not contenders:
        raise InputError("there are no contenders to compare.")
    return contenders if FIXED in names else [KNOWN[FIXED].of(FIXED, recipe), *contenders]


def parse_variant(text: str) -> Contender:
    """A contender from NAME:KEY=VALUE[,KEY=VALUE...]; commas inside brackets or quotes are the value's.

    >>> parse_variant("late:first_epochs=8,freeze=('stem', 'head')").settings
    {'first_epochs': 8, 'freeze': ('stem', 'head')}
    """
    name, separator, rest = text.partition(":")
    parts = [part.strip() for part in _split(rest) if part.strip()]
    if not separator or not name.strip() or not parts or not all("=" in part for part in parts):
        raise InputError(f"--variant {text!r}: expected NAME:KEY=VALUE[,KEY=VALUE...].")
    try:
        settings = parse_settings(parts)
    except InputError as error:
        raise InputError(f"contender '{name.strip()}': {error}") from error
    return Contender(name.strip(), settings, f"the recipe with {', '.join(parts)}")


def _split(text: str) -> list[str]:
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += character
    return parts
