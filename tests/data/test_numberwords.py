"""Number words: right in both languages, and each number on one side of the split only."""

import pytest
from hypothesis import given, strategies as st

from growthring.data.numberwords import english, german, number_pairs

KNOWN = {
    0: ("null", "zero"),
    1: ("eins", "one"),
    12: ("zwölf", "twelve"),
    16: ("sechzehn", "sixteen"),
    17: ("siebzehn", "seventeen"),
    30: ("dreißig", "thirty"),
    66: ("sechsundsechzig", "sixty-six"),
    71: ("einundsiebzig", "seventy-one"),
    100: ("einhundert", "one hundred"),
    101: ("einhunderteins", "one hundred and one"),
    111: ("einhundertelf", "one hundred and eleven"),
    1000: ("eintausend", "one thousand"),
    2021: ("zweitausendeinundzwanzig", "two thousand and twenty-one"),
    9999: (
        "neuntausendneunhundertneunundneunzig",
        "nine thousand nine hundred and ninety-nine",
    ),
    21_000: ("einundzwanzigtausend", "twenty-one thousand"),
}


@pytest.mark.parametrize("number", KNOWN)
def test_known_numbers(number):
    assert (german(number), english(number)) == KNOWN[number]


def number_of(words):
    """The number that English words mean."""
    ones = {english(n): n for n in range(20)}
    tens = {english(n): n for n in range(20, 100, 10)}
    total = part = 0
    for word in words.replace("-", " ").split():
        if word == "thousand":
            total, part = 1000 * part, 0
        elif word == "hundred":
            part *= 100
        elif word != "and":
            part += ones[word] if word in ones else tens[word]
    return total + part


@given(st.integers(0, 999_999))
def test_english_can_be_read_back(number):
    assert number_of(english(number)) == number


def test_german_tells_all_numbers_apart():
    assert len({german(number) for number in range(10_000)}) == 10_000


def test_the_split_is_always_the_same_and_has_each_number_once():
    first, second = number_pairs(), number_pairs()
    assert first == second
    everything = [pair for part in first for pair in part]
    assert len(everything) == len(set(everything)) == 10_000
    assert all(number_of(target) < 10_000 for _, target in first[2])
