"""A growth at which little learning rate is left is told, whatever made the schedule."""

import warnings

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.train.setup import make_model, make_plan
from tests.train.runs import small

X = torch.ones(2, 4)


def told(schedule, grown_at, stop=None):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    plan = gr.plan(net, X, total_steps=40, stages=2, grown_at=grown_at)
    model = plan.build_seed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = schedule(optimizer)
    grower = gr.Grower(model, plan, optimizer=optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(40):
            if step == stop:
                state = grower.state_dict()
                grower = gr.Grower(model, plan, optimizer=optimizer)
                grower.load_state_dict(state)
            model(X).sum().backward()
            optimizer.step()
            scheduler.step()
            grower.step()
    return [str(w.message) for w in caught if "learning rate" in str(w.message)]


def shaped(kind):
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, gr.lr_schedule(kind, 40))


@pytest.mark.parametrize(
    ("kind", "grown_at", "is_late"),
    [
        ("wsd", 0.5, False),
        ("wsd", 0.8, False),
        ("wsd", 0.95, True),
        ("linear", 0.4, False),
        ("linear", 0.6, True),
        ("cosine", 0.4, False),
        ("cosine", 0.7, True),
        ("constant", 0.95, False),
    ],
)
def test_a_growth_in_the_decay_warns(kind, grown_at, is_late):
    messages = told(shaped(kind), grown_at)
    assert len(messages) == is_late
    if is_late:
        assert "of the learning rate's peak" in messages[0] and "grown_at" in messages[0]


def test_any_scheduler_counts_and_a_resumed_run_remembers_the_peak():
    def steps(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)

    for stop in (None, 25):
        (message,) = told(steps, 0.7, stop)
        assert message.startswith("the growth after step 28 of 40 comes at 25% of")


def test_a_warm_up_is_no_decay():
    def rising(optimizer):
        return torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, 40)

    assert told(rising, 0.5) == []


@pytest.mark.parametrize(("schedule", "grown_at"), [("cosine", 0.7), ("linear", 0.6)])
def test_a_recipes_plan_says_so_before_anything_runs(schedule, grown_at):
    recipe = small("preset=default", f"lr_schedule={schedule}", f"grown_at={grown_at}", "epochs=20")
    plan = make_plan(recipe, make_model(recipe, torch.Generator()))
    assert any("the last growth comes at" in note and schedule in note for note in plan.notes)
    early = small("preset=default", "lr_schedule=wsd", "epochs=20")
    plan = make_plan(early, make_model(early, torch.Generator()))
    assert not any("the last growth comes at" in note for note in plan.notes)
