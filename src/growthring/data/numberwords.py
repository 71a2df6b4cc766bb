"""Number words, German and English: a translation task that is generated, and whose answers are known.

German puts ones before tens ("einundzwanzig") and writes a number as one word, English does neither, so a model has
to cut words and to reorder them.
"""

from __future__ import annotations

import torch

_ONES_DE = (
    *("null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"),
    *(
        "zehn",
        "elf",
        "zwölf",
        "dreizehn",
        "vierzehn",
        "fünfzehn",
        "sechzehn",
        "siebzehn",
        "achtzehn",
        "neunzehn",
    ),
)
_TENS_DE = (
    *(
        "-",
        "-",
        "zwanzig",
        "dreißig",
        "vierzig",
        "fünfzig",
        "sechzig",
        "siebzig",
        "achtzig",
        "neunzig",
    ),
)
_ONES_EN = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *(
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ),
)
_TENS_EN = (
    *("-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"),
)
_BELOW = 10_000
_TEST = 500  # numbers for validation, and as many for testing


def german(number: int) -> str:
    """A whole number from 0 to 999,999 in German words.

    >>> german(1), german(21), german(1101), german(16017)
    ('eins', 'einundzwanzig', 'eintausendeinhunderteins', 'sechzehntausendsiebzehn')
    """
    return _german(number) + ("s" if number % 100 == 1 else "")


def _german(number: int) -> str:
    if number < 20:
        return _ONES_DE[number]
    if number < 100:
        ones = f"{_ONES_DE[number % 10]}und" if number % 10 else ""
        return ones + _TENS_DE[number // 10]
    size, name = (100, "hundert") if number < 1000 else (1000, "tausend")
    rest = _german(number % size) if number % size else ""
    return _german(number // size) + name + rest


def english(number: int) -> str:
    """A whole number from 0 to 999,999 in English words.

    >>> english(1), english(21), english(1101)
    ('one', 'twenty-one', 'one thousand one hundred and one')
    """
    if number < 20:
        return _ONES_EN[number]
    if number < 100:
        return _TENS_EN[number // 10] + (f"-{_ONES_EN[number % 10]}" if number % 10 else "")
    size, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    rest = number % size
    joint = " and " if rest < 100 else " "
    return f"{english(number // size)} {name}" + (joint + english(rest) if rest else "")


def number_pairs() -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[tuple[str, str]]]:
    """All numbers below 10,000 in a random order that is always the same: for training, validation and testing.

    >>> [len(part) for part in number_pairs()]
    [9000, 500, 500]
    """
    order = torch.randperm(_BELOW, generator=torch.Generator().manual_seed(0)).tolist()
    pairs = [(german(number), english(number)) for number in order]
    return pairs[: -2 * _TEST], pairs[-2 * _TEST : -_TEST], pairs[-_TEST:]
