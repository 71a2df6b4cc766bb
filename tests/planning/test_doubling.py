"""Schedule "doubling" and times of growth that are given."""

import itertools

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.errors import PlanError

X = torch.zeros(2, 4)


def net(*widths):
    sizes = [4, *widths, 2]
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])


def widths(*full, **options):
    plan = gr.plan(net(*full), X, schedule="doubling", **options)
    return [plan.widths(str(2 * i)) for i in range(len(full))]


@pytest.mark.parametrize(
    ("full", "expected"),
    [
        (64, [16, 32, 64]),
        (128, [32, 64, 128]),
        (96, [32, 48, 96]),  # 24 is no multiple of 16
        (80, [16, 48, 80]),
        (48, [12, 32, 48]),  # a quarter is less than 16
        (24, [6, 12, 24]),
        (50, [12, 26, 50]),
        (8, [2, 4, 8]),
    ],
)
def test_halves_in_multiples_of_16_where_the_width_is_one(full, expected):
    assert widths(full, stages=3) == [expected]
    assert widths(full) == [expected[1:]], "one doubling"


def test_the_number_of_stages_says_how_narrow_it_begins():
    assert widths(128, stages=2) == [[64, 128]]
    assert widths(128, stages=5) == [[8, 16, 32, 64, 128]]
    assert widths(128, start=0.5) == [[64, 128]]
    assert widths(128, growth_at=(0.3,)) == [[64, 128]]


def test_widths_that_step_together_stay_together():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 96), nn.Linear(4, 96), nn.Linear(96, 2)

        def forward(self, x):
            return self.c(self.a(x) + self.b(x))

    plan = gr.plan(Sum(), X, schedule="doubling", stages=3)
    assert plan.widths("a") == [32, 48, 96]
    model = plan.build_seed()
    grower = gr.Grower(model, plan)
    assert all(grower.grow().change.relative <= 1e-5 for _ in range(2))


def test_lengths_are_those_of_the_ramp():
    ramp, doubling = (
        gr.plan(net(64), X, total_steps=1000, schedule=s) for s in ("ramp", "doubling")
    )
    assert doubling.stage_steps == ramp.stage_steps


@pytest.mark.parametrize("schedule", ["ramp", "doubling", "linear"])
def test_growth_comes_at_the_times_that_are_given(schedule):
    at = {"schedule": schedule, "growth_at": (0.2, 0.6)}
    assert gr.plan(net(64), X, total_steps=1000, **at).stage_steps == (200, 400, 400)
    assert gr.plan(net(64), X, epochs=10, **at).epochs == (2, 4, 4)
    assert gr.plan(net(64), X, **at).shares == pytest.approx((0.2, 0.4, 0.4))


def test_a_growth_comes_at_its_step():
    plan = gr.plan(net(16), X, total_steps=20, schedule="doubling", growth_at=(0.25, 0.5))
    model = plan.build_seed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grower = gr.Grower(model, plan, optimizer=optimizer)
    grew = []
    for step in range(20):
        model(X).sum().backward()
        optimizer.step()
        if grower.step().growth is not None:
            grew.append(step + 1)
    assert grew == [5, 10]


def test_a_budget_chooses_when_doublings_come():
    plan = gr.plan(net(64), X, total_steps=1000, schedule="doubling", budget=0.6)
    assert 0.55 < plan.flops_share <= 0.6
    with pytest.raises(PlanError, match=r"budget=0.1: no schedule .* the cheapest takes"):
        gr.plan(net(64), X, total_steps=1000, schedule="doubling", budget=0.1, start=0.5)
    with pytest.raises(PlanError, match="no schedule"):  # the times are as they were asked for
        gr.plan(net(64), X, total_steps=1000, growth_at=(0.1, 0.2), budget=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": 9}, r"'0' is 64 wide and cannot be halved 8 times: choose at most 7 stages"),
        ({"growth": 0.3}, r"growth=0.3: schedule 'doubling' grows to twice the width"),
        ({"growth_at": (0.5, 0.2)}, r"growth_at=\(0.5, 0.2\): expected shares"),
        ({"growth_at": 0.5}, r"growth_at=0.5: expected shares"),
        ({"growth_at": ()}, r"growth_at=\(\): expected shares"),
        ({"growth_at": (0.2, 1.0)}, r"growth_at=\(0.2, 1.0\): expected shares"),
        ({"growth_at": ("0.2",)}, r"growth_at=\('0.2',\): expected shares"),
        ({"growth_at": (0.2,), "stages": 3}, r"1 growth for 2 stages, but stages=3"),
        ({"growth_at": (0.2,), "epochs": [1, 2]}, r"a list of epochs says already when"),
        ({"growth_at": (0.2,), "schedule": "published"}, r"schedule='published' says already"),
        ({"first_epochs": 3}, r"first_epochs=3 is of the schedules"),
    ],
)
def test_what_does_not_fit(options, message):
    with pytest.raises(PlanError, match=message):
        gr.plan(net(64), X, **{"schedule": "doubling", **options})
