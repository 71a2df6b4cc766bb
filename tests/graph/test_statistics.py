"""Reductions over a growing width: every style of hand-written norm grows, and is exact on other inputs."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import growthring as gr
from growthring.graph.recognise import find_norms
from growthring.graph.trace import trace
from tests.growth_contract import (
    Net,
    check_contract,
    distance,
    make_plan,
    parameter,
    perturb,
    randn,
    widths,
)

D = 12


def rms(x, eps=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


class Literal(nn.Module):
    """RMS norm with its ε in the code."""

    def __init__(self, d=D):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class StdEps(nn.Module):
    """The annotated transformer's LayerNorm: unbiased std, ε added to it."""

    def __init__(self, d=D):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))

    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + 1e-6) + self.b_2


class ShiftFirst(nn.Module):
    def __init__(self, d=D):
        super().__init__()
        self.shift, self.gain = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.ones(d))

    def forward(self, x):
        var, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        return ((x - mean) / (var + 1e-5).sqrt() + self.shift) * self.gain


class OnePlus(nn.Module):
    """Gemma's: the gain is 1 + weight, computed in float32."""

    def __init__(self, d=D):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        out = x.float() if x.dtype is not torch.float64 else x
        out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (out * (1.0 + self.weight)).type_as(x)


class WithResidual(nn.Module):
    def __init__(self, d=D):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x, residual):
        x = x + residual
        return self.weight * rms(x), x


class Gated(nn.Module):
    """Mamba2's."""

    def __init__(self, d=D):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(d)), 1e-6

    def forward(self, x, gate=None):
        if gate is not None:
            x = x * F.silu(gate)
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.variance_epsilon))


class WithMode(nn.Module):
    def __init__(self, d=D):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x, mode):
        if mode == "centre":
            x = x - x.mean(-1, keepdim=True)
        return self.weight * rms(x)


class Lucid(nn.Module):
    """F.normalize · √d · gain."""

    def __init__(self, d=D):
        super().__init__()
        self.scale, self.gamma = d**0.5, nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * self.gamma


class Zhang(nn.Module):
    """‖x‖ · d^-½, as in the RMSNorm paper's code."""

    def __init__(self, d=D):
        super().__init__()
        self.d, self.scale = d, nn.Parameter(torch.ones(d))

    def forward(self, x):
        length = x.norm(2, dim=-1, keepdim=True)
        return self.scale * (x / (length * self.d ** (-1.0 / 2) + 1e-8))


class SumOverSize(nn.Module):
    def __init__(self, d=D):
        super().__init__()
        self.d, self.weight = d, nn.Parameter(torch.ones(d))

    def forward(self, x):
        mean = x.sum(-1, keepdim=True) / self.d
        var = (x - mean).square().sum(-1, keepdim=True) / self.d
        return (x - mean) / torch.sqrt(var + 1e-5) * self.weight


ONE_TENSOR = {
    "literal": Literal,
    "std_eps": StdEps,
    "shift_first": ShiftFirst,
    "one_plus": OnePlus,
    "lucid": Lucid,
    "zhang": Zhang,
}


def stream(norm, extra=None):
    """A pre-norm residual stream over sequences, (batch, time, 4) -> 3."""

    def forward(self, x):
        h = self.i(x)
        h = h + self.b(torch.relu(self.a(self.n(h) if extra is None else self.n(h, extra))))
        return self.o(self.n2(h))

    torch.manual_seed(0)
    return Net(
        forward, i=nn.Linear(4, D), n=norm, a=nn.Linear(D, 10), b=nn.Linear(10, D),
        n2=Literal(), o=nn.Linear(D, 3),
    )  # fmt: skip


