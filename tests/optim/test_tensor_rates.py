"""Learning rates in tensors: growth, schedulers and loading keep the tensor, and steps are those of a number."""

import copy
import warnings

import pytest
import torch

import growthring as gr
from growthring.growing.matching import highest_rate
from tests.optim.nets import backward, grower_of, plan_of, train

OWN = {"ring_schedule": "own", "total_steps": 9}
OPTIMIZERS = {
    "SGD": lambda p, lr: gr.optim.SGD(p, lr=lr, momentum=0.9, weight_decay=0.1),
    "SGD, foreach": lambda p, lr: gr.optim.SGD(p, lr=lr, foreach=True),
    "Adam": lambda p, lr: gr.optim.Adam(p, lr=lr),
    "AdamW, own": lambda p, lr: gr.optim.AdamW(p, lr=lr, weight_decay=0.1, **OWN),
    "AvaGrad": lambda p, lr: gr.optim.AvaGrad(p, lr=lr),
    "LARS": lambda p, lr: gr.optim.LARS(p, lr=lr, rate_adaptation="norm"),
    "with_rings": lambda p, lr: gr.optim.with_rings(torch.optim.AdamW(p, lr=lr), **OWN),
    "torch": lambda p, lr: torch.optim.AdamW(p, lr=lr),
}
SCHEDULERS = {
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 9, eta_min=1e-3),
    "by hand": lambda o: None,
}


def run(kind, rate, schedule):
    plan = plan_of("residual")
    model = plan.build_seed()
    optimizer = OPTIMIZERS[kind](model.parameters(), rate)
    scheduler = SCHEDULERS[schedule](optimizer)
    grower = grower_of(model, plan, optimizer)
    for i in range(9):
        model.zero_grad()
        backward(model, plan, i)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if i in (2, 5):
            grower.grow()
    return model, optimizer


@pytest.mark.parametrize("schedule", SCHEDULERS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_rate_in_a_tensor_is_that_rate(kind, schedule):
    rate = torch.tensor(0.01, dtype=torch.float64)
    expected, _ = run(kind, 0.01, schedule)
    model, optimizer = run(kind, rate, schedule)
    torch.testing.assert_close(dict(model.state_dict()), dict(expected.state_dict()))
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.01 if schedule == "by hand" else 0.001)


@pytest.mark.parametrize("saved_rate", [0.5, torch.tensor(0.5)])
@pytest.mark.parametrize("kind", [k for k in OPTIMIZERS if k != "torch"])
def test_loading_fills_the_tensor_that_is_there(kind, saved_rate):
    plan = plan_of("mlp")
    state = copy.deepcopy(OPTIMIZERS[kind](plan.build_seed().parameters(), saved_rate).state_dict())
    model, rate = plan.build_seed(), torch.tensor(0.01)
    optimizer = OPTIMIZERS[kind](model.parameters(), rate)
    grower_of(model, plan, optimizer)
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] is rate and float(rate) == 0.5
    assert float(saved_rate) == 0.5


def test_a_growth_that_fails_leaves_the_tensor():
    plan = plan_of("mlp")
    model, rate = plan.build_seed(), torch.tensor(0.01)
    optimizer = OPTIMIZERS["Adam"](model.parameters(), rate)
    grower = grower_of(model, plan, optimizer)
    train(model, plan, optimizer, 1)
    optimizer.state[model.get_parameter("0.weight")]["odd"] = torch.ones(2, 3, 4)
    with pytest.raises(gr.GrowthError, match="'odd'"):
        grower.grow()
    assert optimizer.param_groups[0]["lr"] is rate and float(rate) == pytest.approx(0.01)


def test_the_highest_rate_reads_tensors_that_are_at_hand():
    w = torch.nn.Parameter(torch.ones(1))
    groups = [{"params": [w], "lr": torch.tensor(0.5)}, {"params": [w.detach()], "lr": 0.25}]
    assert highest_rate([torch.optim.SGD(groups)]) == 0.5
    groups[0]["lr"] = torch.tensor(0.5, device="meta")  # as one that has to be waited for
    assert highest_rate([torch.optim.SGD(groups)]) == 0.25


def test_a_late_growth_is_seen_in_a_rate_tensor():
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    plan = gr.plan(net, torch.ones(1, 4), total_steps=10, stages=2)
    model, rate = plan.build_seed(), torch.tensor(0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    grower = gr.Grower(model, plan, optimizer)
    with pytest.warns(gr.GrowthWarning, match="comes at 10% of the learning rate's peak"):
        for step in range(10):
            rate.fill_(0.1 if step < 5 else 0.01)
            grower.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del grower
