"""What the settings of a recipe may be: of their types, finite, and not beyond any use.

Checked before anything is allocated for them, whether they come from a recipe, the command line or a run's folder.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from growthring.errors import InputError
from growthring.planning.options import OPTIONS
from growthring.train.kinds import describe, fits
from growthring.train.recipe import CODE, KINDS, Recipe

BOUNDS: dict[str, tuple[int, int]] = {
    f.name: f.metadata["bounds"]
    for f in (*dataclasses.fields(Recipe), *OPTIONS.values())
    if "bounds" in f.metadata
}
_STORED = {
    **KINDS,
    "model": str,
    "build": str | None,
    "task": str | None,
}  # functions by their names
_MOST_VALUES = 10**9  # of an example input: two of them are made to trace the model with


def misfit(name: str, value: Any) -> str | None:
    """What a setting is allowed to be as it is stored, if the value is not that; else None.

    >>> misfit("epochs", "many"), misfit("epochs", 10**18), misfit("epochs", 3)
    ('int', 'int from 1 to 1,000,000,000', None)
    """
    words = describe(_STORED[name], plainly=True)
    if not fits(value, _STORED[name]):
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
    for name, value in recipe.settings().items():
        allowed = None if name in CODE else misfit(name, value)
        if allowed is not None:
            raise InputError(f"{name}={value!r} cannot work: allowed is {allowed}.")
