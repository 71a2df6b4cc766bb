"""Statistics that fade in: exact at the growth, plain at the end of the stage."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import growthring as gr
from growthring.growing.fading import Fade
from growthring.growing.fading.weighted import normalised
from tests.discovered import discovered_once as discovered_once
from tests.growth_contract import Net, distance, make_plan, perturb, randn

X = randn(6, 4)


def shares(weights):
    return torch.tensor(weights, dtype=torch.float64)


@pytest.mark.parametrize("is_centred", [True, False])
def test_the_formula_is_torchs_norm(is_centred):
    x, gain, bias = randn(3, 5, seed=1), randn(5, seed=2), randn(5, seed=3)
    equal = shares([0.2] * 5)
    found = normalised(x, (-1,), equal, is_centred, 1e-4, gain, bias if is_centred else None)
    if is_centred:
        wanted = F.layer_norm(x, (5,), gain, bias, 1e-4)
    else:
        wanted = F.rms_norm(x, (5,), gain, 1e-4)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("is_centred", [True, False])
def test_weights_of_zero_leave_entries_out_of_the_statistics(is_centred):
    x = randn(3, 6, seed=1)
    part = shares([0.25, 0.25, 0.25, 0.25, 0, 0])
    wanted = normalised(x[:, :4], (-1,), part[:4], is_centred, 1e-5, None, None)
    found = normalised(x, (-1,), part, is_centred, 1e-5, None, None)
    torch.testing.assert_close(found[:, :4], wanted)


def test_a_fade_moves_from_its_start_to_one():
    fade = Fade(shares([1.0, 1.0, 0.0, 0.5]))
    assert fade.weights.tolist() == [1, 1, 0, 0.5] and fade.share == 0.625
    fade.advance(0.5)
    assert fade.weights.tolist() == [1, 1, 0.5, 0.75] and fade.share == 0.8125
    fade.advance(1.0)
    assert fade.weights.tolist() == [1, 1, 1, 1] and len(fade) == 4
    assert fade.along(X.float(), 1, 4).tolist() == [1] * 4
    assert fade.along(X.float(), 1, 4).dtype is torch.float32
    assert fade.along(X.half(), 1, 4).dtype is torch.float32
    assert fade.along(X.T, 0, 4).shape == (4, 1)


NORMS = {
    "layer_norm": lambda: nn.LayerNorm(12),
    "layer_norm_plain": lambda: nn.LayerNorm(12, elementwise_affine=False),
    "rms_norm": lambda: nn.RMSNorm(12, eps=1e-6),
    "rms_norm_default_eps": lambda: nn.RMSNorm(12),
}


class Subclass(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.double()).to(x.dtype) * 2


class ByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(12)), 1e-5

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


NORMS |= {"subclass": lambda: Subclass(12), "by_hand": ByHand}


def net(norm):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 12), NORMS[norm](), nn.Linear(12, 3))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.each(2)
def test_growth_is_exact_and_the_end_is_plain(norm):
    plan = make_plan(net(norm), X, stages=3)
    model = plan.build_seed()
    perturb(model)
    grower = gr.Grower(model, plan, noise=0.0, variance_transfer="off")
    before = model(X).detach()
    grower.grow()
    assert distance(before, model(X).detach()) < 1e-12
    assert grower.fading_norms == {"1": 0.0}
    steps = []
    for progress in (0.25, 0.5, 0.75, 0.999999):
        grower.advance(progress)
        steps.append(model(X).detach())
    grower.advance(1.0)
    plain = model(X).detach()
    assert grower.fading_norms == {} and "forward" not in vars(model[1])
    assert distance(plain, steps[-1]) < 1e-3, "the fade ends at the plain norm, without a jump"
    assert distance(plain, before) > 1e-4, "and the plain norm does see the new entries"
    # the plain norm by itself
    h = model[0](X)
    torch.testing.assert_close(model[2](type(model[1]).forward(model[1], h)).detach(), plain)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_growing_again_during_a_fade_is_exact(norm):
    plan = make_plan(net(norm), X, stages=4)
    model = plan.build_seed()
    perturb(model)
    grower = gr.Grower(model, plan, noise=0.0, variance_transfer="off")
    for progress in (0.0, 0.3, 0.8):
        before = model(X).detach()
        grower.grow()
        assert distance(before, model(X).detach()) < 1e-12
        grower.advance(progress)
        perturb(model, seed=4)
    grower.finish()
    assert not any("forward" in vars(m) or m._forward_hooks for m in model.modules())


def test_gradients_flow_through_a_fade():
    plan = make_plan(net("layer_norm"), X, stages=2)
    model = plan.build_seed()
    gr.Grower(model, plan).grow()
    model(X).square().sum().backward()
    assert all(
        p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters()
    )


def test_hooks_of_the_user_still_run():
    plan = make_plan(net("layer_norm"), X, stages=2)
    model = plan.build_seed()
    seen = []
    model[1].register_forward_hook(lambda m, a, o: seen.append(o.shape))
    grower = gr.Grower(model, plan)
    grower.grow()
    seen.clear()
    model(X)
    assert len(seen) == 1
    grower.finish()
    model(X)
    assert len(seen) == 2, "the user's own hook stays"


def test_a_copy_of_a_fading_model_goes_on_by_itself():
    plan = make_plan(net("rms_norm_default_eps"), X, stages=2)
    model = plan.build_seed()
    grower = gr.Grower(model, plan)
    grower.grow()
    twin = copy.deepcopy(model)
    assert torch.equal(model(X), twin(X))
    with torch.no_grad():
        model[1].weight.zero_()
    assert float(twin(X).detach().sub(model(X).detach()).abs().max()) > 0
    grower.finish()
    assert torch.isfinite(twin(X)).all()


def test_norms_over_several_widths_in_one_module():
    def forward(self, x):
        h = F.layer_norm(self.a(x), self.a.weight.shape[:1])
        return self.c(F.rms_norm(self.b(h), self.b.weight.shape[:1]))

    model = Net(forward, a=nn.Linear(4, 12), b=nn.Linear(12, 8), c=nn.Linear(8, 3))
    plan = make_plan(model, X, stages=2)
    seed = plan.build_seed()
    before = seed(X).detach()
    gr.Grower(seed, plan, noise=0.0).grow(measure=False)
    assert distance(before, seed(X).detach()) < 1e-3


def test_norms_of_one_width_in_one_module_of_which_one_grows():
    # both norms are eight wide after the growth; only the first one has new entries
    def forward(self, x):
        h = F.layer_norm(self.a(x), self.a.weight.shape[:1])
        return self.c(F.layer_norm(self.b(h), self.b.weight.shape[:1]))

    model = Net(forward, a=nn.Linear(4, 8), b=nn.Linear(8, 8), c=nn.Linear(8, 3))
    plan = make_plan(model, X, stages=2, freeze=["b"])
    seed = plan.build_seed()
    perturb(seed)
    before = seed(X).detach()
    gr.Grower(seed, plan, noise=0.0, variance_transfer="off").grow(measure=False)
    assert distance(before, seed(X).detach()) < 1e-12


@pytest.mark.parametrize("progress", [-0.1, 1.1, float("nan")])
def test_progress_is_a_share(progress):
    plan = make_plan(net("layer_norm"), X, stages=2)
    grower = gr.Grower(plan.build_seed(), plan)
    with pytest.raises(gr.GrowthError, match="progress="):
        grower.advance(progress)


def test_a_fused_encoder_layer_uses_the_faded_statistics():
    torch.manual_seed(0)
    model = Net(
        lambda self, x: self.o(self.a(self.i(x))),
        i=nn.Linear(4, 16),
        a=nn.TransformerEncoderLayer(16, 2, 20, dropout=0.0, batch_first=True),
        o=nn.Linear(16, 3),
    )
    x = randn(2, 5, 4)
    plan = make_plan(model, x, stages=2)
    seed = plan.build_seed().eval()
    with torch.no_grad():
        before = seed(x)
        gr.Grower(seed, plan, noise=0.0).grow()
        assert distance(before, seed(x)) < 1e-3


def test_a_gain_registered_in_another_order():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias, self.weight, self.eps = (
                nn.Parameter(torch.zeros(12)),
                nn.Parameter(torch.ones(12)),
                1e-5,
            )

        def forward(self, x):
            x = x - x.mean(-1, keepdim=True)
            return x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * self.weight + self.bias

    torch.manual_seed(0)
    plan = make_plan(nn.Sequential(nn.Linear(4, 12), Odd(), nn.Linear(12, 3)), X, stages=2)
    seed = plan.build_seed()
    perturb(seed)
    before = seed(X).detach()
    gr.Grower(seed, plan, noise=0.0, variance_transfer="off").grow()
    assert distance(before, seed(X).detach()) < 1e-12
