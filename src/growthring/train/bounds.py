"""What the settings of a recipe may be: of their types, finite, and not beyond any use.

Checked before anything is allocated for them, whether they come from a recipe, the command line or a run's folder.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from growthring.errors import InputError
from growthring.train.recipe import Recipe, fits

BOUNDS: dict[str, tuple[int, int]] = {
    "input_shape": (1, 100_000),
    "num_train": (1, 10**12),
    "side": (1, 10_000),
    "shift": (0, 10_000),
    "stages": (1, 1_000),
    "epochs": (1, 10**9),
    "first_epochs": (1, 10**9),
    "batch_size": (1, 10**7),
    "round_to": (1, 10**6),
    "warmup_steps": (0, 10**15),
    "seed": (0, 2**63 - 1),
}
KINDS = {f.name: str(f.type) for f in dataclasses.fields(Recipe) if f.name != "model"}
_MOST_VALUES = 10**9  # of an example input: two of them are made to trace the model with
_WORDS = {
    "tuple[int, ...]": "a list of int",
    "tuple[str, ...]": "a list of str",
    "Mapping[str, Any]": "an object",
    "|": "or",
}


def misfit(name: str, value: Any) -> str | None:
    """What a setting is allowed to be, if the value is not that; else None.

    >>> misfit("epochs", "many"), misfit("epochs", 10**18), misfit("epochs", 3)
    ('int', 'int from 1 to 1,000,000,000', None)
    """
    kind = words = KINDS[name]
    for code, text in _WORDS.items():
        words = words.replace(code, text)
    if not fits(value, kind):
        return words
    if isinstance(value, float) and not math.isfinite(value):
        return f"{words}, finite"
    low, high = BOUNDS.get(name, (-(2**63), 2**63 - 1))
    values = value if isinstance(value, (list, tuple)) else [value]
    if not all(low <= v <= high for v in values if isinstance(v, int)):
        return f"{words} from {low:,} to {high:,}"
    if name == "input_shape" and math.prod(value) > _MOST_VALUES:
        return f"{words}, at most {_MOST_VALUES:,} numbers in all"
    return None


def check_bounds(recipe: Recipe) -> None:
    """Refuses settings that are not what they may be.

    Raises:
        InputError: one is not; the message names it.
    """
    for name in KINDS:
        value = getattr(recipe, name)
        allowed = misfit(name, value)
        if allowed is not None:
            raise InputError(f"{name}={value!r} cannot work: allowed is {allowed}.")
