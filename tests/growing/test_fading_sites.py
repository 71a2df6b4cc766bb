"""Fades belong to places in the code: loops, checkpoints, own forwards, copies, and what must be loud."""

import copy
import functools
import inspect
import io
import json
import operator
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import growthring as gr
import growthring.growing.fading.recompute as recompute
from growthring.graph import sites
from growthring.graph.sites import REDUCTIONS
from growthring.growing.fading import Fade
from growthring.growing.fading.weighted import parse_call, weighted
from tests.discovered import discovered_once as discovered_once
from tests.growth_contract import Net, distance, make_plan, perturb, randn

D = 12


def grown(model, x, stages=2, progress=0.0, **options):
    """A seed before and after one exact growth: (outputs before, model, grower)."""
    plan = make_plan(model, x, stages=stages, **options)
    seed = plan.build_seed()
    perturb(seed)
    grower = gr.Grower(seed, plan, noise=0.0, variance_transfer="off")
    before = copy.deepcopy(seed)
    grower.grow()
    grower.advance(progress)
    return before, seed, grower


def unrolled():
    """A recurrent net whose norm is called once for each time step."""

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.u.weight.shape[0])
        for t in range(x.shape[1]):
            h = F.layer_norm(self.u(h) + self.w(x[:, t]), self.u.weight.shape[:1]).tanh()
        return self.o(h)

    torch.manual_seed(0)
    return Net(forward, u=nn.Linear(D, D), w=nn.Linear(4, D), o=nn.Linear(D, 3))


def unrolled_by_hand():
    def rms(h):
        return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.u.weight.shape[0])
        for t in range(x.shape[1]):
            h = rms(self.u(h) + self.w(x[:, t])).tanh()
        return self.o(rms(h))

    torch.manual_seed(0)
    return Net(forward, u=nn.Linear(D, D), w=nn.Linear(4, D), o=nn.Linear(D, 3))


@pytest.mark.parametrize("make", [unrolled, unrolled_by_hand])
@pytest.mark.parametrize("length", [1, 3, 7])
@pytest.mark.each(5)
def test_a_norm_in_a_loop_fades_in_every_turn(make, length):
    before, model, _ = grown(make(), randn(2, 3, 4))
    x = randn(5, length, 4, seed=7)
    assert distance(before(x).detach(), model(x).detach()) < 1e-12


def test_two_norms_on_one_line_are_two():
    def forward(self, x):
        n = self.a.weight.shape[:1]
        return self.o(F.layer_norm(F.layer_norm(self.a(x), n) + F.layer_norm(self.b(x), n), n))

    torch.manual_seed(0)
    model = Net(forward, a=nn.Linear(4, D), b=nn.Linear(4, D), o=nn.Linear(D, 3))
    before, model, grower = grown(model, randn(6, 4))
    assert len(grower.state_dict()["fades"]) == 3
    assert distance(before(randn(3, 4)).detach(), model(randn(3, 4)).detach()) < 1e-12


def test_one_place_over_widths_of_different_sizes_is_frozen():
    def forward(self, x):
        for layer in (self.a, self.b):
            x = layer(x)
            x = x - x.mean(-1, keepdim=True)
        return self.o(x)

    torch.manual_seed(0)
    model = Net(forward, a=nn.Linear(4, D), b=nn.Linear(D, 8), o=nn.Linear(8, 3))
    with pytest.raises(gr.GrowthError, match="different structure"):
        make_plan(model, randn(6, 4), stages=2)


def test_one_place_over_widths_of_one_size_grows_them_together():
    def forward(self, x):
        for layer in (self.a, self.b):
            x = layer(x)
            x = (x - x.mean(-1, keepdim=True)).relu()
        return self.o(x)

    torch.manual_seed(0)
    model = Net(forward, a=nn.Linear(4, D), b=nn.Linear(D, D), o=nn.Linear(D, 3))
    before, model, _ = grown(model, randn(6, 4))
    assert distance(before(randn(3, 4)).detach(), model(randn(3, 4)).detach()) < 1e-12


