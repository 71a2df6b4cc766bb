"""Learning-rate schedules: their shapes, their areas, what they refuse."""

import itertools
import re

import pytest
import torch

import growthring as gr
from growthring.errors import InputError
from growthring.train.lr_schedules import LR_SCHEDULES, lr_factor
from growthring.train.setup import learning_rate
from tests.train.runs import small


@pytest.mark.parametrize(
    ("kind", "share"), [("constant", 0.5), ("wsd", 0.444), ("linear", 0.25), ("cosine", 0.182)]
)
def test_area_that_is_left_after_the_half(kind, share):
    factors = [lr_factor(kind, step, 10_000) for step in range(10_000)]
    assert sum(factors[5_000:]) / sum(factors) == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize("kind", LR_SCHEDULES)
def test_from_the_peak_down_to_the_end(kind):
    factors = [lr_factor(kind, step, 50) for step in range(60)]
    assert factors[0] == 1.0 and all(b <= a for a, b in itertools.pairwise(factors))
    assert factors[50:] == [1.0 if kind == "constant" else 0.0] * 10  # a loader that gives more


def test_the_decay_of_wsd_is_a_share_of_the_run():
    factors = [lr_factor("wsd", step, 100, decay=0.5) for step in range(100)]
    assert factors[:51] == [1.0] * 51 and factors[75] == 0.5 and factors[99] == pytest.approx(0.02)


@pytest.mark.parametrize("kind", LR_SCHEDULES)
def test_a_warm_up_rises_to_the_schedule(kind):
    plain = [lr_factor(kind, step, 40) for step in range(40)]
    warm = [lr_factor(kind, step, 40, warmup_steps=4) for step in range(40)]
    assert warm[4:] == plain[4:]
    assert warm[:4] == pytest.approx([f * (s + 1) / 4 for s, f in enumerate(plain[:4])])


@pytest.mark.parametrize("kind", LR_SCHEDULES)
def test_as_a_scheduler_of_torch_and_in_a_recipe(kind):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.05)
    schedule = gr.lr_schedule(kind, 9, warmup_steps=2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    recipe = small(f"lr_schedule={kind}", "warmup_steps=2", "lr=0.05")
    for step in range(9):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(learning_rate(recipe, step, 9))
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("steps", 9), "lr_schedule='steps' is not one of wsd, linear, cosine, constant"),
        ((None, 9), "lr_schedule=None is not one of"),
        (("wsd", 0), "total_steps=0 is not a number of optimizer steps"),
        (("wsd", 9.5), "total_steps=9.5 is not"),
        (("wsd", True), "total_steps=True is not"),
    ],
)
def test_what_is_no_schedule(arguments, message):
    with pytest.raises(InputError, match=re.escape(message)):
        gr.lr_schedule(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": 0}, "lr_decay=0: "),
        ({"decay": 1.5}, "lr_decay=1.5: "),
        ({"decay": "0.2"}, "lr_decay='0.2': "),
        ({"warmup_steps": 10}, "warmup_steps=10 is not a number of steps within the run's 9"),
        ({"warmup_steps": -1}, "warmup_steps=-1 is not"),
    ],
)
def test_options_that_cannot_work(options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        gr.lr_schedule("wsd", 9, **options)


def test_a_preset_decides_and_what_is_given_wins():
    assert small("preset=default").lr_schedule == "wsd"
    assert small("preset=paper").lr_schedule == "cosine"
    assert small("preset=paper", "lr_schedule=linear").lr_schedule == "linear"
