"""A part of a long list of cases runs with every `make test`, the others with `make test-slow`."""

from collections.abc import Iterable
from typing import Any

import pytest


def every(number: int, cases: Iterable[Any]) -> list[Any]:
    """Each `number`-th case as it is, those between marked as slow; a tuple is one of several arguments.

    Of the product of two lists, a number that has no factor in common with the second one's length takes
    other pairs in each row.
    """
    return [
        case if i % number == 0 else _slow(*case if isinstance(case, tuple) else (case,))
        for i, case in enumerate(cases)
    ]


def _slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)