@pytest.mark.parametrize("gather", [sum, lambda parts: torch.stack(list(parts)).sum(0)])
@pytest.mark.each(2)
def test_code_that_has_run_often_is_at_the_same_place(gather):
    """The interpreter rewrites instructions that it has met a few times."""

    def steps(self, x):
        for t in range(x.shape[1]):
            h = self.a(x[:, t])
            yield h - h.mean(-1, keepdim=True)

    def forward(self, x):
        scaled = map(functools.partial(F.normalize, dim=-1), steps(self, x))
        return self.o(gather(scaled).tanh())

    torch.manual_seed(0)
    model = Net(forward, a=nn.Linear(4, D), o=nn.Linear(D, 3))
    before, model, _ = grown(model, randn(6, 2, 4))
    for _ in range(20):
        x = randn(3, 5, 4)
        assert distance(before(x).detach(), model(x).detach()) < 1e-12


def test_a_norm_in_a_function_that_calls_itself_fades_at_every_depth():
    def join(self, x):
        if x.shape[1] == 1:
            return self.a(x[:, 0])
        left, right = (join(self, half) for half in x.tensor_split(2, 1))
        return F.rms_norm(left + self.b(right), self.a.weight.shape[:1])

    torch.manual_seed(0)
    model = Net(
        lambda self, x: self.o(join(self, x)),
        a=nn.Linear(4, D),
        b=nn.Linear(D, D),
        o=nn.Linear(D, 3),
    )
    before, model, _ = grown(model, randn(6, 2, 4))
    for length in (1, 2, 3, 11):
        x = randn(3, length, 4)
        assert distance(before(x).detach(), model(x).detach()) < 1e-12


def branching(key):
    def forward(self, x):
        h = self.a(x)
        if x.shape[0] > 9:
            h = key(h)
        return self.o(F.layer_norm(h, self.a.weight.shape[:1]))

    torch.manual_seed(0)
    return Net(forward, a=nn.Linear(4, D), o=nn.Linear(D, 3))


@pytest.mark.parametrize(
    "key",
    [
        lambda h: h - h.mean(-1, keepdim=True),
        lambda h: F.rms_norm(h, h.shape[-1:]),
        lambda h: F.normalize(h, dim=1),
    ],
)
def test_a_statistic_that_was_not_traced_is_loud(key):
    _, model, grower = grown(branching(key), randn(6, 4))
    model(randn(5, 4))
    with pytest.raises(
        gr.GrowthError, match=r"was not met when the model was traced[\s\S]*Grower.finish"
    ):
        model(randn(10, 4))
    grower.finish()
    model(randn(10, 4))


def test_a_statistic_that_only_fresh_inputs_meet_is_refused_when_the_grower_is_made():
    def forward(self, x):
        h = self.a(x)
        h = h - h.mean(-1, keepdim=True) if x.shape[0] > 6 else h
        return self.o(F.layer_norm(h, self.a.weight.shape[:1]))

    torch.manual_seed(0)
    model = Net(forward, a=nn.Linear(4, D), o=nn.Linear(D, 3))
    with pytest.raises(gr.GrowthError, match="was not met when the model was traced"):
        grown(model, randn(6, 4))


def test_a_statistic_over_another_size_that_was_not_traced_is_nobodys_business():
    _, model, _ = grown(branching(lambda h: h - h.mean(0, keepdim=True)), randn(6, 4))
    model(randn(10, 4))
    with pytest.raises(gr.GrowthError, match="was not met"):
        model(randn(D, 4))  # cannot be told from the width


def test_code_that_reduces_another_axis_for_other_inputs_is_loud():
    def forward(self, x):
        h = self.a(x)
        return self.o(h - h.mean(-1 if x.shape[0] < 10 else 0, keepdim=True))

    torch.manual_seed(0)
    _, model, _ = grown(Net(forward, a=nn.Linear(4, D), o=nn.Linear(D, 3)), randn(6, 4))
    with pytest.raises(gr.GrowthError, match="reduces axes of sizes"):
        model(randn(11, 4))


