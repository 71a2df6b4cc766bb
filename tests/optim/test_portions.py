"""Adam's step in portions and with old rings: cut anywhere, and across the age where bias corrections end."""

import copy

import pytest
import torch

import growthring as gr
from growthring.optim import geometry, ringbatch
from growthring.optim.ages import settled_age
from tests.optim import reference
from tests.optim.nets import assert_same, backward, grower_of, plan_of, train
from tests.optim.reference import Reference
from tests.optim.test_updates import error_after_five_growths

# Of β₂ = 0.6 nothing is left after 74 steps in double precision, 34 in single.
FAST = {"lr": 0.01, "betas": (0.5, 0.6), "rate_adaptation": None}


@pytest.mark.each(3)
@pytest.mark.parametrize("shortest_run", [1, 1 << 14])
@pytest.mark.parametrize("case", ["adam decay", "adam amsgrad", "adamw", "sgd momentum", "avagrad"])
@pytest.mark.parametrize("net", ["residual", "attention"])
def test_portions_of_a_few_entries_agree_with_the_reference(monkeypatch, shortest_run, case, net):
    for module in (geometry, ringbatch):
        monkeypatch.setattr(module, "PORTION_ENTRIES", 50)
    monkeypatch.setattr(geometry, "MIN_RUN_ENTRIES", shortest_run)
    assert error_after_five_growths(case, net, torch.float64) <= 1e-12


def test_pieces_are_no_larger_than_a_portion(monkeypatch):
    for module in (geometry, ringbatch):
        monkeypatch.setattr(module, "PORTION_ENTRIES", 50)
    plan = plan_of("attention")
    model = plan.build_seed()
    optimizer = gr.optim.Adam(model.parameters())
    grower_of(model, plan, optimizer).grow(measure=False)
    params = list(model.parameters())
    batch = optimizer._ring_rates.batch(params)
    table = torch.ones(len(params), 2, dtype=torch.float64)
    seen = 0
    for _, (parts,), (factors,) in batch.portions([params], [table]):
        assert sum(p.numel() for p in parts) <= 50
        assert all(
            torch.equal(f.expand_as(p), torch.ones_like(p))
            for p, f in zip(parts, factors, strict=True)
        )
        seen += sum(p.numel() for p in parts)
    assert seen == sum(p.numel() for p in params)


class Old:
    """An MLP that has grown twice, and trains until its rings are old."""

    def __init__(self, dtype=torch.float64, **options):
        self.plan = plan_of("mlp", dtype)
        self.model = self.plan.build_seed()
        self.optimizer = gr.optim.AdamW(self.model.parameters(), **{**FAST, **options})
        self.grower = grower_of(self.model, self.plan, self.optimizer)
        self.ref = Reference(
            reference.adam, self.model, self.grower, {}, decoupled=True, weight_decay=0.01, **FAST
        )
        self.steps = 0

    def go(self, steps):
        for _ in range(steps):
            self.optimizer.zero_grad()
            backward(self.model, self.plan, self.steps)
            self.ref.step(self.model, FAST["lr"])
            self.optimizer.step()
            self.steps += 1

    def grow(self):
        stage = self.grower.stage
        self.ref.grow(self.model, self.grower.grow(measure=False), stage)

    def is_ringed(self):
        group = self.optimizer.param_groups[0]
        return [self.optimizer._is_ringed_now(group, p) for p in group["params"]]


@pytest.mark.parametrize(
    ("dtype", "age", "rounding"), [(torch.float64, 74, 1e-12), (torch.float32, 34, 2e-5)]
)
def test_old_rings_take_torch_steps_that_agree_with_the_formula(dtype, age, rounding):
    assert age - 1 < settled_age(0.6, dtype) <= age
    run = Old(dtype)
    run.go(3)
    run.grow()
    run.go(4)
    run.grow()
    assert all(run.is_ringed()[:-1])  # the last bias has no rings
    run.go(age - 2)
    assert any(run.is_ringed())
    run.go(1)
    assert not any(run.is_ringed()) and run.ref.error(run.model) <= rounding
    run.go(10)
    assert run.ref.error(run.model) <= rounding
    run.grow()  # young again
    assert all(run.is_ringed()[:-1])
    run.go(3)
    assert run.ref.error(run.model) <= rounding


def test_old_rings_with_rates_of_their_own_stay_ringed():
    run = Old(rate_adaptation="norm")
    run.go(1)
    run.grow()
    run.go(100)
    weights = [p.dim() > 1 for p in run.model.parameters()]
    assert run.is_ringed() == weights


def test_steps_of_old_rings_are_those_of_torch_to_the_bit():
    run = Old(torch.float32)
    run.go(1)
    run.grow()
    run.go(60)
    twin = copy.deepcopy(run.model)
    options = {"lr": FAST["lr"], "betas": FAST["betas"]}
    theirs = torch.optim.AdamW(twin.parameters(), **options)
    state = run.optimizer.state_dict()["state"]
    saved = {i: {k: v for k, v in one.items() if k != "births"} for i, one in state.items()}
    theirs.load_state_dict({**theirs.state_dict(), "state": copy.deepcopy(saved)})
    train(run.model, run.plan, run.optimizer, 3)
    train(twin, run.plan, theirs, 3)
    assert_same(dict(run.model.state_dict()), dict(twin.state_dict()))


def test_a_resume_across_the_age_is_bit_identical():
    ends = []
    for resume in (False, True):
        run = Old(torch.float32)
        run.go(2)
        run.grow()
        run.go(32)
        assert any(run.is_ringed())
        if resume:
            saved = [x.state_dict() for x in (run.grower, run.model, run.optimizer)]
            saved, steps = copy.deepcopy(saved), run.steps
            run = Old(torch.float32)
            for part, state in zip((run.grower, run.model, run.optimizer), saved, strict=True):
                part.load_state_dict(state)
        else:
            steps = run.steps
        for i in range(steps, steps + 6):
            run.optimizer.zero_grad()
            backward(run.model, run.plan, i)
            run.optimizer.step()
        assert not any(run.is_ringed())
        ends.append([dict(run.model.state_dict()), run.optimizer.state_dict()["state"]])
    assert_same(*ends)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entries_without_a_gradient_do_not_move(dtype):
    """Their mean square is 0, and so must its root be."""
    run = Old(dtype, rate_adaptation="norm", weight_decay=0.0)
    run.go(1)
    run.grow()
    run.optimizer.zero_grad()
    new = run.grower.rings.mask("2.weight", 1)
    weight = run.model.get_parameter("2.weight")
    weight.grad = torch.where(new, torch.zeros_like(weight), torch.ones_like(weight))
    before = weight.detach().clone()
    run.optimizer.step()
    assert torch.equal(weight[new], before[new]) and bool(torch.isfinite(weight).all())
    assert bool((weight[~new] != before[~new]).all())


def test_a_rate_of_zero_moves_nothing():
    run = Old(lr=0.0, rate_adaptation="norm")
    before = copy.deepcopy(dict(run.model.state_dict()))
    train(run.model, run.plan, run.optimizer, 2)
    assert_same(before, dict(run.model.state_dict()))
    run.grow()
    before = copy.deepcopy(dict(run.model.state_dict()))
    train(run.model, run.plan, run.optimizer, 2)
    assert_same(before, dict(run.model.state_dict()))
