"""gr.plan: epochs, batch sizes, costs and budgets of a plan."""

import json
import math
import re
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import growthring as gr
from growthring.errors import GrowthError, PlanError
from growthring.planning.costs import footprint
from tests.growth_contract import Net, attributes

X = torch.zeros(2, 4)


def mlp(width: int = 16) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    )


# The paper's schedules; the default one is in test_lengths.py.
published = partial(gr.plan, preset="paper")


def small(**options) -> gr.Plan:
    """A plan of three stages of a tiny network."""
    return published(mlp(), X, **({"stages": 3, "growth": None} | options))


def share(plan: gr.Plan) -> float:
    """Σ T_t F_t / (ΣT · F_full), with F counted by hand."""
    flops = [
        2 * (4 * a + a * b + b * 3) for a, b in zip(plan.widths("0"), plan.widths("2"), strict=True)
    ]
    spent = sum(n * f for n, f in zip(plan.epochs, flops, strict=True))
    return spent / (sum(plan.epochs) * flops[-1])


# Schedules.


def test_the_published_schedule():
    plan = published(mlp(64), X)
    assert plan.num_stages == 9
    assert plan.epochs == (8, 9, 11, 13, 16, 19, 23, 28, 33)
    assert plan.batch_sizes == (128,) * 9 and plan.rate_factors == (1.0,) * 9
    assert plan.widths("0") == [16, 20, 24, 28, 34, 40, 48, 58, 64]
    assert plan.flops_share == pytest.approx(share(plan))
    assert plan.notes == ()


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        (200, (10, 12, 14, 17, 20, 24, 29, 35, 39)),
        (90, (4, 4, 5, 6, 8, 9, 11, 14, 29)),
        (20, (1, 1, 1, 1, 2, 2, 2, 3, 7)),
        (14, (1, 1, 1, 1, 2, 2, 2, 3, 1)),
    ],
)
def test_first_epochs_follow_the_epochs(epochs, expected):
    assert published(mlp(), X, epochs=epochs).epochs == expected


def test_first_epochs_and_their_growth_can_be_given():
    assert small(epochs=30, first_epochs=5, epoch_growth=1.0).epochs == (5, 10, 15)
    assert small(epochs=30, first_epochs=5, epoch_growth=0).epochs == (5, 5, 20)
    assert small(stages=1, epochs=30).epochs == (30,)


def test_linear_schedule():
    plan = small(stages=4, schedule="linear", epochs=18)
    assert plan.widths("0") == [4, 8, 12, 16] and plan.epochs == (4, 4, 4, 6)


def test_recursive_schedule():
    plan = published(mlp(64), X, schedule="recursive", first_epochs=8)
    assert plan.widths("0") == [16, 20, 24, 28, 34, 40, 48, 58, 64]
    assert plan.epochs == (8, 10, 12, 14, 17, 20, 24, 29, 26)
    plan = published(mlp(16), X, schedule="recursive")
    assert plan.widths("0") == [4] * 8 + [16], "a step of 0.8 rounds to 0"
    assert sum("the widths leave no room for a step" in note for note in plan.notes) == 7


