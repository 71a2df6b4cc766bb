"""Sizes that depend on the values of tensors (the tokens that an expert gets): numbers that stand for them."""

from __future__ import annotations

import re
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

_UNKNOWN = re.compile(r"u(\d+)")


def stand_in(size: int | torch.SymInt) -> int:
    """A size as a number: what torch.export knows, or one that no real size has, the same for the same unknown.

    Each unknown has a large prime of its own, times what makes it divisible by small numbers.

    >>> stand_in(12)
    12
    """
    if isinstance(size, int):
        return size
    expression: Any = size.node.expr
    numbers = {}
    for symbol in expression.free_symbols:
        match = _UNKNOWN.fullmatch(str(symbol))
        if match is None:
            return int(size)
        numbers[symbol] = sympy.Integer(5040 * sympy.prime(1000 + int(match[1])))
    result = expression.xreplace(numbers)
    return int(result) if result.is_Integer else int(size)