# Activation checkpointing.


class Checkpointed(nn.Module):
    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.o = nn.Linear(4, D), nn.Linear(D, D), nn.Linear(D, 3)
        self.g, self.how = nn.Parameter(torch.ones(D)), how

    def block(self, h):
        h = h + self.b(F.layer_norm(h, self.g.shape)).relu()
        return self.g * h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)

    def nested(self, h):
        return self.run(self.block, h) + F.normalize(h, dim=-1)

    def run(self, f, h):
        options = {} if self.how is None else {"use_reentrant": self.how}
        return (operator.call if self.how is None else checkpoint)(f, h, **options)

    def forward(self, x):
        h = self.a(x)
        for _ in range(2):
            h = self.run(self.nested, h)
        return self.o(self.run(lambda v: v - v.mean(-1, keepdim=True), h))


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters()}


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("progress", [0.0, 0.4])
@pytest.mark.each(6)
def test_checkpointed_functions_are_recomputed_with_their_fades(reentrant, progress):
    x = randn(6, 4).requires_grad_()
    before, model, grower = grown(Checkpointed(reentrant), x.detach(), progress=progress)
    if progress == 0:
        assert distance(before(x).detach(), model(x).detach()) < 1e-12
    found = gradients(model, x)
    model.how = None
    wanted = gradients(model, x)
    for name in wanted:
        assert distance(wanted[name], found[name]) < 1e-12, name
    model.how = reentrant
    grower.finish()
    plain = gradients(model, x)
    model.how = None
    wanted = gradients(model, x)
    assert all(distance(wanted[n], plain[n]) < 1e-12 for n in wanted)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_without_gradients(reentrant):
    x = randn(6, 4)
    before, model, _ = grown(Checkpointed(reentrant), x)
    with torch.no_grad():
        assert distance(before(x), model(x)) < 1e-12


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_function_that_is_checkpointed_in_train_mode_only(reentrant):
    def block(self, h):
        return h + self.b(F.rms_norm(h, h.shape[-1:])).tanh()

    def forward(self, x):
        h = self.a(x)
        if self.training:
            h = checkpoint(block, self, h, use_reentrant=reentrant)
        else:
            h = block(self, h)
        return self.o(h)

    torch.manual_seed(0)
    model = Net(forward, a=nn.Linear(4, D), b=nn.Linear(D, D), o=nn.Linear(D, 3))
    before, model, _ = grown(model, randn(6, 4))
    x = randn(3, 4).requires_grad_()
    for training in (False, True):
        wanted, found = (gradients(m.train(training), x)["o.bias"] for m in (before, model))
        assert distance(wanted, found) < 1e-12
        assert distance(before(x).detach(), model(x).detach()) < 1e-12


@pytest.mark.parametrize("reentrant", [True, False])
def test_modules_with_fades_inside_a_checkpoint(reentrant):
    torch.manual_seed(0)
    first = [nn.Linear(4, D), nn.LayerNorm(D), nn.ReLU()]
    model = nn.Sequential(*first, nn.Linear(D, D), nn.RMSNorm(D), nn.Linear(D, 3))
    x = randn(6, 4).requires_grad_()
    _, model, _ = grown(model, x.detach(), progress=0.3)
    wanted = gradients(model, x)
    model.zero_grad()
    checkpoint_sequential(model, 2, x, use_reentrant=reentrant).square().sum().backward()
    for name, p in model.named_parameters():
        assert distance(wanted[name], p.grad) < 1e-12


def test_an_unknown_kind_of_checkpoint_record_is_loud(monkeypatch):
    x = randn(6, 4)
    _, model, _ = grown(Checkpointed(False), x)
    monkeypatch.setattr(recompute, "_RECORD", "no such variable")
    with pytest.raises(gr.GrowthError, match="keeps no record"):
        model(x)