def inline_net():
    def forward(self, x):
        h = self.i(x)
        for a, b in ((self.a, self.b), (self.a, self.b)):
            h = h + b(F.silu(a(self.g * (h / (h.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()))))
        return self.o(rms(h))

    torch.manual_seed(0)
    return Net(
        forward, i=nn.Linear(4, D), a=nn.Linear(D, 10), b=nn.Linear(10, D), g=parameter(D), o=nn.Linear(D, 3)
    )  # fmt: skip


def with_residual_net():
    def forward(self, x):
        h = self.i(x)
        y, h = self.n(self.a(h), h)
        y, h = self.n(self.b(y), h)
        return self.o(y)

    torch.manual_seed(0)
    return Net(
        forward, i=nn.Linear(4, D), a=nn.Linear(D, D), b=nn.Linear(D, D), n=WithResidual(), o=nn.Linear(D, 3)
    )  # fmt: skip


def gated_net():
    torch.manual_seed(0)
    return Net(
        lambda self, x: self.o(self.n(self.a(x), self.b(x)) + self.n(self.a(x))),
        a=nn.Linear(4, D), b=nn.Linear(4, D), n=Gated(), o=nn.Linear(D, 3),
    )  # fmt: skip


def gated_by_keyword():
    torch.manual_seed(0)
    return Net(
        lambda self, x: self.o(self.n(gate=self.b(x), x=self.a(x))),
        a=nn.Linear(4, D), b=nn.Linear(4, D), n=Gated(), o=nn.Linear(D, 3),
    )  # fmt: skip


def other_reductions():
    def forward(self, x):
        h = self.i(x)
        facts = [
            h.mean(-1), h.sum(-1), h.var(-1), h.std(-1, unbiased=False), torch.var(h, -1, correction=2),
            torch.std(h, dim=(-1,), correction=0), *torch.var_mean(h, -1),
            *(s[:, None] for s in torch.std_mean(h, (1, 2))),
            torch.linalg.vector_norm(h, 3, -1), h.norm(dim=-1), torch.norm(h, 1, -1), torch.linalg.norm(h, dim=-1),
            F.cosine_similarity(h, self.j(x), dim=-1), h.norm(p="fro", dim=(1, 2))[:, None],
            h.mean().expand(1), h.sum((1, 2), keepdim=True)[..., 0], h.mean(axis=-1, keepdims=False),
            torch.mean(input=h, dim=-1),
        ]  # fmt: skip
        return torch.stack(torch.broadcast_tensors(*facts), -1)

    torch.manual_seed(0)
    return Net(forward, i=nn.Linear(4, D), j=nn.Linear(4, D))


MODELS = {name: (lambda kind=kind: stream(kind())) for name, kind in ONE_TENSOR.items()} | {
    "with_mode": lambda: stream(WithMode(), "centre"),
    "inline": inline_net,
    "with_residual": with_residual_net,
    "gated": gated_net,
    "gated_by_keyword": gated_by_keyword,
    "sum_over_size": lambda: stream(SumOverSize()),
    "other_reductions": other_reductions,
}


class Standardised(nn.Conv2d):
    """Weight standardisation, the short way."""

    def forward(self, x):
        w = self.weight
        m, s = w.mean((1, 2, 3), keepdim=True), w.std((1, 2, 3), keepdim=True)
        return F.conv2d(x, (w - m) / (s + 1e-5), self.bias)


class StandardisedByAxis(nn.Conv2d):
    """As its authors published it."""

    def forward(self, x):
        w = self.weight
        m = w.mean(dim=1, keepdim=True).mean(dim=2, keepdim=True).mean(dim=3, keepdim=True)
        w = w - m
        s = w.view(w.size(0), -1).std(dim=1).view(-1, 1, 1, 1) + 1e-5
        return F.conv2d(x, w / s.expand_as(w), self.bias)


class StandardisedByMoments(nn.Conv2d):
    """As in BiT."""

    def forward(self, x):
        w = self.weight
        v, m = torch.var_mean(w, dim=[1, 2, 3], keepdim=True, unbiased=False)
        return F.conv2d(x, (w - m) / torch.sqrt(v + 1e-10), self.bias)


class Demodulated(nn.Conv2d):
    def forward(self, x):
        w = self.weight
        return F.conv2d(x, w * torch.rsqrt(w.square().sum((1, 2, 3), keepdim=True) + 1e-8))


def images(kind):
    torch.manual_seed(0)
    return nn.Sequential(kind(3, D, 3), nn.ReLU(), kind(D, 6, 3), nn.ReLU(), nn.Conv2d(6, 3, 1))


def on_channels(function, **parts):
    torch.manual_seed(0)
    a, o = nn.Conv2d(3, D, 1), nn.Conv2d(D, 3, 1)
    return Net(lambda self, x: self.o(function(self, self.a(x))), a=a, o=o, **parts)


def response_norm(self, h):
    """ConvNeXt V2's."""
    g = h.norm(2, dim=(2, 3), keepdim=True)
    return self.g * (h * (g / (g.mean(1, keepdim=True) + 1e-6))) + h


def viewed(self, h):
    v = h.view(h.shape[0], 1, -1)
    v = (v - v.mean(-1, keepdim=True)) / (v.var(-1, keepdim=True) + 1e-5).sqrt()
    return v.view(h.shape)


class RowsOfLengthOne(nn.Linear):
    def forward(self, x):
        return F.linear(x, F.normalize(self.weight, dim=1), self.bias)


def rows_of_length_one():
    torch.manual_seed(0)
    return nn.Sequential(RowsOfLengthOne(4, D), nn.ReLU(), RowsOfLengthOne(D, 6), nn.Linear(6, 3))


def angles():
    torch.manual_seed(0)
    return Net(
        lambda self, x: F.linear(F.normalize(self.a(x), dim=-1), F.normalize(self.w, dim=-1)),
        a=nn.Linear(4, D),
        w=parameter(3, D),
    )


def attention_of_angles():
    def forward(self, x):
        q, k = F.normalize(self.q(x), dim=-1), F.normalize(self.k(x), dim=-1)
        return self.o((5 * q @ k.transpose(-1, -2)).softmax(-1) @ self.v(x))

    torch.manual_seed(0)
    parts = {"q": nn.Linear(4, D), "k": nn.Linear(4, D), "v": nn.Linear(4, 6), "o": nn.Linear(6, 3)}
    return Net(forward, **parts)


def penalties():
    """Sums that the code divides by a number of entries."""

    def forward(self, x):
        h, g = self.a(x).relu(), self.b(x)
        mse = ((h - g) ** 2).sum(-1, keepdim=True) / h.shape[-1]
        whole = h.square().sum() / h.numel()
        root = (h.norm(dim=-1, keepdim=True) * h.shape[-1] ** -0.5).tanh()
        return torch.cat([mse, root, whole.expand_as(mse), h.sum(-1, keepdim=True)], -1)

    torch.manual_seed(0)
    return Net(forward, a=nn.Linear(4, D), b=nn.Linear(4, D))


MODELS |= {
    "rows_of_length_one": rows_of_length_one,
    "angles": angles,
    "attention_of_angles": attention_of_angles,
    "penalties": penalties,
}
IMAGES = {
    "standardised": lambda: images(Standardised),
    "standardised_by_axis": lambda: images(StandardisedByAxis),
    "standardised_by_moments": lambda: images(StandardisedByMoments),
    "demodulated": lambda: images(Demodulated),
    "response_norm": lambda: on_channels(response_norm, g=parameter(1, D, 1, 1)),
    "viewed_as_one_group": lambda: on_channels(viewed),
    "pixel_norm": lambda: on_channels(
        lambda self, h: h * torch.rsqrt(torch.mean(h.square(), dim=1, keepdim=True) + 1e-8)
    ),
    "layer_norm_2d": lambda: on_channels(
        lambda self, h: self.n(h.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), n=nn.LayerNorm(D)
    ),
    "group_norm": lambda: on_channels(lambda self, h: self.n(h), n=nn.GroupNorm(1, D)),
    "gate_of_means": lambda: on_channels(
        lambda self, h: (
            h * torch.sigmoid(h.mean(1, keepdim=True)) / (1 + h.std((1, 2, 3), keepdim=True))
        )
    ),
}
X = randn(2, 5, 4)
PICTURES, OTHER_PICTURES = randn(2, 3, 6, 6), [randn(3, 3, 8, 7, seed=8), randn(1, 3, 6, 6, seed=9)]
OTHERS = [randn(3, 9, 4, seed=8), randn(1, 2, 4, seed=9)]


def outputs(model, x, training):
    twin = copy.deepcopy(model).train(training)
    with torch.no_grad():
        return twin(x)


def made(name):
    """A model, its example and other inputs."""
    if name in IMAGES:
        return IMAGES[name](), PICTURES, OTHER_PICTURES
    return MODELS[name](), X, OTHERS


@pytest.mark.each(52)
@pytest.mark.parametrize("name", [*MODELS, *IMAGES])
def test_growth_is_exact_also_on_other_inputs(name):
    """On one plan."""
    model, example, others = made(name)
    plan = make_plan(model, example, stages=3)
    assert D in widths(plan).values(), plan
    check_contract(plan)
    for mode in ("off", "preserving"):
        check_other_inputs(plan, mode, others)


def check_other_inputs(plan, mode, others):
    example, seed = plan.example_inputs, plan.build_seed()
    perturb(seed)
    grower = gr.Grower(seed, plan, noise=0.0, variance_transfer=mode)
    for progress in (0.3, 1.0):
        cases = [(x, t, outputs(seed, x, t)) for x in (example, *others) for t in (False, True)]
        grower.grow()
        limit = 1e-12 if mode == "off" else 1e-3  # ε of norms
        for x, training, before in cases:
            assert distance(before, outputs(seed, x, training)) < limit
        grower.advance(progress)
        perturb(seed, seed=3)
    twin = copy.deepcopy(plan.model)
    twin.load_state_dict(seed.state_dict())
    for x in others:
        assert torch.equal(twin(x), seed(x))


@pytest.mark.parametrize("name", [*ONE_TENSOR, "with_mode", "inline", "with_residual", "gated"])
@pytest.mark.each(8)
def test_weights_in_front_of_a_hand_written_norm_are_rescaled(name):
    plan = make_plan(MODELS[name](), X, stages=2)
    assert any(r.kind == "norm" for r in plan.groups.records)
    seed = plan.build_seed()
    perturb(seed)
    report = gr.Grower(seed, plan, noise=0.0, variance_transfer="preserving").grow()
    assert report.change.relative < 1e-3


def test_a_lone_norm_resets_the_scale():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, D), Literal(), nn.Linear(D, 3))
    plan = make_plan(model, X, stages=2, freeze=["2"])
    report = gr.Grower(plan.build_seed(), plan, noise=0.0, variance_transfer="preserving").grow()
    assert report.factors["2.weight"] == pytest.approx(math.sqrt(2 / 8))


