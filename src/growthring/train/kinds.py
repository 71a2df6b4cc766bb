"""Kinds of values: whether a value is what an annotation asks for, and how to say what that is."""

from __future__ import annotations

import collections.abc
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

_LISTS = (tuple, collections.abc.Sequence)


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, as `typing.get_type_hints` gives it.

    A whole number is a float, True is no number, and JSON's lists are tuples. Of a `Literal` the type counts: what
    uses the value says which ones it knows.

    >>> fits(3, int | None), fits("3", int | None), fits([1, 2], tuple[int, ...])
    (True, False, True)
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is Literal:
        return any(type(value) is type(one) for one in arguments)
    if origin in _LISTS:
        if not isinstance(value, tuple | list):
            return False
        if origin is tuple and arguments[-1] is not ...:
            pairs = zip(value, arguments, strict=False)
            return len(value) == len(arguments) and all(fits(v, one) for v, one in pairs)
        return all(fits(v, arguments[0]) for v in value)
    if origin is collections.abc.Mapping:
        return isinstance(value, collections.abc.Mapping)
    if origin is collections.abc.Callable:
        return callable(value)
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, kind)


def is_text(kind: Any) -> bool:
    """Whether a type has texts only.

    >>> is_text(str), is_text(Literal["a", "b"]), is_text(str | None)
    (True, True, False)
    """
    is_literal = get_origin(kind) is Literal and all(isinstance(v, str) for v in get_args(kind))
    return kind is str or is_literal


def has_parts(kind: Any) -> bool:
    """Whether a type is a mapping, whose entries can be set one by one.

    >>> has_parts(collections.abc.Mapping[str, Any]), has_parts(int)
    (True, False)
    """
    return get_origin(kind) is collections.abc.Mapping


def describe(kind: Any, plainly: bool = False) -> str:
    """A type as one writes it; or plainly, as JSON has it.

    >>> describe(tuple[int, ...] | None), describe(tuple[int, ...] | None, plainly=True)
    ('tuple[int, ...] | None', 'a list of int or None')
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return (" or " if plainly else " | ").join(describe(one, plainly) for one in arguments)
    if kind is ... or kind is NoneType:
        return "..." if kind is ... else "None"
    if is_text(kind):
        return "str"
    if origin is None:
        return str(getattr(kind, "__name__", kind))
    if plainly and origin in _LISTS:
        each = describe(arguments[0], plainly)
        return f"a list of {each}" if origin is not tuple or ... in arguments else "a list"
    if plainly and origin is collections.abc.Mapping:
        return "an object"
    if origin is collections.abc.Callable:
        return "a function"
    return f"{origin.__name__}[{', '.join(describe(one) for one in arguments)}]"
