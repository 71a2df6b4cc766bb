"""Grower: in place, all or nothing, repeatable, resumable."""

import copy
import functools
import io
import json
import pickle

import pytest
import torch
from torch import nn

import growthring as gr
import growthring.growing.fading.fades as fading_module
import growthring.growing.followers as followers_module
import growthring.growing.module as growing_module
import growthring.growing.outcome as outcome_module
import growthring.growing.stage as stage_module
import growthring.methods.paired as paired_module
from growthring.core.axes import layout
from tests.discovered import discovered_once as discovered_once
from tests.growth_contract import Net, attributes, distance, make_plan, perturb, randn, run, tokens

X = randn(5, 4)


def block_net() -> nn.Module:
    """A residual stream with a layer norm, a batch norm, tied names and a buffer."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.width = 12
            self.a, self.n = nn.Linear(4, 12), nn.LayerNorm(12)
            self.up, self.bn, self.down = nn.Linear(12, 20), nn.BatchNorm1d(20), nn.Linear(20, 12)
            self.head = nn.Linear(12, 3)
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            h = self.a(x)
            h = h + self.down(self.bn(self.up(self.n(h))).relu())
            return self.head(h).reshape(-1, 3)

    return Block()


@functools.cache
def planned(stages):
    torch.manual_seed(0)
    return make_plan(block_net(), X, stages=stages)


def prepared(stages=4, **options):
    plan = planned(stages)
    torch.manual_seed(0)
    model = plan.build_seed()
    perturb(model)
    return plan, model, options


def train(model, optimizer, steps=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(steps):
        x = torch.randn(6, 4, generator=g, dtype=torch.float64)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def snapshot(model, grower, optimizer=None):
    """Everything that a failed growth must not touch, bit for bit."""
    tensors = {n: (id(t), t.detach().clone(), t.grad if t.grad is None else t.grad.clone())
               for n, t in [*model.named_parameters(), *model.named_buffers()]}  # fmt: skip
    flags = [
        (n, m.training, "forward" in vars(m), len(m._forward_hooks))
        for n, m in model.named_modules()
    ]
    state = None
    if optimizer is not None:
        state = [
            {
                k: v.clone() if isinstance(v, torch.Tensor) else v
                for k, v in optimizer.state[p].items()
            }
            for p in model.parameters()
            if p in optimizer.state
        ]
    return (
        tensors,
        attributes(model),
        flags,
        copy.deepcopy(grower.state_dict()),
        state,
        model.state_dict().keys(),
    )


def assert_unchanged(before, after):
    assert before[0].keys() == after[0].keys()
    for name, (identity, tensor, gradient) in before[0].items():
        other = after[0][name]
        assert identity == other[0], name
        assert tensor.shape == other[1].shape and torch.equal(tensor, other[1]), name
        assert (gradient is None) == (other[2] is None), name
        assert gradient is None or torch.equal(gradient, other[2]), name
    assert before[1] == after[1] and before[2] == after[2] and before[5] == after[5]
    assert_equal_states(before[3], after[3])
    if before[4] is not None:
        assert_equal_states(before[4], after[4])


def assert_equal_states(a, b):
    if isinstance(a, torch.Tensor):
        assert a.shape == b.shape and torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for k in a:
            assert_equal_states(a[k], b[k])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal_states(x, y)
    else:
        assert a == b


# What a growth does.


def test_parameters_keep_their_identity_and_optimizers_go_on():
    plan, model, _ = prepared()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    ids = [id(p) for p in model.parameters()]
    grower = gr.Grower(model, plan, optimizer)
    while not grower.is_full:
        train(model, optimizer)
        grower.grow()
        assert [id(p) for p in model.parameters()] == ids
        for p in model.parameters():
            assert optimizer.state[p]["exp_avg"].shape == p.shape
        train(model, optimizer)
        scheduler.step()
    assert {id(p) for g in optimizer.param_groups for p in g["params"]} == set(ids)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, amsgrad=True),
        lambda p: torch.optim.AdamW(p),
        lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
        lambda p: torch.optim.Adagrad(p),
        lambda p: torch.optim.NAdam(p),
        lambda p: torch.optim.Rprop(p),
    ],
    ids=["sgd", "adam", "adamw", "rmsprop", "adagrad", "nadam", "rprop"],
)
def test_optimizer_state_is_widened_as_for_new_parameters(make):
    plan, model, _ = prepared()
    optimizer = make(model.parameters())
    train(model, optimizer)
    before = {n: copy.deepcopy(optimizer.state[p]) for n, p in model.named_parameters()}
    gr.Grower(model, plan, optimizer).grow()
    widths = plan.stage_widths
    for name, p in model.named_parameters():
        for key, value in optimizer.state[p].items():
            old = before[name][key]
            if not isinstance(value, torch.Tensor) or value.dim() == 0:
                assert value == old
                continue
            assert value.shape == p.shape and value.dtype == old.dtype
            part, mask = value, torch.zeros(value.shape, dtype=torch.bool)
            for i, axis in enumerate(plan.groups.specs[name].axes):
                lay = layout(axis, widths[0], widths[1])
                part = part.index_select(i, lay.old)
                mask |= lay.is_new.reshape([-1] + [1] * (value.dim() - 1 - i))
            assert torch.equal(part, old), (name, key)
            # what Rprop gives to a new parameter is its step size
            start = optimizer.param_groups[0]["lr"] if key == "step_size" else 0
            assert bool((value[mask] == start).all())
    train(model, optimizer)


def test_several_optimizers():
    plan, model, _ = prepared()
    parameters = list(model.parameters())
    optimizers = [
        torch.optim.SGD(parameters[:4], lr=0.1, momentum=0.9),
        torch.optim.Adam(parameters[4:]),
    ]
    for optimizer in optimizers:
        train(model, optimizer, 1)
    gr.Grower(model, plan, optimizers).grow()
    assert optimizers[0].state[parameters[0]]["momentum_buffer"].shape == parameters[0].shape
    assert optimizers[1].state[parameters[4]]["exp_avg"].shape == parameters[4].shape


def test_gradients_are_widened():
    plan, model, _ = prepared()
    model(X).sum().backward()
    before = {n: p.grad.clone() for n, p in model.named_parameters()}
    report = gr.Grower(model, plan).grow()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.shape == p.shape
        part = p.grad
        for i, axis in enumerate(plan.groups.specs[name].axes):
            part = part.index_select(i, layout(axis, *plan.stage_widths[:2]).old)
        # a weight that was multiplied by c and computes the same has 1/c of the gradient
        torch.testing.assert_close(part, before[name] / report.factors.get(name, 1.0))
        assert int((p.grad != 0).sum()) == int((before[name] != 0).sum())


def test_modes_of_modules_and_requires_grad_are_kept():
    plan, model, _ = prepared()
    model.train()
    model.bn.eval()
    model.up.weight.requires_grad_(False)
    gr.Grower(model, plan).grow()
    assert model.training and not model.bn.training and model.head.training
    assert not model.up.weight.requires_grad and model.down.weight.requires_grad


def test_growing_does_not_touch_the_global_generator():
    plan, model, _ = prepared()
    state = torch.get_rng_state()
    gr.Grower(model, plan).grow()
    assert torch.equal(state, torch.get_rng_state())


def test_measuring_does_not_touch_running_statistics_or_counters():
    plan, model, _ = prepared()
    model.train()
    before = model.bn.running_mean.clone(), model.bn.num_batches_tracked.clone()
    grower = gr.Grower(model, plan, variance_transfer="off")
    grower.grow()
    width = len(before[0])
    assert torch.equal(model.bn.running_mean[:width], before[0])
    assert torch.equal(model.bn.num_batches_tracked, before[1])


def test_a_forward_that_counts_its_calls_is_left_as_it_was():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.b(self.a(x).relu())

    plan = make_plan(Counting(), X, stages=2)
    model = plan.build_seed()
    assert float(plan.model.calls) == 0 and float(model.calls) == 0
    gr.Grower(model, plan).grow()
    assert float(model.calls) == 0, "measuring must not leave traces in buffers"


def test_the_model_on_the_way_is_a_plain_module():
    plan, model, _ = prepared()
    grower = gr.Grower(model, plan)
    keys = list(plan.model.state_dict())
    while not grower.is_full:
        grower.grow()
        assert list(model.state_dict()) == keys
        torch.save(model.state_dict(), io.BytesIO())
    grower.finish()
    assert attributes(model) == attributes(plan.model)
    plan.model.load_state_dict(model.state_dict(), strict=True)
    assert not any("forward" in vars(m) or m._forward_hooks for m in model.modules())


def test_two_runs_with_one_seed_are_identical():
    results = []
    for _ in range(2):
        plan, model, _ = prepared()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        grower = gr.Grower(model, plan, optimizer, generator=torch.Generator().manual_seed(4))
        while not grower.is_full:
            train(model, optimizer)
            grower.grow()
        results.append(model.state_dict())
    assert all(torch.equal(results[0][k], results[1][k]) for k in results[0])


def test_another_seed_gives_other_weights():
    grown = []
    for seed in (1, 2):
        plan, model, _ = prepared()
        gr.Grower(model, plan, generator=torch.Generator().manual_seed(seed)).grow()
        grown.append(model.up.weight.detach())
    assert not torch.equal(*grown)


def test_rings_follow_the_stages():
    plan, model, _ = prepared()
    grower = gr.Grower(model, plan)
    for stage in range(1, plan.num_stages):
        grower.grow()
        assert grower.rings.num_rings == stage + 1
        for name, p in model.named_parameters():
            index = grower.rings.index(name)
            assert index.shape == p.shape
            assert sum(grower.rings.num_entries(name)) == p.numel()
            assert (
                grower.rings.num_entries(name)[0] == plan.build_seed().get_parameter(name).numel()
            )


def test_a_grower_may_start_at_any_stage():
    plan, model, _ = prepared()
    first = gr.Grower(model, plan)
    first.grow()
    first.finish()
    second = gr.Grower(model, plan)
    assert second.stage == 1 and second.rings.num_rings == 2
    assert torch.equal(second.rings.index("up.weight"), first.rings.index("up.weight"))
    second.grow()
    assert gr.Grower(copy.deepcopy(plan.model), plan).is_full


def test_a_second_grower_on_a_model_that_still_fades_goes_on():
    plan, model, _ = prepared()
    gr.Grower(model, plan).grow()  # leaves a norm fading, known to the first grower only
    second = gr.Grower(model, plan, noise=0.0, variance_transfer="off")
    before = model.eval()(X).detach()
    second.grow()
    assert distance(before, model(X).detach()) < 1e-12


# The report.


def test_report():
    plan, model, _ = prepared(3)
    report = gr.Grower(model, plan).grow()
    assert report.stage == 1
    assert report.parameters_before == plan.num_parameters(0)
    assert report.parameters_after == plan.num_parameters(1)
    assert {g.name: (g.before, g.after) for g in report.groups} == {
        g.name: (plan.widths(g.name)[0], plan.widths(g.name)[1]) for g in plan.groups.growable
    }
    assert report.factors and all(c != 1 for c in report.factors.values())
    assert report.output_factors == (1.0,)
    assert report.change.relative <= 1e-3 < 1
    assert 0 < report.change_with_noise.relative < 1e-1
    assert report.seconds > 0 and report.measure_seconds > 0
    assert any("advance" in note for note in report.notes)
    text = str(report)
    for part in ("stage 1", "->", "parameters", "width 3 -> 6", "rescaled", "outputs", "note"):
        assert part in text
    found = json.loads(json.dumps(report.as_dict()))
    assert found["groups"]["up"] == [5, 10] and found["stage"] == 1
    unmeasured = gr.Grower(plan.build_seed(), plan).grow(measure=False)
    assert unmeasured.change is None and json.dumps(unmeasured.as_dict())


def test_report_without_noise_is_the_same_twice():
    plan, model, _ = prepared()
    report = gr.Grower(model, plan, noise=0.0).grow()
    assert report.change_with_noise == report.change


def test_preserving_factors_of_gradients():
    # a gradient of an old entry is divided by the factor on it
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 3, 1),
    )
    x = randn(2, 3, 8, 8)
    plan = make_plan(net, x, stages=2)
    model = plan.build_seed()
    perturb(model)
    _, before = run(model, x, False)
    report = gr.Grower(model, plan, noise=0.0).grow()
    _, after = run(model, x, False)
    assert report.factors["3.weight"] == pytest.approx(0.5)
    old = after["3.weight"][:2, :2] * report.factors["3.weight"]
    torch.testing.assert_close(old, before["3.weight"])


# All or nothing.


class Boom(Exception):
    pass


def failing(number):
    """A stand-in for a function that raises at its n-th call and works otherwise."""

    def wrap(function):
        calls = []

        def replaced(*args, **kwargs):
            calls.append(1)
            if len(calls) == number:
                raise Boom("injected")
            return function(*args, **kwargs)

        return replaced

    return wrap


FAILURES = [
    ("worst", 1), ("worst", 3), ("run", 1), ("run", 2), ("run", 3), ("transfer", 1),
    ("tensors", 1), ("add_noise", 1), ("follow_attributes", 1), ("layout", 1), ("widen_constant", 1),
    ("widen_constant", 4), ("grow_state", 1), ("parameter_rings", 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "number"), FAILURES, ids=[f"{n}-{k}" for n, k in FAILURES])
@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.each(6)
def test_a_failure_anywhere_changes_nothing(monkeypatch, name, number, stage):
    places = {
        "layout": fading_module,
        "transfer": paired_module,
        "tensors": paired_module.PairedGrowth,
        "add_noise": paired_module.PairedGrowth,
        "follow_attributes": growing_module,
        "widen_constant": growing_module,
        "grow_state": followers_module,
        "parameter_rings": followers_module,
        "worst": outcome_module,
        "run": outcome_module,
    }
    place = places.get(name, stage_module)
    plan, model, _ = prepared()
    optimizer = torch.optim.Adam(model.parameters())
    grower = gr.Grower(model, plan, optimizer)
    train(model, optimizer)
    if stage:
        grower.grow()
        grower.advance(0.4)
        train(model, optimizer)
    model.bn.eval()
    before = snapshot(model, grower, optimizer)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, failing(number)(getattr(place, name)))
        with pytest.raises(
            gr.GrowthError, match=f"growing to stage {stage + 1} failed.*Boom.*as they were"
        ):
            grower.grow()
    assert_unchanged(before, snapshot(model, grower, optimizer))
    # and the same growth then gives what it would have given
    grower.grow()
    for k, v in undisturbed(stage).items():
        assert torch.equal(v, model.state_dict()[k]), k


@functools.cache
def undisturbed(stage):
    """What the steps of the test above come to without a failure."""
    plan, model, _ = prepared()
    optimizer = torch.optim.Adam(model.parameters())
    grower = gr.Grower(model, plan, optimizer)
    train(model, optimizer)
    if stage:
        grower.grow()
        grower.advance(0.4)
        train(model, optimizer)
    grower.grow()
    return model.state_dict()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_changes_nothing_and_passes(monkeypatch, interrupt):
    plan, model, _ = prepared()
    grower = gr.Grower(model, plan)
    before = snapshot(model, grower)

    def stop(*_):
        raise interrupt

    monkeypatch.setattr(outcome_module, "worst", stop)
    with pytest.raises(interrupt):
        grower.grow()
    assert_unchanged(before, snapshot(model, grower))


def test_a_forward_that_fails_at_the_new_width_changes_nothing():
    class Limited(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)
            self.limit = 100.5

        def forward(self, x):
            h = self.a(x)
            if h.shape[-1] > self.limit:
                raise ValueError("too wide for me")
            return self.b(h.relu())

    plan = make_plan(Limited(), X, stages=3)
    model = plan.build_seed()
    model.limit = 3.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer)
    grower = gr.Grower(model, plan, optimizer)
    before = snapshot(model, grower, optimizer)
    with pytest.raises(gr.GrowthError, match="too wide for me"):
        grower.grow()
    assert_unchanged(before, snapshot(model, grower, optimizer))


def test_optimizer_state_of_another_shape_is_refused_and_changes_nothing():
    plan, model, _ = prepared()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer)
    optimizer.state[model.down.weight]["factored"] = torch.ones(3)
    grower = gr.Grower(model, plan, optimizer)
    before = snapshot(model, grower, optimizer)
    with pytest.raises(gr.GrowthError, match=r"(?s)'factored' of 'down.weight'.*\(3,\)"):
        grower.grow()
    assert_unchanged(before, snapshot(model, grower, optimizer))


def test_a_model_that_changed_in_secret_is_refused():
    plan, model, _ = prepared()
    grower = gr.Grower(model, plan)
    # something that no rule could know: the forward adds the width
    model.head.forward = lambda h: nn.Linear.forward(model.head, h) + h.shape[-1]
    before = snapshot(model, grower)
    with pytest.raises(
        gr.GrowthError, match=r"would change the outputs in eval mode by .*as they were"
    ):
        grower.grow()
    assert_unchanged(before, snapshot(model, grower))


def test_weights_that_are_not_finite_are_refused_and_named():
    plan, model, _ = prepared()
    grower = gr.Grower(model, plan)
    with torch.no_grad():
        model.up.weight[0, 0] = float("nan")
    before = {n: t.shape for n, t in model.state_dict().items()}
    with pytest.raises(gr.GrowthError, match=r"'up\.weight' holds values that are not finite"):
        grower.grow()
    assert {n: t.shape for n, t in model.state_dict().items()} == before and grower.stage == 0


# Saving and loading.


def test_resuming_in_a_new_process_is_bit_identical():
    def start():
        plan, model, _ = prepared()
        optimizer = torch.optim.Adam(model.parameters())
        return (
            model,
            optimizer,
            gr.Grower(model, plan, optimizer, generator=torch.Generator().manual_seed(9)),
        )

    model, optimizer, grower = start()
    train(model, optimizer)
    grower.grow()
    grower.advance(0.3)
    train(model, optimizer)
    saved = io.BytesIO()
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "grower": grower.state_dict(),
        },
        saved,
    )
    saved.seek(0)
    state = torch.load(saved, weights_only=True)

    other, other_optimizer, other_grower = start()
    other_grower.load_state_dict(state["grower"])
    other.load_state_dict(state["model"], strict=True)
    other_optimizer.load_state_dict(state["optimizer"])
    assert other_grower.stage == 1 and other_grower.fading_norms == grower.fading_norms == {
        "n": 0.3
    }
    assert attributes(other) == attributes(model)
    for a, b in ((model, other),):
        a.eval(), b.eval()
        assert torch.equal(a(X), b(X))
    for m, o, g in ((model, optimizer, grower), (other, other_optimizer, other_grower)):
        train(m, o, seed=3)
        g.advance(0.6)
        train(m, o, seed=4)
        g.grow()
        g.advance(0.2)
        train(m, o, seed=5)
        g.grow()
        g.finish()
    for k, v in model.state_dict().items():
        assert torch.equal(v, other.state_dict()[k]), k
    assert_equal_states(grower.state_dict(), other_grower.state_dict())


def test_state_dict_does_not_alias_the_grower():
    plan, model, _ = prepared()
    grower = gr.Grower(model, plan)
    grower.grow()
    state = grower.state_dict()
    frozen = copy.deepcopy(state)
    grower.advance(0.5)
    grower.grow()
    assert_equal_states(state, frozen)


def test_a_state_of_another_plan_is_refused():
    plan, model, _ = prepared()
    other_plan, other, _ = prepared(stages=3)
    state = gr.Grower(other, other_plan).state_dict()
    with pytest.raises(gr.GrowthError, match="another plan"):
        gr.Grower(model, plan).load_state_dict(state)


def test_loading_an_earlier_stage_is_refused_and_changes_nothing():
    plan, model, _ = prepared()
    grower = gr.Grower(model, plan)
    state = grower.state_dict()
    grower.grow()
    before = snapshot(model, grower)
    with pytest.raises(
        gr.GrowthError, match="the model is at stage 1, the saved growth at stage 0"
    ):
        grower.load_state_dict(state)
    assert_unchanged(before, snapshot(model, grower))


@pytest.mark.parametrize("missing", ["stage", "rings", "widths", "fades", "generator"])
def test_a_state_that_is_not_whole_is_refused_and_changes_nothing(missing):
    plan, model, _ = prepared()
    first = gr.Grower(model, plan)
    first.grow()
    state = first.state_dict()
    del state[missing]
    _, other, _ = prepared()
    grower = gr.Grower(other, plan)
    before = snapshot(other, grower)
    with pytest.raises(gr.GrowthError):
        grower.load_state_dict(state)
    assert_unchanged(before, snapshot(other, grower))


# Copies and devices of generators.


def test_a_deep_copy_on_the_way_is_independent():
    plan, model, _ = prepared()
    grower = gr.Grower(model, plan)
    grower.grow()
    grower.advance(0.25)
    twin = copy.deepcopy(model)
    model.eval(), twin.eval()
    assert torch.equal(model(X), twin(X))
    with torch.no_grad():
        model.n.weight.mul_(3)
    assert not torch.equal(model(X), twin(X)), "the copy's norm must use its own gain"
    before = twin(X)
    with torch.no_grad():
        twin.n.weight.mul_(3)
    assert not torch.equal(before, twin(X))


def test_a_model_on_the_way_can_be_pickled():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    plan = make_plan(net, X, stages=3)
    model = plan.build_seed()
    grower = gr.Grower(model, plan)
    grower.grow()
    twin = pickle.loads(pickle.dumps(model))
    model.eval(), twin.eval()
    assert torch.equal(model(X), twin(X))


def test_growing_a_model_of_integers_and_tables():
    torch.manual_seed(0)
    net = Net(lambda self, x: self.b(self.e(x)), e=nn.Embedding(10, 8), b=nn.Linear(8, 3))
    plan = make_plan(net, tokens(2, 5), stages=2)
    model = plan.build_seed()
    before = model(tokens(2, 5))
    gr.Grower(model, plan, noise=0.0).grow()
    assert distance(before.detach(), model(tokens(2, 5)).detach()) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.each(2)
def test_half_precision(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3)).to(dtype)
    x = X.to(dtype)
    plan = gr.plan(net, x, stages=3)
    model = plan.build_seed()
    grower = gr.Grower(model, plan, noise=0.0)
    before = model(x)
    report = grower.grow()
    assert model[0].weight.dtype is dtype
    assert distance(before.detach(), model(x).detach()) < 5e-2
    assert report.change.relative < 5e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_wrong_growth_is_caught_in_every_precision(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)
    plan = gr.plan(net, X.to(dtype), stages=2)
    model = plan.build_seed()
    model[2].forward = lambda h: nn.Linear.forward(model[2], h) * (1 + 0.1 * h.shape[-1])
    with pytest.raises(gr.GrowthError, match="would change the outputs"):
        gr.Grower(model, plan, noise=0.0).grow()
