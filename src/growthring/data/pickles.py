"""The official CIFAR pickles, read without running anything that a pickle names.

A pickle is a program that calls whatever functions it names. Here the few names that the official files hold stand
for inert records of their arguments, and any other name is refused; not even numpy sees the content unchecked.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_MOST_TUPLES = 200
_MEMO = {"PUT", "BINPUT", "LONG_BINPUT"}
_OPCODES = _MEMO | {
    *(
        "PROTO",
        "FRAME",
        "STOP",
        "MARK",
        "POP",
        "POP_MARK",
        "DUP",
        "MEMOIZE",
        "GET",
        "BINGET",
        "LONG_BINGET",
    ),
    *(
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "FLOAT",
        "BINFLOAT",
    ),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "LIST", "APPEND", "APPENDS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
}


class _Record:
    """Stands for an array or dtype: keeps what the pickle says about it."""

    __slots__ = ("arguments", "state")

    def __init__(self, *arguments: Any) -> None:
        self.arguments: tuple[Any, ...] = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes with protocol 2
            return lambda text, encoding: _latin1(text, encoding)
        known = {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }
        if (module, name) in known:
            # A new class each time: a pickle can set attributes of what it is given.
            return type(name, (_Record,), {"__slots__": ()})
        raise pickle.UnpicklingError(f"it names {module}.{name}, which official files do not")


def _latin1(text: str, encoding: str | bytes) -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")


def read_pickle(content: bytes) -> dict[str, Any]:
    """Read a pickled dict of arrays of bytes, lists, numbers and strings, as the CIFAR files hold.

    >>> read_pickle(pickle.dumps({b"labels": [1, 2]}, protocol=2))
    {'labels': [1, 2]}
    >>> read_pickle(pickle.dumps(print, protocol=2))
    Traceback (most recent call last):
    ValueError: it names __builtin__.print, which official files do not

    Raises:
        ValueError: not such a pickle; says why.
    """
    try:
        _check_opcodes(content)
        # fix_imports=False: names as they are in the file
        table = _Unpickler(io.BytesIO(content), encoding="bytes", fix_imports=False).load()
        if not isinstance(table, dict):
            raise ValueError(f"it holds a {type(table).__name__}, not a dict")
        return {_text(key): _array(value) for key, value in table.items()}
    except EOFError as error:
        raise ValueError("it ends too early") from error
    except Exception as error:  # a damaged pickle fails in any way: IndexError, MemoryError, ...
        raise ValueError(str(error) or type(error).__name__) from error


def _check_opcodes(content: bytes) -> None:
    """Refuses what official files do not use and what costs more than the file is long.

    An index of the unpickler's memo is allocated up to its number, and the hash of a tuple in a tuple in a
    tuple … goes as deep on the C stack: either lets a short file end the process.
    """
    if not content:
        raise EOFError
    tuples = 0
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if opcode.name not in _OPCODES:
            raise ValueError(f"it has the operation {opcode.name}, which official files do not")
        if opcode.name in _MEMO and not 0 <= int(argument or 0) <= count:
            raise ValueError(f"it numbers an object {argument}, and has {count} by then")
        tuples += opcode.name.startswith("TUPLE")
    if tuples > _MOST_TUPLES:
        raise ValueError(f"it has {tuples} tuples, official files have a few")


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin1")
    if isinstance(value, str):
        return value
    raise ValueError(f"a {type(value).__name__} where a name should be")


def _array(value: object) -> Any:
    """The array (n, m) of bytes that a record stands for; anything else as it is."""
    if not isinstance(value, _Record):
        return value
    match value.state:
        case (_, (int() as n, int() as m), _Record(arguments=(kind, *_)), fortran, bytes() as raw):
            if _text(kind) == "u1" and not fortran and min(n, m) >= 0:
                if len(raw) != math.prod((n, m)):
                    raise ValueError(f"an array of shape {(n, m)} has {len(raw)} bytes")
                return np.frombuffer(raw, dtype=np.uint8).reshape(n, m)
    raise ValueError("it holds an array that is not a plain table of bytes")
