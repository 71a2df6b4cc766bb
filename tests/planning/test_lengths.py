"""gr.plan's default schedule: stages, widths and lengths that fit the run."""

import itertools

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import growthring as gr
from growthring.core.presets import PRESETS
from growthring.errors import InputError, PlanError
from growthring.planning.layouts import layout_notes
from growthring.planning.schedule import filled_lengths, ramp_shares, rounded_lengths

X = torch.zeros(2, 4)


def mlp(width: int = 64) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    )


NET = mlp()


def planned(**options) -> gr.Plan:
    return gr.plan(NET, X, **options)


# What a newcomer asks for.


@pytest.mark.parametrize(
    ("options", "widths", "lengths"),
    [
        ({"epochs": 8}, [32, 64], (6, 2)),
        ({"epochs": 20}, [32, 64], (14, 6)),
        ({"epochs": 20, "stages": 3}, [16, 32, 64], (3, 11, 6)),
        ({"epochs": 20, "stages": 4}, [16, 26, 40, 64], (2, 4, 8, 6)),
        ({"epochs": 4}, [32, 64], (3, 1)),
        ({"epochs": 3}, [32, 64], (2, 1)),
        ({"epochs": 2}, [32, 64], (1, 1)),
        ({"epochs": 8, "start": 0.25, "grown_at": 0.5}, [16, 32, 64], (1, 3, 4)),
        ({"epochs": 30, "start": 0.25, "grown_at": 0.8}, [16, 32, 64], (5, 19, 6)),
        ({"epochs": [1, 2, 3, 4]}, [16, 26, 40, 64], (1, 2, 3, 4)),
        ({"epochs": 10, "start": 0.5, "grown_at": 0.5}, [32, 64], (5, 5)),
        (
            {"epochs": 100, "start": 0.1, "grown_at": 0.5},
            [6, 12, 20, 36, 64],
            (3, 8, 14, 25, 50),
        ),
        ({"epochs": 9, "widths": {"0": [8, 24, 64]}}, [8, 24, 64], (1, 5, 3)),
        ({"epochs": 9, "stages": 1}, [64], (9,)),
    ],
)
def test_epochs(options, widths, lengths):
    plan = planned(**options)
    assert plan.widths("0") == widths and plan.epochs == lengths
    assert plan.stage_steps == () and plan.total_steps is None
    assert plan.shares == pytest.approx([n / sum(lengths) for n in lengths])


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"total_steps": 1000}, (700, 300)),
        ({"total_steps": 1000, "start": 0.25, "grown_at": 0.5}, (113, 387, 500)),
        ({"total_steps": 10}, (7, 3)),
        ({"total_steps": 2}, (1, 1)),
        ({"total_steps": 9, "stages": 9}, (1,) * 9),
        ({"total_steps": 1000, "preset": "paper", "stages": 3, "growth": None}, (50, 60, 890)),
        ({"total_steps": 90, "schedule": "linear", "stages": 3}, (30, 30, 30)),
        ({"epochs": 8, "steps_per_epoch": 10}, (60, 20)),
        (
            {"epochs": 8, "steps_per_epoch": 10, "batch_size": 10, "batch_growth": 0.5},
            (42, 20),
        ),
    ],
)
def test_steps(options, steps):
    plan = planned(**options)
    assert plan.stage_steps == steps and plan.total_steps == sum(steps)


def test_without_a_length_there_are_shares():
    plan = planned()
    assert plan.epochs == plan.stage_steps == ()
    assert plan.shares == pytest.approx([0.7, 0.3])
    text = str(plan)
    assert "share of training" in text and "70%" in text and "of fixed-size training." in text
    fixed = [f.flops for f in plan.footprints]
    spent = sum(s * f for s, f in zip(plan.shares, fixed, strict=True))
    assert plan.flops_share == pytest.approx(spent / fixed[-1])


