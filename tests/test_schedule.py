"""Width schedules."""

import itertools

import pytest

from growthring.errors import PlanError
from growthring.schedule import width_fractions


def test_the_published_widths():
    assert [round(16 * f) for f in width_fractions(9, 0.25, 0.2)] == [4, 5, 6, 7, 8, 10, 12, 14, 16]


def test_even_growth_ends_at_the_full_width():
    fractions = width_fractions(5, 0.25, None)
    ratios = [b / a for a, b in itertools.pairwise(fractions)]
    assert fractions[0] == 0.25 and fractions[-1] == 1
    assert max(ratios) == pytest.approx(min(ratios))


def test_growth_is_capped():
    assert width_fractions(4, 0.5, 3.0) == [0.5, 1.0, 1.0, 1.0]
    assert width_fractions(1) == [1.0]
    assert width_fractions(3, 1.0, None) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0,), "stages=0"),
        ((2.5,), "stages=2.5"),
        ((3, 0), "start=0"),
        ((3, 1.5), "start=1.5"),
        ((3, 0.5, -0.1), "growth=-0.1"),
    ],
)
def test_wrong_numbers(arguments, text):
    with pytest.raises(PlanError, match=text):
        width_fractions(*arguments)
