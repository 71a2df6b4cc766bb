"""What hangs on an optimizer survives growth: scalers, averages, clipping, half-done accumulation."""

import copy

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import growthring as gr
from tests.growth_contract import factor_of
from tests.optim.nets import (
    NETS,
    assert_same,
    backward,
    batch,
    grower_of,
    is_finite,
    is_old,
    plan_of,
    snapshot,
    train,
)

AVERAGES = {
    "swa": {},
    "swa buffers": {"use_buffers": True},
    "ema": {"multi_avg_fn": get_ema_multi_avg_fn(0.9)},
    "ema buffers": {"multi_avg_fn": get_ema_multi_avg_fn(0.9), "use_buffers": True},
}


def averaged(net, kind, **options):
    plan = plan_of(net)
    model = plan.build_seed()
    average = AveragedModel(model, **AVERAGES[kind])
    optimizer = gr.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    grower = grower_of(model, plan, optimizer, averages=average, **options)
    for i in range(3):
        train(model, plan, optimizer, 1, seed=i)
        average.update_parameters(model)
    return plan, model, average, optimizer, grower


@pytest.mark.parametrize("kind", AVERAGES)
@pytest.mark.parametrize("net", ["mlp", "residual", "attention"])
@pytest.mark.each(6)
def test_an_average_computes_the_same_after_a_growth(net, kind):
    plan, model, average, optimizer, grower = averaged(net, kind, noise=0.0)
    average.eval()
    x = batch(plan, 77)
    before = average(x)
    assert not torch.allclose(before, model.eval()(x), rtol=1e-3)  # it is not the model
    count = average.n_averaged.clone()
    grower.grow()
    torch.testing.assert_close(average(x), before, rtol=1e-9, atol=1e-11)
    assert torch.equal(average.n_averaged, count)
    ours = {n: t.shape for n, t in average.module.state_dict().items()}
    assert ours == {n: t.shape for n, t in model.state_dict().items()}
    for i in range(3):
        train(model, plan, optimizer, 1, seed=i)
        average.update_parameters(model)
    assert is_finite(average) and average.n_averaged == count + 3


@pytest.mark.parametrize("kind", AVERAGES)
@pytest.mark.each(3)
def test_an_average_of_equal_models_stays_equal(kind):
    """With noise: the average gets the very entries that the model got."""
    plan = plan_of("residual")
    model = plan.build_seed()
    average = AveragedModel(model, **AVERAGES[kind])
    grower = grower_of(model, plan, averages=[average], noise=0.1)
    average.update_parameters(model)
    while not grower.is_full:
        grower.grow()
        for (name, t), u in zip(model.named_parameters(), average.module.parameters(), strict=True):
            torch.testing.assert_close(t, u, rtol=1e-12, atol=1e-14, msg=name)
        average.update_parameters(model)
    update_bn([batch(plan, 1)], average)
    assert is_finite(average)


def test_the_average_of_entries_is_the_entry_of_the_average():
    """Linear through a growth: a mean of two models grows to the mean of the grown models."""
    plan, model, average, _, grower = averaged("mlp", "swa", variance_transfer="preserving")
    old = {n: t.detach().clone() for n, t in average.module.named_parameters()}
    report = grower.grow()
    for name, t in average.module.named_parameters():
        c = factor_of(plan, name, report, 0, old[name])
        torch.testing.assert_close(
            t.detach()[is_old(grower, name)], (old[name] * c).flatten(), rtol=1e-13, atol=0
        )
        new = ~is_old(grower, name)
        assert torch.equal(t.detach()[new], model.get_parameter(name).detach()[new])


def test_a_failed_growth_leaves_averages_alone(monkeypatch):
    _, model, average, optimizer, grower = averaged("residual", "ema buffers")
    before = snapshot(model, optimizer, grower), copy.deepcopy(average.state_dict())
    monkeypatch.setattr(gr.growing.followers, "grow_state", lambda *_: 1 / 0)
    with pytest.raises(gr.GrowthError, match="as they were"):
        grower.grow()
    assert_same(before, (snapshot(model, optimizer, grower), copy.deepcopy(average.state_dict())))
    monkeypatch.undo()
    grower.grow()


def test_an_average_of_another_stage_is_refused():
    plan = plan_of("mlp")
    model = plan.build_seed()
    average = AveragedModel(model)
    grower_of(model, plan).grow()
    with pytest.raises(gr.GrowthError, match="average has the shapes of stage 0"):
        grower_of(model, plan, averages=average)
    with pytest.raises(gr.GrowthError, match="averages holds a dict"):
        grower_of(model, plan, averages=[{}])