# Forwards of the user's own.


def own_function(module):
    module.forward = lambda x: 2 * F.layer_norm(x, x.shape[-1:])


def own_partial(module):
    def forward(factor, x):
        return factor * (x - x.mean(-1, keepdim=True))

    module.forward = functools.partial(forward, 3.0)


def own_method(module):
    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, self.weight) + self.weight

    module.forward = types.MethodType(forward, module)


def own_wrapper(module):
    original = module.forward
    module.forward = lambda x: original(x) * 2


@pytest.mark.parametrize("give", [own_function, own_partial, own_method])
def test_a_forward_on_the_instance_is_honoured_and_comes_back(give):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, D), nn.LayerNorm(D), nn.Linear(D, 3))
    give(model[1])
    before, model, grower = grown(model, randn(6, 4))
    own = vars(before[1])["forward"]
    x = randn(3, 4, seed=8)
    assert distance(before(x).detach(), model(x).detach()) < 1e-12
    grower.advance(0.5)
    model(x)
    grower.finish()
    back = vars(model[1])["forward"]
    assert type(back) is type(own)
    plan = grower.plan
    plain = copy.deepcopy(plan.model)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain(x), model(x))


def test_a_wrapper_set_between_plan_and_growth():
    plan = make_plan(Checkpointed(False), randn(6, 4), stages=2)
    seed = plan.build_seed()
    perturb(seed)
    own_wrapper(seed)
    x = randn(3, 4)
    before = seed(x).detach()
    grower = gr.Grower(seed, plan, noise=0.0, variance_transfer="off")
    grower.grow()
    assert distance(before, seed(x).detach()) < 1e-12
    gradients(seed, x)
    grower.finish()
    assert vars(seed)["forward"].__qualname__ == "own_wrapper.<locals>.<lambda>"


def test_a_forward_set_during_a_fade_survives_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, D), nn.LayerNorm(D), nn.Linear(D, 3))
    _, model, grower = grown(model, randn(6, 4), stages=3)
    own_wrapper(model[1])
    wrapper = vars(model[1])["forward"]
    x = randn(3, 4)
    now = model(x).detach()
    grower.advance(0.5)
    assert distance(now, model(x).detach()) > 1e-9, "the wrapper still sees the fade"
    grower.finish()
    assert vars(model[1])["forward"] is wrapper
    torch.testing.assert_close(model(x), model[2](2 * nn.LayerNorm.forward(model[1], model[0](x))))
    assert not model[1]._forward_hooks


def test_a_wrapper_set_during_a_fade_around_code_of_ones_own():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, D), Louder(D), nn.Linear(D, 3))
    before, model, grower = grown(model, randn(6, 4), stages=3)
    own_wrapper(model[1])
    own_wrapper(before[1])
    x = randn(3, 4)
    assert distance(before(x).detach(), model(x).detach()) < 1e-12
    now = copy.deepcopy(model(x).detach())
    grower.grow()
    assert distance(now, model(x).detach()) < 1e-12


def test_a_module_replaced_during_a_fade_is_loud():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, D), nn.LayerNorm(D), nn.Linear(D, 3))
    _, model, grower = grown(model, randn(6, 4), stages=3)
    model[1] = nn.LayerNorm(model[1].normalized_shape).double()
    with pytest.raises(gr.GrowthError, match="was replaced by another LayerNorm"):
        grower.advance(0.5)
    with pytest.raises(gr.GrowthError, match="was replaced by another LayerNorm"):
        grower.grow()


def test_the_signature_of_a_forward_stays():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, D), Louder(D), nn.Linear(D, 3))
    _, model, _ = grown(model, randn(6, 4))
    assert list(inspect.signature(model[1].forward).parameters) == ["input"]