def test_steps_weigh_batches():
    plan = planned(total_steps=100, batch_size=(40, 20, 10))
    flops = [f.flops for f in plan.footprints]
    seen = [n * b for n, b in zip(plan.stage_steps, (40, 20, 10), strict=True)]
    spent = sum(n * f for n, f in zip(seen, flops, strict=True))
    assert plan.flops_share == pytest.approx(spent / (sum(seen) * flops[-1]))
    assert "(100 steps)" in str(plan)
    assert plan.as_dict()["steps"] == list(plan.stage_steps)


def test_even_stages_rather_than_a_last_jump():
    for stages in (2, 3, 4, 5, 6):
        widths = planned(stages=stages).widths("0")
        assert max(b / a for a, b in itertools.pairwise(widths)) <= 4 ** (1 / (stages - 1)) * 1.1


def test_a_shorter_run_keeps_the_last_doublings_and_says_so():
    (note,) = planned(epochs=3, start=0.25).notes
    assert note == (
        "3 epochs have room for 2 stages instead of 3, so the seed has 50% of the width instead of 25%."
    )
    assert planned(epochs=8, start=0.25).notes == planned(epochs=8).notes == ()


def test_stages_without_a_step_are_left_out():
    class Grouped(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.n, self.b = nn.Conv2d(3, 32, 3), nn.GroupNorm(4, 32), nn.Conv2d(32, 3, 1)

        def forward(self, x):
            return self.b(torch.relu(self.n(self.a(x))))

    for options in ({}, {"epochs": 8}, {"total_steps": 50}):
        plan = gr.plan(Grouped(), torch.zeros(1, 3, 8, 8), **options)
        rows = [tuple(plan.named_widths(t).values()) for t in range(plan.num_stages)]
        assert len(set(rows)) == plan.num_stages == len(plan.shares)


# Refused, with what to do.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"epochs": 1},
            "no room for a growth in 1 epoch with grown_at=0.7. A plan in epochs grows at",
        ),
        ({"total_steps": 1}, "no room for a growth in 1 step"),
        ({"epochs": 5, "stages": 9}, "5 epochs do not reach for 9 stages of at least one each"),
        ({"total_steps": 5, "stages": 9}, "Choose fewer stages, or more steps"),
        ({"epochs": 3, "total_steps": 4}, "both give the length of the run"),
        ({"steps_per_epoch": 4}, "it needs epochs="),
        ({"total_steps": 0}, "total_steps=0 is not a whole number"),
        ({"total_steps": 2.5}, "total_steps=2.5 is not a whole number"),
        ({"epochs": 5, "steps_per_epoch": -1}, "steps_per_epoch=-1"),
        ({"grown_at": 0}, "grown_at=0: the share of the training"),
        ({"grown_at": 1.0}, "grown_at=1.0"),
        ({"grown_at": "late"}, "grown_at='late'"),
        ({"first_epochs": 3}, "first_epochs=3 is of the schedules 'published' and 'recursive'"),
        ({"budget": 0.1}, "the cheapest takes"),
        ({"growth": 0.0}, "growth=0 never reaches the full width"),
        ({"epochs": [1, 2], "stages": 3}, "expected 3 whole numbers"),
        ({"epochs": [1, 2], "widths": {"0": [8, 16, 64]}}, "3 widths for 2 stages"),
        ({"round_to": 64}, "no width leaves room for a step"),
        ({"preset": "papers"}, "preset='papers' is not one of default, paper"),
    ],
)
def test_refusals(options, says):
    with pytest.raises((PlanError, InputError)) as caught:
        planned(**options)
    assert says in str(caught.value)


@pytest.mark.parametrize("unit", [{}, {"epochs": 60}, {"total_steps": 5000}])
@pytest.mark.parametrize("budget", [0.4, 0.6, 0.9])
def test_a_budget_chooses_when_the_last_growth_comes(unit, budget):
    plan = planned(budget=budget, **unit)
    assert budget - 0.03 < plan.flops_share <= budget
    note = plan.notes[0]
    assert note.startswith(f"budget {budget:.0%} of flops: full size after")
    late = [n for n in plan.notes if "has little time to learn" in n]
    assert bool(late) == (plan.shares[-1] < 0.2)


# Presets.