def test_an_average_that_would_grow_twice_is_refused():
    plan = plan_of("mlp")
    model = plan.build_seed()
    average = AveragedModel(model)
    for given in (model, [average, average], [average, average.module]):
        with pytest.raises(
            gr.GrowthError, match="shares parameters with the model, or with another"
        ):
            grower_of(model, plan, averages=given)


@pytest.mark.parametrize("make", [gr.optim.SGD, gr.optim.AdamW, gr.optim.AvaGrad, torch.optim.Adam])
@pytest.mark.each(4)
def test_grad_scaler(make):
    """A scale of 2^k changes no bit; an overflow skips the step and no ring ages."""
    models = []
    for scaled in (False, True):
        plan = plan_of("residual")
        model = plan.build_seed()
        optimizer = make(model.parameters(), lr=0.01)
        grower = grower_of(model, plan, optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled, growth_interval=3)
        for stage in range(3):
            for i in range(3):
                optimizer.zero_grad()
                out = model(batch(plan, 10 * stage + i))
                scaler.scale(out.square().mean()).backward()
                if i == 1:
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
            if scaled:
                before = snapshot(model, optimizer, grower)[2]
                optimizer.zero_grad()
                scaler.scale(model(batch(plan, 5)).square().mean()).backward()
                model.get_parameter("head.bias").grad[0] = float("inf")
                scaler.step(optimizer)
                scaler.update()
                assert_same(before, snapshot(model, optimizer, grower)[2])
            else:
                model(batch(plan, 5))  # the same running statistics
            optimizer.zero_grad()
            grower.grow()
        models.append(model)
    assert_same(*(dict(m.state_dict()) for m in models))


@pytest.mark.parametrize("net", NETS)
@pytest.mark.each(2)
def test_half_done_accumulation(net):
    """Old entries of the gradient are the old ones over the factor, new ones start at zero."""
    plan = plan_of(net)
    model = plan.build_seed()
    optimizer = gr.optim.AdamW(model.parameters(), lr=0.01)
    grower = grower_of(model, plan, optimizer, noise=0.0)
    train(model, plan, optimizer, 2)
    optimizer.zero_grad()
    backward(model, plan, 50)
    old = {n: p.grad.clone() for n, p in model.named_parameters()}
    report = grower.grow()
    for name, p in model.named_parameters():
        mask = is_old(grower, name)
        c = factor_of(plan, name, report, 0, old[name])
        torch.testing.assert_close(p.grad[mask], (old[name] / c).flatten(), rtol=1e-13, atol=0)
        assert not bool(p.grad[~mask].any()), name
    before = {n: p.grad.clone() for n, p in model.named_parameters()}
    backward(model, plan, 51)
    assert any(not torch.equal(p.grad, before[n]) for n, p in model.named_parameters())
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert bool(torch.isfinite(norm)) and is_finite(model)


def test_accumulated_gradient_is_that_of_the_grown_model():
    """Where the function is preserved, the first half of the batch may come before or after."""
    plan = plan_of("mlp")
    grads = []
    for after in (False, True):
        model = plan.build_seed()
        grower = grower_of(model, plan, noise=0.0)
        if not after:
            backward(model, plan, 1)
        grower.grow()
        if after:
            backward(model, plan, 1)
        grads.append({n: p.grad[is_old(grower, n)] for n, p in model.named_parameters()})
    for name, old in grads[0].items():
        torch.testing.assert_close(grads[1][name], old, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("wrapped", [False, True])
def test_diagnostics_agree_with_masks(wrapped):
    plan = plan_of("attention")
    model = plan.build_seed()
    if wrapped:
        optimizer = gr.optim.with_rings(torch.optim.RMSprop(model.parameters(), lr=0.01))
    else:
        optimizer = gr.optim.SGD(model.parameters(), lr=0.01, output_rate=False)
    grower = grower_of(model, plan, optimizer)
    for _ in range(3):
        train(model, plan, optimizer, 1)
        grower.grow()
    backward(model, plan, 3)
    model.get_parameter("proj.bias").grad = None
    found = optimizer.rate_factors(), optimizer.weight_norms(), optimizer.gradient_norms()
    assert "proj.bias" not in found[2] and "proj.bias" in found[1]
    for name, p in model.named_parameters():
        masks = [grower.rings.mask(name, k) for k in range(4)]
        norms = torch.stack([p.detach()[m].norm() for m in masks])
        torch.testing.assert_close(found[1][name], norms)
        expected = norms / norms[0] if p.dim() > 1 else torch.ones(4).double()
        torch.testing.assert_close(found[0][name], expected)
        if p.grad is not None:
            grads = torch.stack([p.grad[m].norm() for m in masks])
            torch.testing.assert_close(found[2][name], grads)
