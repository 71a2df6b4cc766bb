"""The proof of a plan and the measuring of growths: both modes, fresh inputs, tolerances that follow rounding."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import growthring as gr
from growthring.graph.rules.registry import RULES
from growthring.growing.proof import prove
from growthring.growing.trials import make_trials, rounding_limit, run, worst
from growthring.methods import Paired

X = torch.Generator().manual_seed(5)


def randn(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7), dtype=dtype)


class Branching(nn.Module):
    """Computes something of its own in train mode."""

    def __init__(self, train_mode):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
        self.train_mode = train_mode

    def forward(self, x):
        h = F.gelu(self.a(x))
        return self.train_mode(self, h) if self.training else self.b(h)


def softmax_over_width(self, h):
    return self.b(h.softmax(-1))


def features(self, h):
    return self.b(h), h


def largest(self, h):
    return self.b(h) + h.amax(-1, keepdim=True)


def ordered(self, h):
    return self.b(h.sort(-1).values)


@pytest.mark.parametrize("train_mode", [softmax_over_width, features, largest, ordered])
def test_code_that_only_train_mode_runs_freezes_what_it_touches(train_mode):
    model = Branching(train_mode).double()
    with pytest.raises(gr.GrowthError, match="nothing in Branching can grow"):
        gr.plan(model, randn(3, 4), stages=2)


def grown(model, inputs, **options):
    """Every growth of a model without noise, and the outputs in both modes before and after each."""
    plan = gr.plan(model, inputs, stages=3, start=0.5, growth=None)
    seed = plan.build_seed()
    with torch.no_grad():
        for p in seed.parameters():
            p.add_(
                0.1
                * torch.randn(p.shape, generator=torch.Generator().manual_seed(3), dtype=p.dtype)
            )
    grower = gr.Grower(seed, plan, noise=0.0, **options)
    reports = []
    while not grower.is_full:
        reports.append(grower.grow())
    return plan, seed, reports


def scaled_in_training(self, h):
    return self.b(h * 2.0 + 1.0)


def test_train_mode_is_measured_and_reported():
    _, _, reports = grown(Branching(scaled_in_training).double(), randn(3, 4))
    for report in reports:
        assert report.change.relative < 1e-12 and report.train_change.relative < 1e-12
        assert "in train mode" in str(report)
        assert report.as_dict()["train_change"]["relative"] < 1e-12


def test_dropout_masks_of_other_widths_are_no_change():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2)).double()
    _, _, reports = grown(model, randn(3, 4))
    assert all(r.train_change.relative < 1e-12 for r in reports)


def test_rrelu_and_stochastic_depth_in_train_mode():
    class Depth(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            h = F.rrelu(self.a(x), training=self.training)
            keep = torch.rand(len(h), 1, dtype=h.dtype) + 0.8 if self.training else 1.0
            return self.c(h + F.relu(self.b(h)) * (keep.floor() if self.training else keep))

    _, _, reports = grown(Depth().double(), randn(3, 4))
    assert all(r.train_change.relative < 1e-12 for r in reports)


def test_a_batch_of_one_is_doubled_for_train_mode():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).double()
    plan, _, reports = grown(model, randn(1, 4), variance_transfer="off")
    assert all(r.train_change.relative < 1e-12 for r in reports)
    assert not any("train mode" in note for note in plan.notes)


def test_a_train_mode_that_cannot_be_traced_is_blamed_for_what_it_changes():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 16), nn.Linear(16, 2)

        def forward(self, x):
            h = self.a(x).relu()
            if self.training:  # a branch on values, which torch.export refuses
                h = h / (1 + h.norm(dim=-1, keepdim=True)) if h.sum() > -1 else h
            return self.b(h)

    plan = gr.plan(Hidden().double(), randn(5, 4), stages=2)
    with pytest.raises(gr.GrowthError, match=r"in train mode by .* train mode cannot be traced"):
        gr.Grower(plan.build_seed(), plan)


def test_a_model_that_cannot_run_in_train_mode_says_so():
    class Targets(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x, targets=None):
            y = self.b(self.a(x).relu())
            if self.training:
                return F.mse_loss(y, targets)
            return y

    model = Targets().double()
    plan = gr.plan(model, randn(3, 4), stages=2)
    assert any("train mode cannot be traced" in note for note in plan.notes)
    report = gr.Grower(plan.build_seed(), plan).grow()
    assert report.train_change is None
    assert any("train mode was not looked at" in note for note in report.notes)


# What a pass leaves behind.


@dataclass(slots=True)
class Slotted:
    logits: torch.Tensor
    hidden: torch.Tensor


class Returning(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
        self.wrap = wrap

    def forward(self, x):
        h = self.a(x).relu()
        return self.wrap(self, self.b(h), h)


class WithSlots:
    __slots__ = ("hidden", "logits")

    def __init__(self, logits, hidden):
        self.logits, self.hidden = logits, hidden


@pytest.mark.parametrize("wrap", [Slotted, WithSlots, lambda y, h: {"nested": [Slotted(y, h)]}])
def test_outputs_in_slots_keep_their_shape(wrap):
    model = Returning(lambda self, y, h: wrap(y, h))
    with pytest.raises(gr.GrowthError, match="axis 1 of model output 1"):
        gr.plan(model, randn(3, 4, dtype=torch.float32), stages=2)


def test_parts_in_slots_can_be_chosen():
    model = Returning(lambda self, y, h: Slotted(y, h))
    plan = gr.plan(model, randn(3, 4, dtype=torch.float32), stages=2, outputs=["logits"])
    assert plan.groups["a"].grows
    assert gr.Grower(plan.build_seed(), plan, noise=0.0).grow().change.relative < 1e-5


def test_features_left_on_a_module_are_told_of():
    def leave(self, y, h):
        self.features = h
        return y

    plan = gr.plan(Returning(leave), randn(3, 4, dtype=torch.float32), stages=2)
    assert any("leaves 'features' on a module" in note for note in plan.notes)


def test_a_loss_left_on_a_module_does_not_change():
    def leave(self, y, h):
        self.penalty = (y.square().sum() + h.amax()).reshape(())
        return y

    with pytest.raises(gr.GrowthError, match="amax"):
        gr.plan(Returning(leave), randn(3, 4, dtype=torch.float32), stages=2)

    def loss(self, y, h):
        self.losses = {"penalty": y.square().sum()}
        return y

    model = Returning(loss).double()
    plan = gr.plan(model, randn(3, 4), stages=2)
    seed = plan.build_seed()
    before = seed(randn(3, 4)), seed.losses["penalty"].item()
    gr.Grower(seed, plan, noise=0.0).grow()
    assert torch.allclose(seed(randn(3, 4)), before[0], rtol=1e-12)
    assert seed.losses["penalty"].item() == pytest.approx(before[1], rel=1e-12)


# A wrong rule or a wrong factor cannot hide.


@pytest.fixture
def wrong_rule(monkeypatch):
    """A softmax over a width that is taken for an elementwise function."""
    monkeypatch.setitem(RULES, "aten.softmax", RULES["aten.gelu"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_wrong_rule_is_found_before_anything_is_trained(wrong_rule, dtype):
    net = nn.Sequential(nn.Linear(4, 8), nn.Softmax(-1), nn.Linear(8, 2)).to(dtype)
    plan = gr.plan(net, randn(3, 4, dtype=torch.float32).to(dtype), stages=2)
    with pytest.raises(
        gr.GrowthError, match=r"a trial growth of Sequential .* in 64 bits, changes"
    ):
        gr.Grower(plan.build_seed(), plan)


def test_zeros_do_not_hide_a_wrong_rule(wrong_rule):
    net = nn.Sequential(nn.Linear(4, 8), nn.Softmax(-1), nn.Linear(8, 2))
    nn.init.zeros_(net[2].weight)
    plan = gr.plan(net, torch.zeros(1, 4), stages=2)
    with pytest.raises(gr.GrowthError, match="a trial growth"):
        gr.Grower(plan.build_seed(), plan)


def test_code_that_casts_down_is_proven_in_64_bits(wrong_rule):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.b(1e-3 * self.a(x).to(torch.bfloat16).softmax(-1).float())

    plan = gr.plan(Half(), randn(3, 4, dtype=torch.float32), stages=2)
    with pytest.raises(gr.GrowthError, match="a trial growth"):
        gr.Grower(plan.build_seed(), plan)


def test_the_proof_leaves_generators_model_and_plan_alone():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
    plan = gr.plan(net, randn(3, 4, dtype=torch.float32), stages=2)
    seed = plan.build_seed()
    before = {k: v.clone() for k, v in seed.state_dict().items()}
    full = {k: v.clone() for k, v in net.state_dict().items()}
    state = torch.get_rng_state()
    gr.Grower(seed, plan)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in seed.state_dict().items())
    assert all(torch.equal(v, full[k]) for k, v in net.state_dict().items())


def test_nothing_is_proven_of_a_plan_without_a_step():
    net = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 2))
    plan = gr.plan(net, randn(3, 4, dtype=torch.float32), stages=2)
    assert plan.stage_widths[0] == plan.stage_widths[1]
    prove(plan, Paired())


# Rounding.


def test_the_limit_follows_the_rounding_of_the_model_itself():
    class Amplifies(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.factor = factor

        def forward(self, x):
            y = self.a(x)
            return (y * self.factor + y) - y * self.factor

    x = randn(3, 4, dtype=torch.float32)
    limits = []
    for factor in (1.0, 1e3):
        model = Amplifies(factor)
        trials, notes = make_trials(model, x, None)
        assert not notes
        limits.append(rounding_limit(model, trials, None, relative=1.0))
    assert 1e-7 < limits[0] < 1e-4 < limits[1]


def test_a_small_change_needs_no_second_look(monkeypatch):
    model = nn.Linear(4, 4)
    trials, _ = make_trials(model, torch.ones(1, 4), None)
    monkeypatch.setattr("growthring.growing.trials.run", lambda *_: pytest.fail("ran the model"))
    assert rounding_limit(model, trials, None, relative=1e-7) < 1e-5


def test_trials_are_fresh_in_values_batch_and_length():
    model = nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.AdaptiveAvgPool1d(1))
    x = torch.zeros(2, 3, 10)
    trials, _ = make_trials(model, x, None)
    shapes = {(tuple(t.inputs.shape), t.training) for t in trials}
    assert shapes == {((n, 3, t), mode) for n, t in ((2, 10), (3, 20)) for mode in (False, True)}
    assert all(t.inputs.std() > 0 for t in trials if t.inputs is not x)
    results = run(model, trials, None)
    assert worst(trials, results, results, training=True).relative == 0.0


def test_whole_numbers_with_an_order_of_their_own_stay():
    """Offsets drawn at random are none: the first has to be 0."""

    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags, self.out = nn.EmbeddingBag(20, 8), nn.Linear(8, 3)

        def forward(self, scale, tokens, offsets):
            return self.out(self.bags(tokens, offsets)) * scale

    torch.manual_seed(0)
    inputs = torch.randn(2, 1), torch.arange(9), torch.tensor([0, 4])
    plan = gr.plan(Bags(), inputs, stages=2, growth=None)
    seed = plan.build_seed()
    assert gr.Grower(seed, plan, noise=0.0).grow().change.relative < 1e-6
    trials, _ = make_trials(seed, inputs, None)
    assert not torch.equal(trials[1].inputs[0], inputs[0])
    assert torch.equal(trials[1].inputs[2][:2], inputs[2])


def test_trials_are_shorter_where_the_model_takes_no_longer_input():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 4)
            self.positions = nn.Parameter(torch.zeros(8, 4))

        def forward(self, tokens):
            return self.table(tokens) + self.positions[: tokens.shape[1]]

    tokens = torch.randint(10, (2, 8), generator=torch.Generator().manual_seed(0))
    trials, _ = make_trials(Positions(), tokens, None)
    assert {tuple(t.inputs.shape) for t in trials} == {(2, 8), (3, 4)}
    assert all(set(t.inputs.flatten().tolist()) <= set(tokens.flatten().tolist()) for t in trials)


@pytest.mark.parametrize("spread", [1e-3, 3e-4, 4e-5])
@pytest.mark.each(2)
def test_the_eps_of_batch_norm_does_not_show_in_train_mode(spread):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)).double()  # fmt: skip
    x = randn(8, 3, 10, 10)
    with torch.no_grad():
        net[1].bias.zero_()
        variance = net[1](net[0](x)).var()
        net[1].weight.mul_(math.sqrt(spread / variance))
    plan = gr.plan(net, x, stages=2)
    seed = plan.build_seed()
    with torch.no_grad():
        variance = seed[1](seed[0](x)).var()
        seed[1].weight.mul_(math.sqrt(spread / variance))
    report = gr.Grower(seed, plan, noise=0.0).grow()
    assert report.train_change.relative < 1e-3
    assert report.change.relative < 1e-12


def test_running_variance_tells_of_eps_before_it_is_measured():
    net = nn.Sequential(
        nn.Linear(4, 8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)
    ).double()
    plan = gr.plan(net, randn(16, 4), stages=2)
    factors = {}
    for variance in (1.0, 1e-3):
        seed = plan.build_seed()
        seed[2].running_var.fill_(variance)
        factors[variance] = gr.Grower(seed, plan, noise=0.0).grow().factors
    assert "1.weight" in factors[1.0] and "1.weight" not in factors[1e-3]


# Inputs.


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.zeros(0, 4), "an example input of shape .0, 4. is empty"),
        (torch.full((2, 4), math.nan), "holds NaN"),
        ({"input": torch.full((2, 4), math.nan)}, "holds NaN"),
    ],
)
def test_inputs_that_show_nothing_are_refused(inputs, message):
    with pytest.raises(gr.GrowthError, match=message):
        gr.plan(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), inputs)


def test_masks_may_hold_infinities():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x, mask):
            return self.b(self.a(x).relu()) + mask.exp()

    mask = torch.tensor([[0.0, -math.inf]])
    plan = gr.plan(Masked(), (torch.randn(1, 4, generator=X), mask), stages=2)
    assert plan.groups["a"].grows


def test_verify_in_train_mode():
    a, b = Branching(scaled_in_training), Branching(scaled_in_training)
    b.load_state_dict(a.state_dict())
    b.train_mode = lambda self, h: self.b(h)
    x = randn(3, 4, dtype=torch.float32)
    assert gr.verify(a, b, x).relative == 0.0
    assert gr.verify(a, b, x, training=True).relative > 0.1


def test_verify_does_not_change_its_inputs():
    class InPlace(nn.Module):
        def forward(self, x):
            return x.mul_(2)

    x = torch.ones(2, 3)
    gr.verify(InPlace(), InPlace(), x)
    assert torch.equal(x, torch.ones(2, 3))
