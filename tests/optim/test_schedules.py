"""Learning rate schedules: any scheduler through growths, and rings that follow a shape of their own."""

import math

import pytest
import torch
from torch.optim import lr_scheduler as S

import growthring as gr
from growthring.optim.rules import own_schedule
from tests.optim.nets import backward, grower_of, is_finite, plan_of

TOTAL, STEPS, LR = 24, 4, 0.05
SCHEDULERS = {
    "LambdaLR": lambda o: S.LambdaLR(o, lambda n: 1 / (1 + n)),
    "CosineAnnealingLR": lambda o: S.CosineAnnealingLR(o, TOTAL),
    "OneCycleLR": lambda o: S.OneCycleLR(o, LR, total_steps=TOTAL + 1, cycle_momentum=False),
    "SequentialLR": lambda o: S.SequentialLR(
        o, [S.LinearLR(o, 0.1, 1.0, 5), S.CosineAnnealingLR(o, TOTAL - 5)], [5]
    ),
    "ReduceLROnPlateau": lambda o: S.ReduceLROnPlateau(o, patience=0, factor=0.5),
    "StepLR per epoch": lambda o: S.StepLR(o, 2, gamma=0.3),
}
OPTIMIZERS = {
    "sgd": lambda p, **o: gr.optim.SGD(p, lr=LR, momentum=0.9, **o),
    "adam": lambda p, **o: gr.optim.Adam(p, lr=LR, **o),
    "avagrad": lambda p, **o: gr.optim.AvaGrad(p, lr=LR, **o),
    "AdamW": lambda p, **o: gr.optim.with_rings(torch.optim.AdamW(p, lr=LR), **o),
    "RMSprop": lambda p, **o: gr.optim.with_rings(torch.optim.RMSprop(p, lr=LR), **o),
}


def advance(scheduler, n):
    if isinstance(scheduler, S.ReduceLROnPlateau):
        scheduler.step(1.0)
    elif not isinstance(scheduler, S.StepLR) or n % 3 == 2:
        scheduler.step()


def run(optimizer_kind, scheduler_kind, steps=TOTAL, grows=True, **options):
    """Trains six stages; yields at each step what is about to happen."""
    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = OPTIMIZERS[optimizer_kind](model.parameters(), **options)
    scheduler = SCHEDULERS[scheduler_kind](optimizer)
    grower = grower_of(model, plan, optimizer)
    births = [0]
    for n in range(steps):
        if grows and n and n % STEPS == 0 and not grower.is_full:
            grower.grow(measure=False)
            births.append(n)
        optimizer.zero_grad()
        backward(model, plan, n)
        yield n, optimizer, model, births
        optimizer.step()
        advance(scheduler, n)
    assert is_finite(model)


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("optimizer", ["sgd", "AdamW"])
def test_growth_does_not_touch_a_scheduler(kind, optimizer):
    rates = [
        [o.param_groups[0]["lr"] for _, o, _, _ in run(optimizer, kind, grows=grows)]
        for grows in (False, True)
    ]
    assert rates[0] == rates[1] and len(set(rates[0])) > 2


def test_factors_multiply_the_rate_that_was_set():
    """Twice the rate moves every ring twice as far."""
    moved = []
    for scale in (1.0, 2.0):
        for n, optimizer, model, _ in run("sgd", "LambdaLR", steps=STEPS + 1):
            if n == STEPS:
                optimizer.param_groups[0]["lr"] = 1e-3 * scale
                before = model.get_parameter("2.weight").detach().clone()
        moved.append(model.get_parameter("2.weight").detach() - before)
    torch.testing.assert_close(moved[1], 2 * moved[0], rtol=1e-9, atol=1e-12)


def shape(history, birth, n, total):
    """The rate that the whole run had when it was as far as a ring is now."""
    place = total * (n - birth) / (total - birth)
    below, above = history[math.floor(place)], history[min(math.ceil(place), n)]
    return below + (place - math.floor(place)) * (above - below)


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.each(3)
def test_a_ring_follows_the_shape_from_its_birth(optimizer, kind):
    options = {"ring_schedule": "own", "total_steps": TOTAL, "rate_adaptation": None}
    history = []
    for n, o, _, births in run(optimizer, kind, **options):
        history.append(o.param_groups[0]["lr"])
        expected = [1.0]
        for birth in births[1:]:
            factor = shape(history, birth, n, TOTAL) / history[n] if history[n] else 1.0
            expected.append(min(factor, 10.0))
        for name in ("0.weight", "2.bias", "4.weight"):  # vectors and outputs too
            torch.testing.assert_close(
                o.rate_factors()[name],
                torch.tensor(expected, dtype=torch.float64),
                rtol=1e-9,
                atol=1e-12,
            )


def test_a_ring_is_born_at_the_rate_that_the_run_began_with():
    for n, o, _, births in run("sgd", "LambdaLR", ring_schedule="own", total_steps=TOTAL,
                               max_schedule_factor=100.0, rate_adaptation=None):  # fmt: skip
        if births[-1] == n and n:
            factor = o.rate_factors()["0.weight"][-1]
            assert float(factor) * o.param_groups[0]["lr"] == pytest.approx(LR)


