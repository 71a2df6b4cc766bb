"""State of any optimizer through a growth: what a new parameter gets for new entries, old ones kept."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import growthring as gr
from tests.growth_contract import factor_of
from tests.optim.nets import assert_same, backward, grower_of, is_finite, is_old, plan_of, train

T = torch.optim
# name: optimizer, state that grows -> value of new entries (None: the grown weights)
ZERO = {"exp_avg": 0.0, "exp_avg_sq": 0.0}
TORCH = {
    "SGD": (lambda p: T.SGD(p, lr=0.01, momentum=0.9), {"momentum_buffer": 0.0}),
    "SGD weight decay": (
        lambda p: T.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1),
        {"momentum_buffer": 0.0},
    ),
    "Adam": (lambda p: T.Adam(p), ZERO),
    "Adam amsgrad": (lambda p: T.Adam(p, amsgrad=True), {**ZERO, "max_exp_avg_sq": 0.0}),
    "Adam lr 0": (lambda p: T.Adam(p, lr=0.0), ZERO),
    "Adam tensor lr": (lambda p: T.Adam(p, lr=torch.tensor(1e-3)), ZERO),
    "AdamW fused": (lambda p: T.AdamW(p, fused=True), ZERO),
    "AdamW": (lambda p: T.AdamW(p, weight_decay=0.3), ZERO),
    "NAdam": (lambda p: T.NAdam(p), ZERO),
    "RAdam": (lambda p: T.RAdam(p), ZERO),
    "RMSprop": (
        lambda p: T.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
        {"square_avg": 0.0, "momentum_buffer": 0.0, "grad_avg": 0.0},
    ),
    "Adagrad": (lambda p: T.Adagrad(p, initial_accumulator_value=0.25), {"sum": 0.25}),
    "Adadelta": (lambda p: T.Adadelta(p), {"square_avg": 0.0, "acc_delta": 0.0}),
    "Adamax": (lambda p: T.Adamax(p), {"exp_avg": 0.0, "exp_inf": ...}),
    "ASGD": (lambda p: T.ASGD(p), {"ax": None}),
    "ASGD large lr": (lambda p: T.ASGD(p, lr=0.5), {"ax": None}),
    "ASGD averaging": (lambda p: T.ASGD(p, t0=0.0), {"ax": None}),
    "Rprop": (lambda p: T.Rprop(p, lr=0.003), {"prev": 0.0, "step_size": 0.003}),
    "gr.SGD": (
        lambda p: gr.optim.SGD(p, lr=0.01, momentum=0.9, state_at_growth="keep"),
        {"momentum_buffer": 0.0},
    ),
    "gr.Adam": (lambda p: gr.optim.Adam(p, amsgrad=True), {**ZERO, "max_exp_avg_sq": 0.0}),
    "gr.AvaGrad": (lambda p: gr.optim.AvaGrad(p), ZERO),
    "gr.LARS": (
        lambda p: gr.optim.LARS(p, state_at_growth="keep"),
        {"momentum_buffer": 0.0},
    ),
    "with_rings": (lambda p: gr.optim.with_rings(T.NAdam(p)), ZERO),
}


def package(module, make, fills):
    return lambda p: make(pytest.importorskip(module))(p), fills


def lively(optimizer):
    """Schedule-free methods want to be told the mode."""
    if hasattr(optimizer, "train"):
        optimizer.train()
    return optimizer


PYPI = {
    "schedulefree SGD": package(
        "schedulefree", lambda m: lambda p: lively(m.SGDScheduleFree(p, lr=0.05)), {"z": None}
    ),
    "schedulefree AdamW": package(
        "schedulefree",
        lambda m: lambda p: lively(m.AdamWScheduleFree(p, lr=0.01, weight_decay=0.1)),
        {"z": None, "exp_avg_sq": 0.0},
    ),
    "schedulefree RAdam": package(
        "schedulefree",
        lambda m: lambda p: lively(m.RAdamScheduleFree(p, lr=0.01)),
        {"z": None, "exp_avg_sq": 0.0},
    ),
    "Lion": package("lion_pytorch", lambda m: lambda p: m.Lion(p, lr=1e-3), {"exp_avg": 0.0}),
    "Prodigy": package(
        "prodigyopt", lambda m: lambda p: m.Prodigy(p), {"p0": None, "s": 0.0, **ZERO}
    ),
}
ALL = TORCH | PYPI


def grown(kind, net="attention", steps=4, **options):
    plan = plan_of(net)
    model = plan.build_seed()
    optimizer = ALL[kind][0](list(model.parameters()))
    grower = grower_of(model, plan, optimizer, **options)
    train(model, plan, optimizer, steps)
    before = {n: copy.deepcopy(dict(optimizer.state[p])) for n, p in model.named_parameters()}
    report = grower.grow()
    return plan, model, optimizer, grower, before, report


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.each(2)
def test_old_entries_are_kept_and_new_ones_start_as_a_new_parameter(kind):
    plan, model, optimizer, grower, before, report = grown(kind)
    fills = ALL[kind][1]
    for name, p in model.named_parameters():
        old = is_old(grower, name)
        for key, value in before[name].items():
            now = optimizer.state[p][key]
            if key == "births":
                continue
            if key not in fills or not isinstance(value, torch.Tensor) or value.numel() == 1:
                assert_same(value, now, f"{name}.{key}")  # scalars stay
                continue
            fill, shape = fills[key], p.shape if now.dim() == p.dim() else (p.numel(),)
            assert now.shape == shape, (name, key)
            now = now.view_as(p)
            c = factor_of(plan, name, report, 0, value.view(-1)) if fill is None else 1.0
            c = c.expand(value.shape).flatten() if isinstance(c, torch.Tensor) else c
            torch.testing.assert_close(now[old], value.flatten() * c, rtol=1e-14, atol=0)
            if fill is None:
                assert torch.equal(now[~old], p.detach()[~old]), (name, key)
            elif fill is not ...:
                assert bool((now[~old] == fill).all()), (name, key)
    assert set(fills) <= set(optimizer.state[model.get_parameter("qkv.weight")])


@pytest.mark.each(8)
@pytest.mark.parametrize("kind", ALL)
def test_training_goes_on_to_the_end(kind):
    plan, model, optimizer, grower, _, _ = grown(kind, "residual")
    while not grower.is_full:
        train(model, plan, optimizer, 2, seed=grower.stage)
        grower.grow(measure=False)
    losses = train(model, plan, optimizer, 3, seed=9)
    assert is_finite(model) and all(0 < loss < 1e3 for loss in losses)
    for p in model.parameters():
        for key, value in optimizer.state[p].items():
            if isinstance(value, torch.Tensor):
                assert bool(torch.isfinite(value).all()), key


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.each(2)
def test_asking_changes_neither_randomness_nor_optimizer_nor_scheduler(kind):
    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = ALL[kind][0](list(model.parameters()))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    grower = grower_of(model, plan, optimizer)
    train(model, plan, optimizer, 2)
    scheduler.step()
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    groups = [{k: copy.deepcopy(v) for k, v in g.items() if k != "params"}
              for g in optimizer.param_groups]  # fmt: skip
    plain = {k: v for k, v in vars(optimizer).items() if isinstance(v, (int, float, str, bool))}
    random, counters = torch.get_rng_state(), copy.deepcopy(scheduler.state_dict())
    grower.grow()
    assert torch.equal(random, torch.get_rng_state()) and calls == []
    assert_same(counters, scheduler.state_dict())
    for old, group in zip(groups, optimizer.param_groups, strict=True):
        assert_same(old, {k: v for k, v in group.items() if k != "params"})
    assert plain == {k: vars(optimizer)[k] for k in plain}


def test_global_step_hooks_see_no_step_at_a_growth():
    calls = []
    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = T.Adam(model.parameters())
    grower = grower_of(model, plan, optimizer)
    train(model, plan, optimizer, 1)
    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append("before")),
        register_optimizer_step_post_hook(lambda *_: calls.append("after")),
    ]
    try:
        grower.grow()
    finally:
        for handle in handles:
            handle.remove()
    assert calls == []


def test_an_optimizer_with_a_record_of_its_own_is_not_written_to():
    class Recording(T.SGD):
        def __init__(self, params):
            super().__init__(params, lr=0.01, momentum=0.9)
            self.log, self.counts = [], {"steps": 0}

        def step(self, closure=None):
            self.log.append(len(self.param_groups[0]["params"]))
            self.counts["steps"] += 1
            return super().step(closure)

    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = Recording(model.parameters())
    grower = grower_of(model, plan, optimizer)
    train(model, plan, optimizer, 2)
    grower.grow()
    assert optimizer.log == [6, 6] and optimizer.counts == {"steps": 2}


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_state_has_the_layout_of_its_parameter(memory):
    plan = plan_of("residual")
    model = plan.build_seed().to(memory_format=memory)
    optimizer = T.Adam(model.parameters())
    grower = grower_of(model, plan, optimizer)
    train(model, plan, optimizer, 1)
    grower.grow()
    p = model.get_parameter("a.weight")
    assert p.is_contiguous(memory_format=memory)
    assert optimizer.state[p]["exp_avg"].stride() == p.stride()


def test_schedule_free_evaluates_the_same_after_a_growth():
    """Eval mode shows the average x, made of y and z: both grow alike."""
    schedulefree = pytest.importorskip("schedulefree")
    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = lively(schedulefree.AdamWScheduleFree(model.parameters(), lr=0.05))
    grower = grower_of(model, plan, optimizer, noise=0.0)
    train(model, plan, optimizer, 5)
    results = []
    for _ in range(2):
        optimizer.eval()
        results.append(model(plan.example_inputs).detach())
        optimizer.train()
        if not results[1:]:
            grower.grow()
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-12)


def test_module_parameters_that_do_not_grow_keep_their_state():
    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = T.Adam([*model.parameters(), nn.Parameter(torch.ones(3))])
    grower = grower_of(model, plan, optimizer)
    backward(model, plan, 0)
    optimizer.param_groups[0]["params"][-1].grad = torch.ones(3)
    optimizer.step()
    before = copy.deepcopy(optimizer.state[optimizer.param_groups[0]["params"][-1]])
    head = copy.deepcopy(dict(optimizer.state[model.get_parameter("4.bias")]))
    grower.grow()
    assert_same(before, optimizer.state[optimizer.param_groups[0]["params"][-1]])
    assert_same(head, dict(optimizer.state[model.get_parameter("4.bias")]))
