"""Optimizers that drive others, state kept in odd places, and the state of scalars."""

from collections import defaultdict

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import growthring as gr
from growthring.optim.state import Grown, grow_state
from tests.optim.nets import assert_same, backward, grower_of, is_finite, plan_of, snapshot, train

T = torch.optim


class Lookahead(T.Optimizer):
    """The usual wrapper: another optimizer takes the fast steps."""

    def __init__(self, inner, period=2, shares=False):
        self.inner, self.period, self.count = inner, period, 0
        super().__init__(inner.param_groups, inner.defaults)
        self.param_groups = inner.param_groups
        self.state = inner.state if shares else defaultdict(dict)

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        starts = {p: p.detach().clone() for p in params if "slow" not in self.state.get(p, {})}
        self.inner.step()
        for p, start in starts.items():
            self.state[p]["slow"] = start
        self.count += 1
        if self.count % self.period == 0:
            for p, values in self.state.items():
                p.copy_(values["slow"].lerp_(p, 0.5))


class Chain(T.Optimizer):
    """Several optimizers as one."""

    def __init__(self, *parts):
        self.parts = list(parts)
        super().__init__([p for o in parts for g in o.param_groups for p in g["params"]], {})

    def step(self, closure=None):
        for part in self.parts:
            part.step()


INNER = {
    "SGD": lambda p: T.SGD(p, lr=0.05, momentum=0.9),
    "Adam": lambda p: T.Adam(p, lr=0.01),
    "gr.SGD": lambda p: gr.optim.SGD(p, lr=0.05, momentum=0.9, state_at_growth="keep"),
    "gr.AdamW": lambda p: gr.optim.AdamW(p, lr=0.01),
    "with_rings": lambda p: gr.optim.with_rings(T.RMSprop(p, lr=0.01)),
}


def wrapped(inner, shares, method="net2net", given=lambda outer: outer, **options):
    plan = plan_of("mlp")
    model = plan.build_seed()
    outer = Lookahead(INNER[inner](model.parameters()), shares=shares)
    grower = grower_of(model, plan, given(outer), method=method, **options)
    return plan, model, outer, grower


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.each(3)
def test_a_wrapper_and_the_optimizer_inside_grow_together(inner, shares):
    plan, model, outer, grower = wrapped(inner, shares)
    while not grower.is_full:
        train(model, plan, outer, 2, seed=grower.stage)  # the second step sets weights = slow
        grower.grow()
        for p in model.parameters():
            assert torch.equal(outer.state[p]["slow"], p.detach())
            for key, value in [*outer.state[p].items(), *outer.inner.state[p].items()]:
                if isinstance(value, torch.Tensor) and value.dim() and key != "births":
                    assert value.shape == p.shape, key
    losses = train(model, plan, outer, 3, seed=9)
    assert is_finite(model) and all(0 < loss < 1e3 for loss in losses)
    if hasattr(outer.inner, "rate_factors"):
        assert len(outer.inner.rate_factors()["0.weight"]) == grower.rings.num_rings


@pytest.mark.parametrize("given", [lambda o: o, lambda o: [o, o.inner], lambda o: [o.inner, o]])
@pytest.mark.parametrize("shares", [False, True])
def test_it_does_not_matter_which_of_them_is_given(given, shares):
    plan, model, outer, grower = wrapped("SGD", shares, given=given)
    train(model, plan, outer, 2)
    grower.grow()
    train(model, plan, outer, 2, seed=1)
    plan, twin, other, later = wrapped("SGD", shares)
    train(twin, plan, other, 2)
    later.grow()
    train(twin, plan, other, 2, seed=1)
    assert_same(dict(model.state_dict()), dict(twin.state_dict()))


@pytest.mark.parametrize("shares", [False, True])
def test_a_growth_takes_no_step_with_the_optimizer_inside(shares):
    """Gradients are there, a scheduler has put its own step on the instance, and hooks listen."""
    plan, model, outer, grower = wrapped("SGD", shares, method="paired", noise=0.0)
    scheduler = T.lr_scheduler.StepLR(outer.inner, 5)
    train(model, plan, outer, 1)
    scheduler.step()
    backward(model, plan, 7)
    head = model.get_parameter("4.bias").detach().clone()  # does not grow
    before, calls = model.eval()(plan.example_inputs).detach(), []
    handle = register_optimizer_step_pre_hook(lambda *_: calls.append("stepped"))
    try:
        grower.grow()
    finally:
        handle.remove()
    assert calls == [] and outer.count == 1
    assert torch.equal(model.get_parameter("4.bias").detach(), head)
    after = model.eval()(plan.example_inputs).detach()
    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-13)