@pytest.mark.parametrize("cap", [0.5, 2.0, 10.0])
def test_the_cap(cap):
    seen = []
    for _, o, _, _ in run("adam", "LambdaLR", ring_schedule="own", total_steps=TOTAL,
                          max_schedule_factor=cap, rate_adaptation=None):  # fmt: skip
        seen += o.rate_factors()["2.weight"][1:].tolist()
    assert max(seen) == pytest.approx(cap) or cap > max(seen) > 1


def test_composes_with_rate_adaptation_and_the_output_rate():
    for n, o, model, births in run(
        "sgd", "CosineAnnealingLR", ring_schedule="own", total_steps=TOTAL
    ):
        if n != 2 * STEPS + 1:
            continue
        rates = [LR * (1 + math.cos(math.pi * i / TOTAL)) / 2 for i in range(n + 1)]
        own = own_schedule(rates, births, TOTAL, 10.0)
        norms = o.weight_norms()
        for name in ("2.weight", "4.weight"):
            expected = norms[name] / norms[name][0] * torch.tensor(own, dtype=torch.float64)
            expected = expected / (4 if name == "4.weight" else 1)
            torch.testing.assert_close(o.rate_factors()[name], expected, rtol=1e-9, atol=0)
        assert plan_of("mlp").build_seed().get_parameter("4.weight").shape[1] == 4
        assert own[2] > own[1] > 1 and model.get_parameter("2.weight").shape[0] > 4


@pytest.mark.parametrize("optimizer", ["sgd", "AdamW"])
def test_after_the_end_and_at_rate_zero_factors_are_one(optimizer):
    options = {"ring_schedule": "own", "total_steps": 18, "rate_adaptation": None}
    for n, o, _, _ in run(optimizer, "LambdaLR", **options):
        if n >= 18:
            assert set(o.rate_factors()["2.weight"].tolist()) == {1.0}
        elif n == 9:
            assert float(o.rate_factors()["2.weight"][-1]) > 1
            rate, o.param_groups[0]["lr"] = o.param_groups[0]["lr"], 0.0
            assert set(o.rate_factors()["2.weight"].tolist()) == {1.0}
            o.param_groups[0]["lr"] = rate


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rate_zero_moves_nothing(optimizer):
    for n, o, model, _ in run(optimizer, "LambdaLR", steps=STEPS + 2, ring_schedule="own",
                              total_steps=TOTAL):  # fmt: skip
        if n == STEPS:
            o.param_groups[0]["lr"] = 0.0
            before = {k: p.detach().clone() for k, p in model.named_parameters()}
        if n == STEPS + 1:
            for name, p in model.named_parameters():
                torch.testing.assert_close(p.detach(), before[name], rtol=1e-15, atol=0, msg=name)


@pytest.mark.parametrize("wrapped", [False, True])
def test_each_group_has_its_own_schedule(wrapped):
    plan = plan_of("mlp")
    model = plan.build_seed()
    named = dict(model.named_parameters())
    groups = [
        {"params": [named["0.weight"]], "ring_schedule": "own", "total_steps": 12},
        {"params": [named["2.weight"]], "ring_schedule": "shared"},
        {"params": [named["4.weight"]], "ring_schedule": "own", "total_steps": 8, "lr": 0.01},
    ]
    if wrapped:
        optimizer = gr.optim.with_rings(torch.optim.AdamW(groups, lr=LR), rate_adaptation=None)
    else:
        optimizer = gr.optim.AdamW(groups, lr=LR, rate_adaptation=None)
    halving = [lambda n: 1 / (1 + n), lambda n: 0.9**n, lambda n: 1 - n / 16]
    scheduler = S.LambdaLR(optimizer, halving)
    grower = grower_of(model, plan, optimizer)
    for n in range(8):
        if n == 4:
            grower.grow()
        optimizer.zero_grad()
        backward(model, plan, n)
        if n == 6:
            found = optimizer.rate_factors()
            for name, group, total in (("0.weight", 0, 12), ("4.weight", 2, 8)):
                history = [halving[group](i) for i in range(7)]
                expected = shape(history, 4, 6, total) / history[6]
                assert found[name].tolist() == pytest.approx([1.0, expected])
            assert found["2.weight"].tolist() == [1.0, 1.0]
        optimizer.step()
        scheduler.step()


def test_a_wrapped_step_is_the_formula_at_each_ring_s_rate():
    """with_rings(AdamW) against torch's AdamW run once for each rate, put together by masks."""
    plan = plan_of("attention")
    model = plan.build_seed()
    optimizer = gr.optim.with_rings(
        torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    )
    grower = grower_of(model, plan, optimizer)
    for _ in range(2):
        backward(model, plan, 0)
        optimizer.step()
        grower.grow()
    optimizer.zero_grad()
    backward(model, plan, 1)
    factors, expected = optimizer.rate_factors(), {}
    for name, p in model.named_parameters():
        expected[name] = p.detach().clone()
        for k, factor in enumerate(factors[name]):
            twin = torch.nn.Parameter(p.detach().clone())
            one = torch.optim.AdamW([twin], lr=0.01 * float(factor), weight_decay=0.1)
            one.state[twin] = {n: v.clone() for n, v in optimizer.state[p].items()}
            twin.grad = p.grad
            one.step()
            mask = grower.rings.mask(name, k)
            expected[name][mask] = twin.detach()[mask]
    optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], rtol=1e-12, atol=1e-14, msg=name)