def test_a_norm_called_through_its_forward_and_under_two_names():
    def forward(self, x):
        h = self.n(self.a(x))
        return self.o(self.m(h.relu()) + self.n.forward(h))

    torch.manual_seed(0)
    model = Net(forward, a=nn.Linear(4, D), n=nn.LayerNorm(D), o=nn.Linear(D, 3))
    model.m = model.n
    before, model, _ = grown(model, randn(6, 4))
    assert distance(before(randn(3, 4)).detach(), model(randn(3, 4)).detach()) < 1e-12


def test_a_growth_in_mid_fade_of_another_width():
    def forward(self, x):
        h = F.layer_norm(self.a(x), self.a.weight.shape[:1])
        return self.o(F.layer_norm(self.b(h), self.b.weight.shape[:1]))

    torch.manual_seed(0)
    model = Net(forward, a=nn.Linear(4, D), b=nn.Linear(D, 8), o=nn.Linear(8, 3))
    x = randn(6, 4)
    plan = make_plan(model, x, stages=3, widths={"a": [4, 12, 12], "b": [4, 4, 8]})
    seed = plan.build_seed()
    perturb(seed)
    grower = gr.Grower(seed, plan, noise=0.0, variance_transfer="off")
    grower.grow()
    grower.advance(0.6)
    perturb(seed)
    before = seed(x).detach()
    grower.grow()
    assert distance(before, seed(x).detach()) < 1e-12
    grower.advance(1e-9)
    assert distance(before, seed(x).detach()) < 1e-6, "what had come in stays in"


def test_statistics_that_are_frozen_are_known_all_the_same():
    def forward(self, x):
        h = F.layer_norm(self.a(x), self.a.weight.shape[:1])
        y = torch.linalg.vector_norm(x @ x.new_ones(4, D), float("inf"), -1, keepdim=True)
        return self.o(h) + y

    torch.manual_seed(0)
    model = Net(forward, a=nn.Linear(4, D), o=nn.Linear(D, 3))
    before, model, _ = grown(model, randn(6, 4))
    assert distance(before(randn(3, 4)).detach(), model(randn(3, 4)).detach()) < 1e-12


def test_progress_between_forward_and_backward_does_not_reach_a_recomputation():
    x = randn(6, 4)
    _, model, grower = grown(Checkpointed(False), x, progress=0.3)
    wanted = gradients(model, x)
    model.zero_grad()
    loss = model(x).square().sum()
    grower.advance(1.0)
    loss.backward()
    for name, p in model.named_parameters():
        assert distance(wanted[name], p.grad) < 1e-12


class Louder(nn.LayerNorm):
    def forward(self, input):
        mean, var = input.mean(-1, keepdim=True), input.var(-1, keepdim=True, unbiased=False)
        return (
            (input - mean) / (var + self.eps).sqrt() * self.weight
            + self.bias
            + super().forward(input)
        )


def test_a_subclass_with_its_own_forward_and_hooks():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, D), Louder(D), nn.Linear(D, 3))
    seen = []
    model[1].register_forward_hook(lambda m, a, y: y * 2)
    model[1].register_forward_pre_hook(lambda m, a: (a[0] + 1,))
    before, model, grower = grown(model, randn(6, 4))
    model[1].register_forward_hook(lambda m, a, y: seen.append(y.shape))
    x = randn(3, 4)
    assert distance(before(x).detach(), model(x).detach()) < 1e-12 and len(seen) == 1
    grower.finish()
    assert "forward" not in vars(model[1]) and len(model[1]._forward_hooks) == 2


@pytest.mark.parametrize("make", [unrolled_by_hand, lambda: Checkpointed(False)])
def test_copies_in_mid_fade_fade_by_themselves(make):
    model = make()
    x = randn(2, 3, 4) if isinstance(model, Net) else randn(6, 4)
    _, model, grower = grown(model, x, progress=0.3)
    twin = copy.deepcopy(model)
    stored = io.BytesIO()
    if isinstance(model, Checkpointed):
        torch.save(model, stored)
        stored.seek(0)
        assert torch.equal(torch.load(stored, weights_only=False)(x), model(x))
    wanted = model(x).detach()
    grower.finish()
    assert torch.equal(twin(x), wanted), "the copy stays where it was"
    assert distance(wanted, model(x).detach()) > 1e-9
    other = gr.Grower(twin, grower.plan)
    other.finish()
    assert torch.equal(twin(x), model(x))