class Attention(nn.Module):
    """Heads × head size must equal the residual width: two groups that step together."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.embed, self.head = heads, nn.Linear(5, width), nn.Linear(width, 3)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        x = self.embed(x)
        b, t, c = x.shape
        q, k, v = (
            f(x).view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        y = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return self.head(self.o(y.transpose(1, 2).reshape(b, t, c)))


@pytest.mark.parametrize("schedule", ["published", "recursive", "linear"])
@pytest.mark.each(4)
def test_groups_that_step_together_do_so_in_every_schedule(schedule):
    plan = published(Attention(), torch.zeros(2, 3, 5), stages=5, schedule=schedule)
    for stage, found in enumerate(plan.footprints):
        named = plan.named_widths(stage)
        assert named["embed"] == named["o"] == 4 * named["v"] == 4 * named["q/2"], (stage, named)
        assert found.parameters == plan.num_parameters(stage)
    seed = plan.build_seed()
    grower = gr.Grower(seed, plan)
    for _ in range(4):
        grower.grow()
    assert seed(torch.zeros(2, 3, 5)).shape == (2, 3, 3)


# Lists over stages.


def test_explicit_lists():
    plan = small(epochs=[1, 2, 3], batch_size=(32, 16, 8), widths={"0": [2, 6, 16]})
    assert plan.epochs == (1, 2, 3) and plan.batch_sizes == (32, 16, 8)
    assert plan.widths("0") == [2, 6, 16]
    assert plan.flops_share == pytest.approx(share(plan))
    assert small(epochs=range(1, 4)).epochs == (1, 2, 3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"epochs": [1, 2]}, "epochs=[1, 2]: expected 3 whole numbers, each at least 1"),
        ({"epochs": [1, 0, 2]}, "epochs=[1, 0, 2]"),
        ({"epochs": [1, 2.5, 2]}, "epochs=[1, 2.5, 2]"),
        ({"epochs": [True, 2, 2]}, "epochs=[True, 2, 2]"),
        ({"epochs": "160"}, "epochs="),
        ({"epochs": 30.0}, "epochs=30.0"),
        ({"epochs": True}, "epochs=True"),
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": -3}, "epochs=-3"),
        ({"first_epochs": 0}, "first_epochs=0"),
        ({"first_epochs": 2.5}, "first_epochs=2.5"),
        ({"first_epochs": True}, "first_epochs=True"),
        ({"epoch_growth": -0.1}, "epoch_growth=-0.1"),
        ({"epoch_growth": None}, "epoch_growth=None"),
        ({"batch_size": [8, 4]}, "batch_size=[8, 4]: expected 3 whole numbers"),
        ({"batch_size": [8, 4, 0]}, "batch_size=[8, 4, 0]"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": True}, "batch_size=True"),
        ({"batch_size": 8.0}, "batch_size=8.0"),
        ({"batch_size": None}, "batch_size=None"),
        ({"batch_size": "8"}, "batch_size="),
        ({"batch_growth": -0.5}, "batch_growth=-0.5"),
        ({"batch_growth": math.nan}, "batch_growth=nan"),
        ({"batch_rate": "cubic"}, "batch_rate='cubic' is not one of none, linear, sqrt"),
        ({"batch_rate": None}, "batch_rate=None"),
        ({"batch_memory": 0}, "batch_memory=0"),
        ({"batch_memory": -1}, "batch_memory=-1"),
        ({"batch_memory": "8GB"}, "batch_memory='8GB'"),
        ({"batch_memory": math.nan}, "batch_memory=nan"),
        ({"batch_memory": math.inf}, "batch_memory=inf"),
        (
            {"schedule": "cubic"},
            "schedule='cubic' is not one of ramp, doubling, published, recursive, linear",
        ),
        ({"schedule": None}, "schedule=None"),
        ({"optimizer": "adagrad"}, "optimizer='adagrad' is not one of sgd, adam"),
        ({"optimizer": None}, "optimizer=None"),
        ({"start": 0}, "start=0"),
        ({"start": "a"}, "start='a'"),
        ({"growth": -0.1}, "growth=-0.1"),
        ({"growth": "a"}, "growth='a'"),
        ({"stages": 0}, "stages=0"),
        ({"stages": True}, "stages=True"),
        ({"stages": 2.0}, "stages=2.0"),
        ({"round_to": True}, "round_to=True"),
        ({"widths": {"0": [True, 8, 16]}}, "widths['0'] = [True, 8, 16]"),
        ({"widths": 5}, "widths=5"),
        ({"widths": {"0": 4}}, "widths['0'] = 4"),
    ],
    ids=str,
)
def test_wrong_options(options, text):
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    with pytest.raises(PlanError) as caught:
        published(net, X, **({"stages": 3} | options))
    assert text in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize(
    "options",
    [
        {"stages": np.int64(3)},
        {"epochs": np.int64(30)},
        {"epochs": np.array([1, 2, 3])},
        {"epochs": [np.int32(1), np.int32(2), np.int32(3)]},
        {"first_epochs": np.int64(3)},
        {"epoch_growth": np.float32(0.2)},
        {"batch_size": np.int64(8)},
        {"batch_size": np.array([8, 4, 2])},
        {"batch_memory": np.int64(1_000_000)},
        {"growth": np.float64(0.2)},
        {"growth": np.float32(0.2)},
        {"start": np.float32(0.25)},
        {"budget": np.float32(0.9)},
    ],
    ids=str,
)
def test_numbers_of_numpy_are_taken(options):
    plan = small(**options)
    assert json.loads(json.dumps(plan.as_dict(), allow_nan=False)) and str(plan)
    assert plan.build_seed()(X).shape == plan.model(X).shape


@pytest.mark.parametrize(
    "options",
    [
        {"round_to": np.int64(2)},
        {"widths": {"0": np.array([4, 8, 16])}},
        {"widths": {"0": (np.int64(4), np.int64(8), np.int64(16))}},
    ],
    ids=str,
)
def test_numbers_of_numpy_that_are_refused_by_name(options):
    with pytest.raises(PlanError, match=next(iter(options))):
        small(**options)


# Impossible plans.


def test_too_few_epochs():
    with pytest.raises(PlanError) as caught:
        published(mlp(), X, epochs=13)
    text = str(caught.value)
    assert "13 epochs do not reach for 9 stages" in text and "leaves 0 for the last" in text
    assert "more epochs" in text and "fewer stages" in text


def test_first_epochs_that_leave_none_for_the_last_stage():
    with pytest.raises(PlanError, match=r"stages 0 to 1 take 20 \+ 24 = 44, which leaves -14"):
        small(epochs=30, first_epochs=20)


def test_many_stages_are_explained_in_a_few_lines():
    with pytest.raises(PlanError) as caught:
        published(mlp(), X, stages=5000)
    assert "5000 stages" in str(caught.value) and len(str(caught.value)) < 1000


def test_too_many_stages_for_the_widths_are_noted():
    plan = published(mlp(8), X, stages=9, epochs=90)
    assert any("leave no room for a step" in note for note in plan.notes)
    assert plan.widths("0")[-1] == 8


def test_nothing_that_grows():
    with pytest.raises(GrowthError, match="nothing in Linear can grow"):
        published(nn.Linear(4, 3), X)
    with pytest.raises(GrowthError, match="it has no parameters"):
        published(nn.Sequential(nn.ReLU()), X)
    with pytest.raises(GrowthError, match="nothing in Sequential can grow"):
        published(mlp(), X, freeze="*")


# Batch sizes.


def test_batches_grow_towards_the_seed():
    plan = small(stages=4, batch_growth=0.2)
    assert plan.batch_sizes == (222, 185, 154, 128) and plan.rate_factors == (1.0,) * 4


@pytest.mark.parametrize(("rule", "power"), [("none", 0), ("sqrt", 0.5), ("linear", 1)])
def test_the_learning_rate_follows_the_batch(rule, power):
    plan = small(batch_size=[64, 32, 16], batch_rate=rule)
    assert plan.rate_factors == pytest.approx([4**power, 2**power, 1])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "none"])
def test_batches_fill_the_memory(optimizer):
    limit = 100_000
    plan = small(batch_memory=limit, optimizer=optimizer, batch_rate="linear")
    for found, size, used in zip(plan.footprints, plan.batch_sizes, plan.memory, strict=True):
        assert used == found.memory(size, optimizer) <= limit < found.memory(size + 1, optimizer)
    assert plan.batch_sizes == tuple(sorted(plan.batch_sizes, reverse=True))
    assert plan.rate_factors == pytest.approx([b / plan.batch_sizes[-1] for b in plan.batch_sizes])


def test_memory_that_does_not_hold_one_example():
    full = small().footprints[-1]
    with pytest.raises(PlanError, match="weights, gradients and optimizer state of stage 2 take"):
        small(batch_memory=full.memory(0) + 1)
    assert small(batch_memory=full.memory(1)).batch_sizes[-1] == 1


def test_activations_scale_with_the_batch():
    one, two = small(batch_size=10), small(batch_size=20)
    for a, b, f in zip(one.memory, two.memory, one.footprints, strict=True):
        assert b - a == pytest.approx(10 * f.activation_bytes) and f.activation_bytes > 0


def test_memory_counts_the_optimizer():
    weights = [f.parameter_bytes for f in small().footprints]
    for optimizer, copies in {"none": 2, "sgd": 3, "lars": 3, "adam": 4, "avagrad": 4}.items():
        plan = small(optimizer=optimizer, batch_size=1)
        rest = [m - f.activation_bytes for m, f in zip(plan.memory, plan.footprints, strict=True)]
        assert rest == pytest.approx([copies * w for w in weights])


def test_steps_count_the_last_batch_of_an_epoch():
    plan = small(epochs=[1, 2, 3], batch_size=[64, 32, 10])
    assert plan.steps(100) == [2, 8, 30]
    assert plan.steps(1) == [1, 2, 3]


# Budgets.


@pytest.mark.parametrize("schedule", ["published", "recursive"])
@pytest.mark.parametrize("budget", [0.9, 0.7, 0.5])
def test_a_budget_is_met_and_used(budget, schedule):
    plan = published(mlp(64), X, budget=budget, schedule=schedule, stages=5)
    assert budget - 0.05 < plan.flops_share <= budget
    assert sum(plan.epochs) == 160 and min(plan.epochs) >= 1
    assert plan.flops_share == pytest.approx(share(plan))
    (note,) = (n for n in plan.notes if n.startswith("budget"))
    assert f"{budget:.0%} of flops" in note and f"{plan.flops_share:.2%}" in note
    assert f"{plan.epochs[0]} epochs in stage 0" in note


def test_a_budget_prefers_the_growth_it_was_given():
    plan = published(mlp(64), X, budget=0.5)
    assert plan.widths("0") == published(mlp(64), X).widths("0")
    assert plan.epochs[0] > 8


def test_given_first_epochs_are_kept_and_growth_is_chosen():
    plan = published(mlp(64), X, budget=0.7, first_epochs=8)
    assert plan.epochs == published(mlp(64), X).epochs
    assert plan.widths("0") != published(mlp(64), X).widths("0")
    assert 0.65 < plan.flops_share <= 0.7
    assert "growth" in plan.notes[0]


def test_given_epochs_are_kept():
    plan = published(mlp(64), X, budget=0.5, stages=3, epochs=[5, 5, 5], growth=None)
    assert plan.epochs == (5, 5, 5) and plan.flops_share <= 0.5


def test_a_budget_of_all():
    for budget in (1, 1.0):
        plan = small(budget=budget, epochs=20)
        assert 0.9 < plan.flops_share <= 1
    assert small(stages=1, budget=1).flops_share == 1.0


@pytest.mark.parametrize("schedule", ["published", "recursive", "linear"])
@pytest.mark.each(3)
def test_a_budget_is_kept_and_a_refused_one_is_below_the_cheapest_plan(schedule):
    def planned(budget):
        return published(mlp(64), X, budget=budget, schedule=schedule, stages=3, epochs=40)

    assert planned(0.6).flops_share <= 0.6
    with pytest.raises(PlanError, match=r"budget=0.1: ") as caught:
        planned(0.1)
    cheapest = re.search(r"the cheapest takes ([\d.]+)%", str(caught.value))
    assert cheapest is not None and float(cheapest[1]) > 10, str(caught.value)


def test_a_note_names_growth_only_where_growth_was_chosen():
    plan = published(mlp(64), X, schedule="linear", budget=0.9)
    assert not any("growth" in note for note in plan.notes)
    plan = small(widths={"0": [4, 8, 16], "2": [4, 8, 16]}, epochs=[3, 3, 4], growth=0.2, budget=1)
    assert not any("growth" in note for note in plan.notes)


def test_explicit_widths_stay_within_a_budget():
    plan = small(widths={"0": [4, 6, 16], "2": [4, 10, 16]}, budget=0.5)
    assert plan.widths("0") == [4, 6, 16] and plan.widths("2") == [4, 10, 16]
    assert plan.flops_share <= 0.5


def test_a_budget_between_two_plans_takes_the_cheaper_one():
    # stage 1 is 2 or 4 wide of 8: 32.5 % or 52.5 %
    net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    for growth in (0.2, 1.0):
        plan = published(net, X, stages=3, epochs=[1, 8, 1], growth=growth, budget=0.45)
        assert plan.widths("0") == [2, 2, 8] and plan.flops_share == pytest.approx(0.325)


def test_a_budget_keeps_within_the_memory():
    options = {"stages": 4, "first_epochs": 8, "batch_memory": 1e6}
    plain = published(mlp(64), X, **options)
    plan = published(mlp(64), X, **options, budget=plain.flops_share + 0.06)
    assert plan.widths("0") > plain.widths("0"), "another growth was chosen"
    assert max(plan.memory) <= 1e6
    assert plan.batch_sizes == tuple(
        math.floor((1e6 - f.memory(0)) / f.activation_bytes) for f in plan.footprints
    )


@pytest.mark.parametrize("budget", [0, -0.5, 1.5, 50, True, "50%", math.nan, [0.5]])
def test_wrong_budgets(budget):
    with pytest.raises(PlanError, match=re.escape(f"budget={budget!r}: a share of fixed-size")):
        small(budget=budget)


def test_wrong_kind_of_budget():
    with pytest.raises(PlanError, match="budget_of='euros' is not 'flops' or 'seconds'"):
        small(budget=0.5, budget_of="euros")


def test_a_budget_of_seconds(monkeypatch):
    def pretend(stages, repeats, optimizer):
        return [1e-6 * size * model[0].out_features for model, _, size in stages]

    monkeypatch.setattr(sys.modules["growthring.planning.compiling"], "seconds_of_stages", pretend)
    plan = small(epochs=20, batch_size=8, budget=0.7, budget_of="seconds")
    assert plan.seconds == pytest.approx([8e-6 * w for w in (4, 8, 16)])
    assert 0.6 < plan.seconds_share <= 0.7 and plan.flops_share < plan.seconds_share
    assert any(f"70% of seconds: {plan.epochs[0]} epochs" in note for note in plan.notes)
    with pytest.raises(PlanError, match=r"budget=0.2: .*the cheapest takes 4\d"):
        small(epochs=20, batch_size=8, budget=0.2, budget_of="seconds")


def test_a_budget_of_measured_seconds():
    # wide enough that the full size takes longest on any machine
    options = {"stages": 3, "growth": None, "epochs": 20, "batch_size": 8}
    plan = published(mlp(2048), X, budget=1, budget_of="seconds", **options)
    assert len(plan.seconds) == 3 and 0 < plan.seconds_share <= 1


def test_a_budget_out_of_reach_is_refused_without_trying_dearer_growth(monkeypatch):
    module, calls = sys.modules["growthring.planning.plan"], []
    real = module.footprint
    monkeypatch.setattr(module, "footprint", lambda *a: calls.append(1) or real(*a))
    with pytest.raises(PlanError):
        published(mlp(64), X, budget=0.01, stages=3, epochs=40)
    # growth rates above the one given only cost more, and there are ten below it
    assert len(calls) <= 11 * 3


# Measured seconds.


def test_measure():
    plan = small(batch_size=[8, 4, 2], epochs=[1, 2, 3])
    assert plan.seconds is None and plan.seconds_share is None
    found = plan.measure(1)
    assert plan.seconds is None, "a new plan"
    assert len(found.seconds) == 3 and all(0 < s < 60 for s in found.seconds)
    each = [s / b for s, b in zip(found.seconds, (8, 4, 2), strict=True)]
    spent = sum(n * s for n, s in zip((1, 2, 3), each, strict=True))
    assert found.seconds_share == pytest.approx(spent / (6 * each[-1]))
    assert found.stage_widths == plan.stage_widths and found.notes == plan.notes


@pytest.mark.parametrize("repeats", [0, -1, 1.5, "3", True])
def test_wrong_repeats(repeats):
    with pytest.raises(GrowthError, match="repeats="):
        small().measure(repeats)


@pytest.mark.parametrize("training", [True, False])
def test_costs_leave_the_model_and_random_numbers_untouched(training):
    net = nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3)
    ).train(training)
    before = {n: t.clone() for n, t in net.state_dict().items()}
    settings, state = attributes(net), torch.get_rng_state()
    plan = published(net, X, stages=3, budget=0.9)
    str(plan.measure(1))
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())
    assert attributes(net) == settings and torch.equal(torch.get_rng_state(), state)
    assert net.training is training and all(p.grad is None for p in net.parameters())


# JSON and text.


def test_json():
    plan = small(epochs=[1, 2, 3], batch_size=[8, 4, 2], batch_rate="linear", optimizer="adam")
    found = json.loads(json.dumps(plan.as_dict(), allow_nan=False))
    assert found["stages"] == 3
    assert found["widths"] == [plan.named_widths(t) for t in range(3)]
    assert found["epochs"] == [1, 2, 3] and found["batch_sizes"] == [8, 4, 2]
    assert found["rate_factors"] == [4.0, 2.0, 1.0]
    assert found["parameters"] == [plan.num_parameters(t) for t in range(3)]
    assert found["flops"] == [f.flops for f in plan.footprints]
    assert found["memory_bytes"] == list(plan.memory)
    assert found["flops_share"] == plan.flops_share and 0 < found["flops_share"] < 1
    assert found["notes"] == list(plan.notes)
    assert "seconds" not in found
    found = json.loads(json.dumps(plan.measure(1).as_dict(), allow_nan=False))
    assert len(found["seconds"]) == 3 and found["seconds_share"] > 0


def test_text():
    plan = published(mlp(64), X, batch_growth=0.2, budget=0.5)
    head, *lines = str(plan).splitlines()
    assert head == "Plan: Sequential in 9 stages"
    table = lines[:8]
    names = ["stage", "0 (+ 1 alike)", "parameters", "epochs", "batch size", "memory, MB", "FLOPs"]
    assert [line.split("  ")[0] for line in table[:-1]] == names
    assert len({len(line) for line in table}) == 1, "columns are aligned"
    assert table[1].split()[-9:] == [str(n) for n in plan.widths("0")]
    assert table[3].split()[-9:] == [str(n) for n in plan.epochs]
    assert table[6].split()[-1] == "100.0%"
    assert len(table[-1].split()) == 9 and table[-1].endswith("████"), "a bar per stage"
    assert f"Training costs {plan.flops_share:.2%} of the FLOPs" in lines[8]
    assert "(160 epochs)" in lines[8]
    assert lines[9:] == [f"note: {note}" for note in plan.notes]
    assert "econds" not in str(plan)


def test_text_with_seconds():
    text = str(small().measure(1))
    assert "seconds per step" in text and "Measured on this machine: " in text


def test_text_of_one_stage():
    assert "Training costs 100.00%" in str(published(mlp(), X, stages=1))


# Odd models.


def works(plan: gr.Plan) -> gr.Plan:
    """Everything that a plan tells comes out."""
    json.dumps(plan.as_dict(), allow_nan=False)
    assert "Training costs" in str(plan)
    for stage, found in enumerate(plan.footprints):
        assert found.parameters == plan.num_parameters(stage)
    assert all(s > 0 for s in plan.measure(1).seconds)
    return plan


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 16), nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x, y):
        return self.c(torch.relu(self.a(x) + self.b(y)))


@pytest.mark.parametrize(
    "inputs", [(X, torch.zeros(2, 6)), {"x": X, "y": torch.zeros(2, 6)}], ids=["tuple", "dict"]
)
def test_several_inputs(inputs):
    plan = works(gr.plan(Two(), inputs, stages=3, growth=None))
    assert [f.flops for f in plan.footprints] == [2 * w * 13 for w in (4, 8, 16)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.each(2)
def test_other_types_of_numbers(dtype):
    plan = works(published(mlp().to(dtype), X.to(dtype), stages=3, growth=None))
    scale = torch.finfo(dtype).bits / 32
    assert plan.memory == pytest.approx([scale * m for m in small().memory])
    assert plan.flops_share == pytest.approx(small().flops_share)


def test_tied_weights():
    net = Net(
        lambda self, x: self.b(self.h(self.e(x)).relu()),
        e=nn.Embedding(10, 16),
        h=nn.Linear(16, 16),
        b=nn.Linear(16, 10, bias=False),
    )
    net.b.weight = net.e.weight
    plan = works(gr.plan(net, torch.zeros(2, 3, dtype=torch.int64), stages=3, growth=None))
    assert plan.footprints[0].parameters == sum(p.numel() for p in plan.build_seed().parameters())


def test_a_model_that_makes_tensors_on_the_cpu():
    net = Net(
        lambda self, x: self.b((self.a(x + torch.arange(4).float()) * torch.tensor(2.0)).relu()),
        a=nn.Linear(4, 16),
        b=nn.Linear(16, 3),
    )
    works(gr.plan(net, X, stages=3))


def test_parameters_without_gradients():
    net = mlp()
    net[0].requires_grad_(False)
    plan = works(gr.plan(net, X, stages=3))
    assert plan.footprints[-1].activation_bytes < footprint(mlp(), X).activation_bytes
    frozen = gr.plan(mlp().requires_grad_(False), X, stages=3)
    assert frozen.flops_share == gr.plan(mlp(), X, stages=3).flops_share
    str(frozen)
    with pytest.raises(GrowthError, match=r"(?i)grad"):
        frozen.measure(1)


def test_unused_parameters():
    net = Net(
        lambda self, x: self.b(self.a(x).relu()),
        a=nn.Linear(4, 16), b=nn.Linear(16, 3), unused=nn.Linear(7, 7),
    )  # fmt: skip
    plan = works(gr.plan(net, X, stages=3))
    assert any("'unused.weight', are used by no forward pass" in note for note in plan.notes)


def norm_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.each(2)
def test_a_batch_norm_and_one_example(training):
    works(gr.plan(norm_net().train(training), torch.zeros(1, 4), stages=3))


def test_a_batch_norm_and_a_batch_of_one():
    plan = gr.plan(norm_net(), X, stages=3, batch_size=1)
    with pytest.raises(GrowthError, match="batch"):
        plan.measure(1)


def test_memory_is_that_of_training_whatever_the_mode():
    train, evaluation = (gr.plan(norm_net().train(t), X, stages=3) for t in (True, False))
    assert train.memory == evaluation.memory


def test_a_layer_that_is_dropped_at_random_in_training():
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 3)

        def forward(self, x):
            x = self.a(x).relu()
            if not (self.training and torch.rand(()).item() < 0.1):
                x = x + self.b(x).relu()
            return self.c(x)

    plan = works(gr.plan(Dropped(), X, stages=3, growth=None))
    assert [f.flops for f in plan.footprints] == [2 * w * (4 + w + 3) for w in (4, 8, 16)]


def test_a_batch_without_examples_is_refused():
    with pytest.raises(GrowthError):
        str(gr.plan(mlp(), torch.zeros(0, 4), stages=3))


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, x):
        hidden = self.a(x).relu()
        return {"logits": self.b(hidden), "hidden": hidden}


def test_outputs_that_may_grow():
    works(gr.plan(Named(), X, stages=3, outputs=["logits"]))
    with pytest.raises(GrowthError, match="nothing in Named can grow"):
        gr.plan(Named(), X, stages=3)


def shaped(width: int) -> nn.Module:
    """Its width is in a closure, where only a factory can change it."""
    return Net(
        lambda self, x: self.b(self.a(x).view(x.shape[0], width, 3)),
        a=nn.Linear(4, width * 3),
        b=nn.Conv1d(width, 2, 1),
    )


def test_factories():
    asked = []

    def build(widths):
        asked.append(dict(widths))
        (width,) = widths.values()
        return shaped(width)

    plan = gr.plan(shaped(12), X, stages=3, growth=None, build=build, budget=0.9)
    assert works(plan).widths("a") == [4, 6, 12]
    assert [f.flops for f in plan.footprints] == [2 * (4 * 3 * w + 2 * 3 * w) for w in (4, 6, 12)]
    assert all(set(widths) == {"a"} for widths in asked)


def test_a_factory_that_draws_numbers_leaves_the_users_random_state():
    net = shaped(12)
    state = torch.get_rng_state()
    plan = gr.plan(net, X, stages=3, build=lambda widths: shaped(*widths.values()))
    str(plan.measure(1))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("build", [5, "shaped"])
def test_a_factory_that_cannot_be_called(build):
    with pytest.raises(GrowthError, match="build"):
        gr.plan(shaped(12), X, stages=3, build=build)


@pytest.mark.parametrize("freeze", [None, 5])
def test_wrong_freeze(freeze):
    with pytest.raises(GrowthError, match=f"freeze={freeze!r}"):
        gr.plan(mlp(), X, freeze=freeze)


def test_a_name_of_an_output_that_is_a_plain_tensor():
    with pytest.raises(GrowthError, match=r"outputs=\['x'\].*without named parts") as caught:
        gr.plan(mlp(), X, outputs=["x"])
    assert "FakeTensor" not in str(caught.value)
