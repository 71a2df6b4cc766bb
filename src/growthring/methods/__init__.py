"""Growth methods: the paper's and its rivals, behind one protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from growthring.errors import InputError
from growthring.methods.base import (
    Growth as Growth,
    GrowthMethod as GrowthMethod,
    Job as Job,
    SearchCost as SearchCost,
    Step as Step,
)
from growthring.methods.firefly import FireFly as FireFly, FireFlySplit as FireFlySplit
from growthring.methods.gradmax import GradMax as GradMax
from growthring.methods.net2net import Net2Net as Net2Net
from growthring.methods.paired import Paired as Paired
from growthring.methods.random import Random as Random
from growthring.methods.splitting import Splitting as Splitting

METHODS: dict[str, type[GrowthMethod]] = {
    method.name: method
    for method in (Paired, Net2Net, Splitting, FireFlySplit, FireFly, GradMax, Random)
}


def make_method(name: str, options: Mapping[str, Any] | None = None) -> GrowthMethod:
    """A method by name, with some of its hyperparameters.

    >>> make_method("paired", {"variance_transfer": "off"})
    Paired(variance_transfer='off')
    """
    if name not in METHODS:
        raise InputError(f"method='{name}' is not known; there are {', '.join(METHODS)}.")
    kind = METHODS[name]
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    options = dict(options or {})
    unknown = [key for key in options if key not in known]
    if unknown:
        listed = ", ".join(known) or "none"
        raise InputError(f"method '{name}' has no option '{unknown[0]}'; it has {listed}.")
    return kind(**options)
