"""Schedules: widths, epochs and batch sizes."""

import itertools
import math

import pytest

from growthring.errors import PlanError
from growthring.planning.schedule import (
    batch_sizes,
    check_list,
    check_stages,
    rate_factors,
    recursive_widths,
    stage_epochs,
    width_fractions,
)


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
        ((3, 0.5, math.nan), "growth=nan"),
        ((3, 0.5, math.inf), "growth=inf"),
        ((3, 0.5, True), "growth=True"),
        ((3, 0.5, "0.2"), "growth='0.2'"),
        ((3, math.nan), "start=nan"),
        ((3, -0.25), "start=-0.25"),
        ((3, "a"), "start='a'"),
        ((3, None), "start=None"),
        ((True,), "stages=True"),
        (("3",), "stages='3'"),
        (
            (3, 0.5, 0.2, "exponential"),
            "schedule='exponential' is not one of ramp, doubling, published",
        ),
    ],
)
def test_wrong_numbers(arguments, text):
    with pytest.raises(PlanError, match=text):
        width_fractions(*arguments)


def test_a_growth_rate_beyond_all_numbers_reaches_the_full_width():
    assert width_fractions(9, 0.25, 1e300) == [0.25] + [1.0] * 8


def test_linear_widths_grow_by_the_same_amount():
    fractions = width_fractions(5, 0.2, schedule="linear")
    steps = [b - a for a, b in itertools.pairwise(fractions)]
    assert fractions[0] == 0.2 and fractions[-1] == 1.0
    assert max(steps) == pytest.approx(0.2) and min(steps) == pytest.approx(0.2)
    assert width_fractions(1, schedule="linear") == [1.0]


@pytest.mark.parametrize("schedule", ["published", "recursive", "linear"])
@pytest.mark.parametrize("stages", [1, 2, 5, 9])
def test_fractions_never_shrink_and_end_at_one(schedule, stages):
    for growth in (None, 0, 0.1, 0.2, 1.0):
        fractions = width_fractions(stages, 0.25, growth, schedule)
        assert len(fractions) == stages and fractions[-1] == 1.0
        assert fractions == sorted(fractions) and min(fractions) > 0


# Equation 6 to the letter.


def test_recursive_widths_do_not_grow_from_four_channels():
    assert recursive_widths(4, 16, 9) == [4] * 8 + [16]


def test_recursive_widths():
    # 16 + 2·round(1.6) = 20, 20 + 2·round(2.0) = 24, 24 + 2·round(2.4) = 28, …
    assert recursive_widths(16, 64, 9) == [16, 20, 24, 28, 34, 40, 48, 58, 64]
    assert recursive_widths(16, 64, 5, growth=1.0) == [16, 32, 64, 64, 64], "capped"
    assert recursive_widths(10, 40, 4, growth=0.5, round_to=1) == [10, 15, 23, 40]
    assert recursive_widths(10, 40, 3, growth=0) == [10, 10, 40]
    assert recursive_widths(4, 16, 1) == [16]
    assert recursive_widths(4, 16, 2) == [4, 16]


# Epochs.


@pytest.mark.parametrize(
    ("epochs", "first", "expected"),
    [
        (160, 8, [8, 9, 11, 13, 16, 19, 23, 28, 33]),
        (200, 10, [10, 12, 14, 17, 20, 24, 29, 35, 39]),
        (90, 4, [4, 4, 5, 6, 8, 9, 11, 14, 29]),
    ],
)
def test_the_published_epochs(epochs, first, expected):
    assert stage_epochs(epochs, 9, first) == expected
    assert sum(expected) == epochs


def test_recursive_epochs():
    assert stage_epochs(160, 9, schedule="recursive") == [8, 10, 12, 14, 17, 20, 24, 29, 26]


def test_linear_epochs_leave_the_remainder_to_the_last_stage():
    assert stage_epochs(160, 9, schedule="linear") == [17] * 8 + [24]
    assert stage_epochs(9, 9, schedule="linear") == [1] * 9


def test_a_product_that_is_whole_is_not_floored_away():
    # 10 · 1.1² is 12.100000000000001, but 100 · 1.1^1 is 110.00000000000001 and 50 · 1.02^1 is 51.0
    assert stage_epochs(1000, 3, 100, 0.1)[:2] == [100, 110]
    assert stage_epochs(1000, 3, 10, 0.7)[:2] == [10, 17]
    assert stage_epochs(1000, 4, 100, 0.15)[1] == 115, "100 · 1.15 is 114.99999999999999"