@pytest.mark.parametrize("kind", [Literal, StdEps, ShiftFirst, OnePlus])
def test_gains_and_shifts_are_known_as_such(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, D), kind(), nn.Linear(D, 3))
    specs = make_plan(model, X, stages=2).groups.specs
    kinds = {spec.kind for name, spec in specs.items() if name.startswith("1.")}
    assert kinds <= {"gain", "bias"} and "gain" in kinds


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.amax(-1, keepdim=True),
        lambda x: x.logsumexp(-1, keepdim=True),
        lambda x: x.prod(-1, keepdim=True),
        lambda x: torch.linalg.vector_norm(x, math.inf, -1, keepdim=True),
        lambda x: torch.linalg.vector_norm(x, 0, -1, keepdim=True),
        lambda x: torch.linalg.matrix_norm(x, keepdim=True),
        lambda x: (x > 0).sum(-1, keepdim=True),
        lambda x: torch.ops.aten.mean.dim(x, [-1], True),
    ],
)
@pytest.mark.each(2)
def test_what_cannot_fade_stays_frozen(function):
    torch.manual_seed(0)
    model = Net(
        lambda self, x: self.o(function(self.i(x)) + self.j(x)),
        i=nn.Linear(4, D), j=nn.Linear(4, D), o=nn.Linear(D, 3),
    )  # fmt: skip
    assert set(widths(make_plan(model, X, stages=2))) == {"j"}


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("cumsum", lambda x: x.cumsum(-1)),
        ("softmax", lambda x: x.softmax(-1)),
        ("sort", lambda x: x.sort(-1).values),
    ],
)
def test_what_combines_entries_freezes_what_is_added_too(operator, function):
    model = Net(
        lambda self, x: self.o(function(self.i(x)) + self.j(x)),
        i=nn.Linear(4, D), j=nn.Linear(4, D), o=nn.Linear(D, 3),
    )  # fmt: skip
    with pytest.raises(gr.GrowthError) as caught:
        make_plan(model, X, stages=2)
    assert "nothing in Net can grow" in str(caught.value)
    assert f"operator 'aten.{operator}' in '(model)' combines its entries" in str(caught.value)


class OwnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x - x.mean(-1, keepdim=True)

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.mean(-1, keepdim=True)


def test_a_mean_inside_an_autograd_function_keeps_the_width():
    torch.manual_seed(0)
    parts = {"i": nn.Linear(4, D), "o": nn.Linear(D, 3)}
    model = Net(lambda self, x: self.o(OwnFunction.apply(self.i(x))), **parts)
    with pytest.raises(gr.GrowthError, match="a fade does not reach"):
        make_plan(model, X, stages=2)


def test_a_mean_inside_a_hook_keeps_the_width():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, D), nn.Linear(D, 3))
    model[0].register_forward_hook(lambda m, a, y: y - y.mean(-1, keepdim=True))
    with pytest.raises(gr.GrowthError, match="a fade does not reach"):
        make_plan(model, X, stages=2)


def test_group_norm_of_one_group_grows():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(1, 8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    plan = make_plan(model, randn(2, 3, 6, 6), stages=3)
    assert widths(plan) == {"0": 8}
    check_contract(plan)


def test_norms_are_found_by_their_degree():
    def count(function):
        model = Net(lambda self, x: function(self.i(x)), i=nn.Linear(4, 6))
        return len({id(n) for n in find_norms(trace(model, torch.ones(2, 4))).values()})

    assert count(rms) == 1
    assert count(lambda x: F.normalize(x, dim=-1)) == 1
    assert count(lambda x: x - x.mean(-1, keepdim=True)) == 0
    assert count(lambda x: x / (1 + x.std(-1, keepdim=True))) == 0, "that is no ε"
    assert count(lambda x: x * x.pow(2).mean(-1, keepdim=True)) == 0
    assert count(lambda x: x * torch.sigmoid(x.mean(-1, keepdim=True))) == 0
    # the variance is used by itself as well
    assert count(lambda x: (rms(x), x.pow(2).mean(-1))) == 1

    def leaky(x):
        square = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(square + 1e-6), square

    assert count(leaky) == 0
