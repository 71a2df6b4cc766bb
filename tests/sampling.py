"""A part of a long list of cases runs with every `make test`, the others with `make test-slow`."""

from collections.abc import Iterable
from typing import Any

import pytest


def every(number: int, cases: Iterable[Any]) -> list[Any]:
    """Each `number`-th case as it is, those between marked as slow."""
    return [
        case if i % number == 0 else pytest.param(case, marks=pytest.mark.slow)
        for i, case in enumerate(cases)
    ]