def test_the_paper_is_a_preset():
    plan = planned(preset="paper")
    assert plan.num_stages == 9 and plan.epochs == (8, 9, 11, 13, 16, 19, 23, 28, 33)
    assert plan.preset == "paper"
    options = gr.PlanOptions(preset="paper", stages=5)
    assert (options.stages, options.growth, options.schedule) == (5, 0.2, "published")
    assert options.start == options.seed_share == 0.25
    back = options.changed(preset="default")
    assert (back.stages, back.growth, back.schedule, back.epochs) == (None, None, "ramp", None)
    assert (back.start, back.grown_at) == (None, 0.7)
    assert gr.PlanOptions(epochs=9).changed(preset="paper", epochs=7).epochs == 7


def test_what_was_given_stays_when_the_length_changes():
    assert gr.PlanOptions(epochs=9).changed(total_steps=5).epochs is None
    assert gr.PlanOptions(total_steps=5).changed(epochs=9).total_steps is None


def test_a_grower_follows_the_plans_preset():
    for name, preset in PRESETS.items():
        plan = gr.plan(mlp(16), X, preset=name, stages=2)
        model = plan.build_seed()
        grower = gr.Grower(model, plan, gr.optim.Adam(model.parameters()))
        assert grower.method.mode == preset.variance_transfer
        assert (grower.noise, grower.fade) == (preset.noise, preset.fade)
        group = grower.optimizers[0].param_groups[0]
        assert {key: group[key] for key in preset.rings} == preset.rings


def test_what_is_given_wins_over_the_preset():
    plan = gr.plan(mlp(16), X, preset="paper", stages=2)
    model = plan.build_seed()
    optimizer = gr.optim.SGD(model.parameters(), lr=0.1, rate_adaptation=None)
    grower = gr.Grower(model, plan, optimizer, variance_transfer="off", noise=0.0, fade=0.5)
    assert (grower.method.mode, grower.noise, grower.fade) == ("off", 0.0, 0.5)
    group = optimizer.param_groups[0]
    assert group["rate_adaptation"] is None and group["state_at_growth"] == "reset"
    assert group["output_rate"] is None
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert optimizer.param_groups[1]["state_at_growth"] == "reset"


# The arithmetic.


@settings(deadline=None)
@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8),
    st.floats(0.01, 0.99),
    st.integers(8, 10**6),
)
def test_lengths_are_whole_and_add_up(fractions, grown_at, total):
    shares = ramp_shares(sorted(fractions), grown_at)
    assert sum(shares) == pytest.approx(1) and min(shares) >= 0
    for lengths in (rounded_lengths(shares, total), filled_lengths(shares, total)):
        assert sum(lengths) == total and len(lengths) == len(fractions)
    assert min(filled_lengths(shares, total)) >= 1


# Thin networks in channels_last.


class Shortcut(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.short = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 32, 1, stride=2)
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        return self.head(self.short(self.stem(x)).mean((2, 3)))


def test_thin_shortcuts_in_channels_last_are_told():
    x = torch.zeros(2, 1, 8, 8)
    last = Shortcut().to(memory_format=torch.channels_last)
    assert layout_notes(gr.plan(Shortcut(), x, start=0.25)) == []
    assert gr.plan(last, x).notes == ()
    (note,) = gr.plan(last, x, start=0.25).notes
    assert "'short' (a 1x1 convolution with a stride) has fewer than 8 input channels" in note
    ambiguous = torch.empty_strided((2, 1, 8, 8), (64, 1, 8, 1)).zero_()
    assert len(gr.plan(Shortcut(), ambiguous, start=0.25).notes) == 1, (
        "a grey image whose strides say channels_last"
    )


def test_a_grower_warns_of_a_seed_that_was_made_channels_last():
    plan = gr.plan(Shortcut(), torch.zeros(2, 1, 8, 8), start=0.25)
    seed = plan.build_seed().to(memory_format=torch.channels_last)
    with pytest.warns(gr.GrowthWarning, match="oneDNN is known to corrupt memory"):
        gr.Grower(seed, plan)