@pytest.mark.parametrize("schedule", ["published", "recursive", "linear"])
def test_one_stage_takes_all_epochs(schedule):
    assert stage_epochs(7, 1, schedule=schedule) == [7]


def test_epochs_that_do_not_reach_explain_themselves():
    with pytest.raises(PlanError) as caught:
        stage_epochs(100, 9)
    text = str(caught.value)
    assert "100 epochs do not reach for 9 stages" in text
    assert "8 + 9 + 11 + 13 + 16 + 19 + 23 + 28 = 127, which leaves -27 for the last" in text
    assert "fewer stages" in text and "first_epochs" in text


def test_exactly_one_epoch_for_the_last_stage_is_a_plan_and_none_is_not():
    assert stage_epochs(128, 9)[-1] == 1
    with pytest.raises(PlanError, match="leaves 0 for the last"):
        stage_epochs(127, 9)


def test_too_few_epochs_for_a_linear_schedule():
    with pytest.raises(PlanError, match="3 epochs do not reach for 9 stages"):
        stage_epochs(3, 9, schedule="linear")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 3), "epochs=0"),
        ((-5, 3), "epochs=-5"),
        ((True, 3), "epochs=True"),
        ((2.5, 3), "epochs=2.5"),
        (("9", 3), "epochs='9'"),
        ((None, 3), "epochs=None"),
        ((9, 0), "stages=0"),
        ((9, 3, 0), "first_epochs=0"),
        ((9, 3, -1), "first_epochs=-1"),
        ((9, 3, 1.5), "first_epochs=1.5"),
        ((9, 3, True), "first_epochs=True"),
        ((9, 3, 1, -0.2), "epoch_growth=-0.2"),
        ((9, 3, 1, None), "epoch_growth=None"),
        ((9, 3, 1, math.nan), "epoch_growth=nan"),
        ((9, 3, 1, 0.2, "cubic"), "schedule='cubic'"),
    ],
)
def test_wrong_epochs(arguments, text):
    with pytest.raises(PlanError, match=text):
        stage_epochs(*arguments)


# Batch sizes.


def test_batches_are_larger_in_earlier_stages():
    assert batch_sizes(128, 4, 0.2) == [222, 185, 154, 128]
    assert batch_sizes(128, 9, 0.2) == [552, 460, 383, 319, 266, 222, 185, 154, 128]
    assert batch_sizes(128, 3) == [128, 128, 128]
    assert batch_sizes(1, 1, 5.0) == [1]
    assert batch_sizes(1, 4, 0.2) == [1, 1, 1, 1], "a step of 0.2 rounds to 0"


@pytest.mark.parametrize("base", [0, -1, True, 1.5, "8", None])
def test_wrong_batch_size(base):
    with pytest.raises(PlanError, match="batch_size="):
        batch_sizes(base, 3)


@pytest.mark.parametrize("growth", [-0.1, math.nan, math.inf, True, "0.2", None])
def test_wrong_batch_growth(growth):
    with pytest.raises(PlanError, match="batch_growth="):
        batch_sizes(8, 3, growth)


def test_learning_rates_follow_batch_sizes():
    assert rate_factors([256, 128, 64], "none") == [1.0, 1.0, 1.0]
    assert rate_factors([256, 128, 64], "linear") == [4.0, 2.0, 1.0]
    assert rate_factors([256, 128, 64], "sqrt") == [2.0, math.sqrt(2), 1.0]
    with pytest.raises(PlanError, match="batch_rate='square' is not one of none, linear, sqrt"):
        rate_factors([1], "square")


# Explicit lists.


def test_explicit_lists():
    assert check_list("epochs", (1, 2, 3), 3) == [1, 2, 3]
    assert check_list("epochs", range(1, 4), 3) == [1, 2, 3]


@pytest.mark.parametrize(
    "values", [[], [1, 2], [1, 2, 3, 4], [1, 0, 2], [1, -1, 2], [1, 2.0, 3], [1, True, 3], "123"]
)
def test_wrong_lists(values):
    with pytest.raises(PlanError, match=r"epochs=.*expected 3 whole numbers, each at least 1"):
        check_list("epochs", values, 3)


@pytest.mark.parametrize("stages", [0, -1, 1.0, True, None, "3", [3]])
def test_wrong_stages(stages):
    with pytest.raises(PlanError, match="a plan needs a whole number of stages"):
        check_stages(stages)
