"""A rate and a warm-up for entries that a growth added: new_ring_rate and new_ring_warmup."""

import copy

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.errors import InputError

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))

KINDS = {
    "SGD": lambda p, **o: gr.optim.SGD(p, lr=0.1, momentum=0.9, **o),
    "Adam": lambda p, **o: gr.optim.Adam(p, lr=0.01, **o),
    "AdamW": lambda p, **o: gr.optim.AdamW(p, lr=0.01, **o),
    "AvaGrad": lambda p, **o: gr.optim.AvaGrad(p, lr=0.1, **o),
    "LARS": lambda p, **o: gr.optim.LARS(p, lr=1.0, **o),
    "with_rings": lambda p, **o: gr.optim.with_rings(torch.optim.RMSprop(p, lr=0.01), **o),
}


def grown(kind, before=3, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    plan = gr.plan(net, X, stages=2, start=0.25)
    model = plan.build_seed()
    optimizer = KINDS[kind](model.parameters(), **options)
    grower = gr.Grower(model, plan, optimizer=optimizer, noise=0.0)
    for _ in range(before):
        step(model, optimizer)
    grower.grow()
    return model, optimizer, grower


def step(model, optimizer):
    optimizer.zero_grad()
    model(X).square().mean().backward()
    optimizer.step()


def factors(optimizer):
    return [f.tolist() for f in optimizer.rate_factors().values()]


@pytest.mark.parametrize("kind", KINDS)
def test_new_entries_warm_up_to_their_own_rate(kind):
    model, optimizer, _ = grown(kind, new_ring_rate=1.3, new_ring_warmup=4)
    for expected in (0.325, 0.65, 0.975, 1.3, 1.3):
        for row in factors(optimizer):
            assert row == pytest.approx([1.0, expected])
        step(model, optimizer)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_the_plain_one_times_the_factor(kind):
    """Momentum and moments are those of the same gradients, so one step tells."""
    models = [grown(kind)[:2], grown(kind, new_ring_rate=2.0)[:2]]
    before = {n: p.detach().clone() for n, p in models[0][0].named_parameters()}
    for model, optimizer in models:
        step(model, optimizer)
    rings = {"0.weight": (slice(4, 16), slice(None)), "0.bias": (slice(4, 16),)}
    for name in rings:
        moved, moved_more = (
            dict(model.named_parameters())[name].detach() - before[name] for model, _ in models
        )
        new = torch.zeros_like(moved, dtype=torch.bool)
        new[rings[name]] = True
        torch.testing.assert_close(moved_more[~new], moved[~new], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(moved_more[new], 2 * moved[new], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_warm_up_alone_all_is_as_without(kind):
    model, optimizer, _ = grown(kind, new_ring_warmup=2)
    for _ in range(2):
        step(model, optimizer)
    assert all(row == [1.0, 1.0] for row in factors(optimizer))


@pytest.mark.parametrize("kind", ["AdamW", "with_rings"])
def test_composes_with_rates_by_norm_and_own_schedules(kind):
    options = {"rate_adaptation": "norm", "ring_schedule": "own", "total_steps": 20}
    _, plain, _ = grown(kind, **options)
    _, both, _ = grown(kind, **options, new_ring_rate=1.5)
    for a, b in zip(factors(plain), factors(both), strict=True):
        assert b == pytest.approx([a[0], 1.5 * a[1]], rel=1e-5)


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "with_rings"])
def test_a_warm_up_goes_on_where_it_was_saved(kind):
    options = {"new_ring_rate": 1.3, "new_ring_warmup": 6}
    model, optimizer, _ = grown(kind, **options)
    for _ in range(2):
        step(model, optimizer)
    saved = copy.deepcopy([x.state_dict() for x in (model, optimizer)])
    again, other, _ = grown(kind, **options)
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    assert factors(other) == factors(optimizer)
    for _ in range(5):
        step(model, optimizer)
        step(again, other)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["SGD", "with_rings"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"new_ring_rate": 0}, "new_ring_rate=0 is not a positive number"),
        ({"new_ring_rate": float("nan")}, "new_ring_rate=nan is not"),
        ({"new_ring_rate": "fast"}, "new_ring_rate='fast' is not"),
        ({"new_ring_warmup": -1}, "new_ring_warmup=-1 is not a number of optimizer steps"),
        ({"new_ring_warmup": 2.5}, "new_ring_warmup=2.5 is not"),
    ],
)
def test_what_cannot_work_is_refused(kind, options, message):
    with pytest.raises(InputError, match=message):
        KINDS[kind]([nn.Parameter(torch.ones(1))], **options)
