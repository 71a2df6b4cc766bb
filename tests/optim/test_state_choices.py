"""state_at_growth and other options, for a whole optimizer and for each group."""

import copy

import pytest
import torch

import growthring as gr
from tests.growth_contract import factor_of
from tests.optim.nets import grower_of, is_old, plan_of, train


def started(make, net):
    plan = plan_of(net)
    model = plan.build_seed()
    optimizer = make(model.parameters())
    grower = grower_of(model, plan, optimizer)
    train(model, plan, optimizer, 2)
    return plan, model, optimizer, grower


@pytest.mark.parametrize("how", ["keep", "reset", "rescale"])
@pytest.mark.parametrize("make", [gr.optim.Adam, gr.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("net", ["residual", "attention"])
@pytest.mark.each(2)
def test_what_happens_to_state_is_a_choice(make, how, net):
    options = {"momentum": 0.9} if make is gr.optim.SGD else {}
    plan, model, optimizer, grower = started(lambda p: make(
        [{"params": list(p), "state_at_growth": how}], lr=0.01, **options), net)  # fmt: skip
    before = {n: copy.deepcopy(dict(optimizer.state[p])) for n, p in model.named_parameters()}
    report = grower.grow()
    assert net == "attention" or any(abs(c - 1) > 0.01 for c in report.factors.values())
    for name, p in model.named_parameters():
        if how == "reset":
            assert not optimizer.state.get(p), name
            continue
        for key, power in (("exp_avg", 1), ("exp_avg_sq", 2), ("momentum_buffer", 1)):
            if key in before[name]:
                old = before[name][key]
                c = factor_of(plan, name, report, 0, old) if how == "rescale" else 1.0
                found = optimizer.state[p][key][is_old(grower, name)]
                torch.testing.assert_close(found, (old / c**power).flatten(), rtol=1e-13, atol=0)


def test_groups_choose_for_themselves():
    plan = plan_of("mlp")
    model = plan.build_seed()
    groups = [
        {"params": [model.get_parameter("0.weight")], "state_at_growth": "reset"},
        {"params": [model.get_parameter("2.weight")], "rate_adaptation": None, "lr": 0.5},
        {
            "params": [model.get_parameter("4.weight")],
            "rate_adaptation": "max",
            "output_rate": True,
        },
    ]
    optimizer = gr.optim.Adam(groups, lr=0.01)
    grower = grower_of(model, plan, optimizer)
    width = model.get_parameter("4.weight").shape[1]
    train(model, plan, optimizer, 2)
    grower.grow()
    states = [bool(optimizer.state.get(g["params"][0])) for g in optimizer.param_groups]
    assert states == [False, True, True]
    factors, norms = optimizer.rate_factors(), optimizer.weight_norms()
    assert factors["2.weight"].tolist() == [1.0, 1.0]
    torch.testing.assert_close(factors["0.weight"], norms["0.weight"] / norms["0.weight"][0])
    top = float(norms["4.weight"][1].clamp_min(1))
    torch.testing.assert_close(factors["4.weight"] * width, torch.tensor([1.0, top]).double())
    assert "0.bias" not in factors  # in no group


def test_an_optimizer_made_at_a_later_stage_gives_old_rings_its_own_age():
    """A fresh Adam has seen every ring for as long as it lives; only the next ring is younger."""
    plan = plan_of("mlp")
    model = plan.build_seed()
    first = grower_of(model, plan)
    first.grow()
    first.grow()
    optimizer = gr.optim.Adam(model.parameters(), lr=0.01)
    grower = grower_of(model, plan, optimizer)
    train(model, plan, optimizer, 5)
    grower.grow()
    assert optimizer.state[model.get_parameter("2.weight")]["births"] == (0, 0, 0, 5)


def test_a_state_dict_of_torch_gives_old_rings_its_own_age():
    plan = plan_of("mlp")
    model = plan.build_seed()
    grower_of(model, plan).grow()
    theirs = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, plan, theirs, 4)
    optimizer = gr.optim.Adam(model.parameters(), lr=0.01)
    grower = grower_of(model, plan, optimizer)
    optimizer.load_state_dict(theirs.state_dict())
    grower.grow()
    assert optimizer.state[model.get_parameter("2.weight")]["births"] == (0, 0, 4)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_copy_of_model_optimizer_and_grower_trains_alike(wrapped):
    """A copy for a rollback: rings, births and rates are part of it."""
    plan = plan_of("mlp")
    model = plan.build_seed()
    if wrapped:
        optimizer = gr.optim.with_rings(torch.optim.SGD(model.parameters(), lr=0.05))
    else:
        optimizer = gr.optim.SGD(model.parameters(), lr=0.05)
    grower = grower_of(model, plan, optimizer)
    train(model, plan, optimizer, 1)
    grower.grow()
    twin, theirs, _ = copy.deepcopy((model, optimizer, grower))
    train(model, plan, optimizer, 2)
    train(twin, plan, theirs, 2)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


def test_half_precision_adam_moves_at_small_rates():
    """1 / (lr √b₂) is beyond what float16 can hold; torch's Adam still moves."""
    plan = plan_of("mlp", torch.float16)
    moved = []
    for make in (torch.optim.Adam, gr.optim.Adam):
        model = plan.build_seed()
        grower_of(model, plan).grow(measure=False)
        optimizer = make(model.parameters(), lr=1e-6, eps=1e-4)
        grower_of(model, plan, optimizer)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(1e-6)  # where float16 has steps finer than the update
                p.grad = torch.full_like(p, 0.01)
        optimizer.step()
        moved.append(bool((model.get_parameter("2.weight") != torch.tensor(1e-6).half()).all()))
    assert moved == [True, True]