# State.


def test_the_state_is_plain_and_resumes_bit_for_bit():
    model, x = Checkpointed(None), randn(6, 4)
    _, model, grower = grown(model, x, stages=3, progress=0.3)
    state, weights = grower.state_dict(), copy.deepcopy(model.state_dict())
    for fade in state["fades"]:
        json.dumps({k: v for k, v in fade.items() if k != "start"})
        assert "/" not in fade["site"] and "0x" not in fade["site"]
    seed = grower.plan.build_seed()
    resumed = gr.Grower(seed, grower.plan, noise=0.0, variance_transfer="off")
    resumed.load_state_dict(state)
    seed.load_state_dict(weights)
    assert torch.equal(seed(x), model(x))
    for each in (grower, resumed):
        each.advance(0.6)
        each.grow()
    assert torch.equal(seed(x), model(x))


def test_a_state_of_other_code_is_refused():
    _, _, grower = grown(Checkpointed(None), randn(6, 4))
    state = grower.state_dict()
    state["fades"][0]["site"] = "elsewhere+2"
    seed = grower.plan.build_seed()
    shapes = {n: p.shape for n, p in seed.named_parameters()}
    resumed = gr.Grower(seed, grower.plan)
    with pytest.raises(gr.GrowthError, match="takes no statistics there"):
        resumed.load_state_dict(state)
    assert {n: p.shape for n, p in seed.named_parameters()} == shapes
    assert not any("forward" in vars(m) for m in seed.modules())


# Numbers.


def functions():
    return {
        "sum": lambda x: x.sum(-1),
        "mean": lambda x: x.mean((0, 2), keepdim=True),
        "var": lambda x: x.var((1, 2)),
        "std": lambda x: torch.std(x, -1, correction=2),
        "std_mean": lambda x: torch.cat([t.flatten() for t in torch.std_mean(x, -1)]),
        "vector_norm": lambda x: torch.linalg.vector_norm(x, 3, dim=(0, 2)),
        "norm": lambda x: x.norm(1, dim=-1),
        "normalize": lambda x: F.normalize(x, dim=-1),
        "cosine": lambda x: F.cosine_similarity(x, x.square() + 1, dim=-1),
        "mse": lambda x: F.mse_loss(x, x.cos() + 1),
        "mse_summed": lambda x: F.mse_loss(x, x.cos(), size_average=False),
        "mse_weighted": lambda x: F.mse_loss(x, x.cos(), weight=x.sin() + 2),
        "l1": lambda x: F.l1_loss(x, x.sin() + 3, None, None, "sum"),
        "smooth_l1": lambda x: F.smooth_l1_loss(x, x.cos() + 1, beta=0.5),
        "huber": lambda x: F.huber_loss(x, x.cos() + 1, "mean", 0.5),
        "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
        "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
        "group_norm": lambda x: F.group_norm(x.transpose(1, 2), 1),
    }


