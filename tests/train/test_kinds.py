"""Kinds: which values fit an annotation, and how it is said."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pytest

from growthring.train.kinds import describe, fits

PAIRS = Mapping[str, Sequence[int]] | Sequence[tuple[str, Sequence[int]]] | None


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (int, [3, -1], [3.0, True, "3", None]),
        (float, [3, 0.5], [True, "3", None, 1j]),
        (bool, [True], [1, "true", None]),
        (str, ["a"], [3, None, b"a"]),
        (int | None, [3, None], [3.5, "3", False]),
        (tuple[int, ...], [(1, 2), [1, 2], ()], [3, (1.5,), (True,), "12"]),
        (Sequence[str] | None, [("a",), ["a"], None], ["a", [1]]),
        (Mapping[str, Any], [{}, {"a": 1}], [None, [], 3]),
        (Literal["a", "b"], ["a", "c"], [3, None]),
        (Callable[..., int], [len, int], [3, None, "len"]),
        (PAIRS, [{"a": [1]}, [("a", [1])], [["a", [1]]], None], [3, "a", [("a",)], [(1, [1])]]),
        (Any, [3, None], []),
    ],
    ids=str,
)
def test_fits(kind, right, wrong):
    assert all(fits(value, kind) for value in right)
    assert not any(fits(value, kind) for value in wrong)


@pytest.mark.parametrize(
    ("kind", "text", "plain"),
    [
        (int | None, "int | None", "int or None"),
        (tuple[str, ...], "tuple[str, ...]", "a list of str"),
        (Mapping[str, Any], "Mapping[str, Any]", "an object"),
        (Literal["a", "b"], "str", "str"),
        (Callable[..., int] | None, "a function | None", "a function or None"),
        (
            PAIRS,
            "Mapping[str, Sequence[int]] | Sequence[tuple[str, Sequence[int]]] | None",
            "an object or a list of a list or None",
        ),
    ],
    ids=str,
)
def test_describe(kind, text, plain):
    assert (describe(kind), describe(kind, plainly=True)) == (text, plain)