def test_an_optimizer_inside_that_knows_its_wrapper():
    plan, model, outer, _ = wrapped("Adam", shares=False)
    outer.inner.outer = outer
    grower = grower_of(model, plan, outer, method="net2net")
    train(model, plan, outer, 2)
    grower.grow()
    train(model, plan, outer, 2)
    assert is_finite(model) and len(grower.optimizers) == 2


def test_a_chain_of_optimizers():
    plan = plan_of("mlp")
    model = plan.build_seed()
    params = list(model.parameters())
    chain = Chain(T.SGD(params[:3], lr=0.05, momentum=0.9), T.Adam(params[3:], lr=0.01))
    grower = grower_of(model, plan, chain, method="net2net")
    train(model, plan, chain, 2)
    grower.grow()
    for part in chain.parts:
        for p, values in part.state.items():
            assert all(v.shape == p.shape for v in values.values() if v.dim())
    train(model, plan, chain, 2)
    assert is_finite(model)


class Apart(T.SGD):
    """Keeps its slow weights in an attribute, as some implementations do."""

    def __init__(self, params):
        super().__init__(params, lr=0.05)
        self.slow_weights = [[p.detach().clone() for p in g["params"]] for g in self.param_groups]


class InGroups(T.SGD):
    """Keeps them in its parameter groups."""

    def __init__(self, params):
        super().__init__(params, lr=0.05)
        for group in self.param_groups:
            group["slow"] = {i: p.detach().clone() for i, p in enumerate(group["params"])}


@pytest.mark.parametrize("unknown", ["refuse", "reset"])
@pytest.mark.parametrize(
    ("kind", "place"),
    [(Apart, r"Apart\.slow_weights"), (InGroups, r"InGroups\.param_groups\[0\]\.slow")],
)
def test_tensors_outside_the_state_are_refused_by_name(kind, place, unknown):
    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = kind(model.parameters())
    grower = grower_of(model, plan, optimizer, unknown_state=unknown)
    train(model, plan, optimizer, 1)
    before = snapshot(model, optimizer, grower)
    with pytest.raises(gr.GrowthError, match=rf"{place} .*outside the optimizer's state"):
        grower.grow()
    assert_same(before, snapshot(model, optimizer, grower))


def test_an_attribute_that_lists_the_parameters_is_no_state():
    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = T.SGD(model.parameters(), lr=0.05)
    optimizer.all_params = list(model.parameters())
    grower = grower_of(model, plan, optimizer)
    grower.grow()
    train(model, plan, optimizer, 1)
    assert is_finite(model)


class FromZero(T.SGD):
    """An average that begins at zero: how much of it is weights depends on how long it ran."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("ema", torch.zeros_like(p)).lerp_(p, 0.1)


def test_state_that_is_a_part_of_the_weights_is_refused():
    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = FromZero(model.parameters(), lr=0.05)
    grower = grower_of(model, plan, optimizer)
    train(model, plan, optimizer, 2)
    before = snapshot(model, optimizer, grower)
    with pytest.raises(gr.GrowthError, match=r"'ema' of '0\.weight' .* no copy of the weights"):
        grower.grow()
    assert_same(before, snapshot(model, optimizer, grower))


class Kept(T.Adam):
    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("slow", p.detach().clone())


def test_the_state_of_a_scalar_is_told_from_a_number_of_steps():
    scalar = torch.nn.Parameter(torch.tensor(3.0))
    optimizer = Kept([scalar], lr=0.1)
    optimizer.param_groups[0]["state_at_growth"] = "rescale"
    scalar.grad = torch.tensor(2.0)
    optimizer.step()
    before = {k: v.clone() for k, v in optimizer.state[scalar].items()}
    notes = grow_state(
        optimizer,
        {scalar: Grown("t", (), [], 0.5)},
        lambda copies: {name: 0.5 * value for name, value in copies.items()},
        num_rings=2,
        unknown="refuse",
    )
    after = optimizer.state[scalar]
    assert notes == [] and all(v.shape == () for v in after.values())
    factors = {"step": 1.0, "exp_avg": 2.0, "exp_avg_sq": 4.0, "slow": 0.5}
    assert after.keys() == factors.keys()
    for key, factor in factors.items():
        torch.testing.assert_close(after[key], before[key] * factor)