@pytest.mark.parametrize("name", functions())
def test_weights_of_zero_and_one_and_gradients(name):
    calls = []

    class Note(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func in REDUCTIONS:
                calls.append((func, args, kwargs or {}))
            return func(*args, **(kwargs or {}))

    def faded(x, weights):
        calls.clear()
        with Note():
            functions()[name](x)
        func, args, kwargs = calls[0]
        call = parse_call(func, REDUCTIONS[func], args, kwargs)
        n = x.shape[2]
        position = [i for i, d in enumerate(call.dims) if call.shape[d] == n]
        result = weighted(call, {position[0]: Fade(weights)})
        return torch.cat([r.flatten() for r in result]) if isinstance(result, tuple) else result

    x = randn(2, 3, 5)
    ones = torch.ones(5, dtype=torch.float64)
    torch.testing.assert_close(faded(x, ones), functions()[name](x))
    part = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    old = functions()[name](x[..., :3])
    new = faded(x, part)
    if new.shape != old.shape:
        new = new[..., :3] if name != "group_norm" else new[:, :3]
    torch.testing.assert_close(new, old)
    some = torch.tensor([1.0, 1.0, 0.9, 0.3, 0.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda v: faded(v, some), x.clone().requires_grad_())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_its_type(dtype):
    def forward(self, x):
        h = self.a(x)
        h = h - h.mean(-1, keepdim=True)
        return self.o(F.normalize(F.layer_norm(h, h.shape[-1:]), dim=-1) + h.sum(-1, keepdim=True))

    torch.manual_seed(0)
    _, model, _ = grown(Net(forward, a=nn.Linear(4, D), o=nn.Linear(D, 3)), randn(6, 4))
    model.to(dtype)
    assert model(randn(6, 4).to(dtype)).dtype is dtype


def test_autocast_gives_the_types_that_it_gives_without_a_fade():
    kinds = []

    def forward(self, x):
        h = self.a(x)
        parts = [F.layer_norm(h, h.shape[-1:]), h.mean(-1), h.sum(-1), h.norm(dim=-1), h.var(-1)]
        kinds.append([p.dtype for p in parts])
        return self.o(parts[0]) + sum(p[..., None] for p in parts[1:])

    torch.manual_seed(0)
    _, model, grower = grown(Net(forward, a=nn.Linear(4, D), o=nn.Linear(D, 3)), randn(6, 4))
    model.float()
    kinds.clear()
    with torch.autocast("cpu", torch.bfloat16):
        model(randn(6, 4).float())
        grower.finish()
        model(randn(6, 4).float())
    assert kinds[0] == kinds[1]


def test_out_arguments_are_loud():
    x, out = randn(2, 4), randn(2)
    call = parse_call(torch.mean, "mean", (x, -1), {"out": out})
    with pytest.raises(gr.GrowthError, match="writes to out="):
        weighted(call, {0: Fade(torch.ones(4))})


class OwnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x - x.mean(-1, keepdim=True)

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.mean(-1, keepdim=True)


def test_an_autograd_function_that_was_not_traced_is_loud():
    _, model, _ = grown(branching(OwnFunction.apply), randn(6, 4))
    with pytest.raises(gr.GrowthError, match="was not met when the model was traced"):
        model(randn(10, 4))


def test_flattened_pictures_of_another_size():
    def forward(self, x):
        v = self.a(x).flatten(1)
        v = (v - v.mean(-1, keepdim=True)) / v.std(-1, keepdim=True)
        return self.o(v.view(len(x), -1, *x.shape[2:]))

    torch.manual_seed(0)
    model = Net(forward, a=nn.Conv2d(3, D, 1), o=nn.Conv2d(D, 2, 1))
    before, model, _ = grown(model, randn(2, 3, 4, 4))
    for shape in ((1, 3, 5, 2), (3, 3, 4, 4)):
        x = randn(*shape)
        assert distance(before(x).detach(), model(x).detach()) < 1e-12


def chain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, D), nn.LayerNorm(D), nn.Linear(D, 3))


@pytest.mark.parametrize("make", [unrolled, chain])
@pytest.mark.each(2)
def test_compiled_models_fade_too(make):
    model = make()
    x = randn(2, 3, 4)
    _, model, grower = grown(model, x, progress=0.4)
    wanted = model(x).detach()
    compiled = torch.compile(model, backend="eager")
    assert distance(wanted, compiled(x).detach()) < 1e-12
    grower.finish()
    wanted = model(x).detach()
    assert distance(wanted, torch.compile(model, backend="eager")(x).detach()) < 1e-12


def test_the_files_of_fades_are_where_sites_look_for_them() -> None:
    assert inspect.getsourcefile(weighted) == sites._OWN
    assert sites._is_machinery(inspect.getsourcefile(Fade) or "")
