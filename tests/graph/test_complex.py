"""Complex weights: they grow in pairs like real ones, are drawn complex, and learn."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import growthring as gr
from tests.discovered import discovered_once as discovered_once
from tests.growth_contract import Net, randn

C = torch.complex128


def complex_parameter(*shape: int, seed: int = 11) -> nn.Parameter:
    return nn.Parameter(torch.complex(randn(*shape, seed=seed), randn(*shape, seed=seed + 1)) / 3)


class Spectral(nn.Module):
    """One spectral convolution of a Fourier neural operator."""

    def __init__(self, channels: int, out: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = complex_parameter(channels, out, modes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x)
        low = torch.einsum("bix,iox->box", spectrum[:, :, : self.modes], self.weight)
        full = torch.zeros(
            x.shape[0], low.shape[1], spectrum.shape[-1], dtype=low.dtype, device=x.device
        )
        full[:, :, : self.modes] = low
        return torch.fft.irfft(full, n=x.shape[-1])


Made = tuple[nn.Module, Any]


def complex_linear() -> Made:
    return Net(
        lambda self, x: torch.view_as_real(self.b(torch.tanh(self.a(x.to(C))))),
        a=nn.Linear(4, 7, dtype=C),
        b=nn.Linear(7, 3, dtype=C),
    ), randn(5, 4)


def magnitudes() -> Made:
    return Net(
        lambda self, x: self.c(self.a(x.to(C)).abs() + self.b(x.to(C)).angle()),
        a=nn.Linear(4, 7, dtype=C),
        b=nn.Linear(4, 7, dtype=C),
        c=nn.Linear(7, 3),
    ), randn(5, 4)


def parts() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x.to(C))
        return self.c(torch.cat([h.real, h.imag], -1)) + self.d((h * h.conj()).real)

    return Net(forward, a=nn.Linear(4, 7, dtype=C), c=nn.Linear(14, 3), d=nn.Linear(7, 3)), randn(
        5, 4
    )


def spectral_convolutions() -> Made:
    return nn.Sequential(
        nn.Conv1d(2, 6, 1), Spectral(6, 7, 3), nn.GELU(), Spectral(7, 5, 4), nn.Conv1d(5, 2, 1)
    ), randn(3, 2, 10)


def fourier_over_space() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.fftshift(torch.fft.rfft2(self.a(x)), dim=-2)
        return self.c(torch.fft.irfft2(spectrum * self.w, s=x.shape[-2:]))

    return Net(
        forward,
        a=nn.Conv2d(2, 6, 1),
        w=complex_parameter(6, 1, 1),
        c=nn.Conv2d(6, 2, 1),
    ), randn(3, 2, 4, 6)


def real_pairs_as_complex() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        weight = torch.view_as_complex(self.w)
        return torch.einsum("bi,io,op->bp", x.to(C), weight, self.v).abs()

    return Net(forward, w=nn.Parameter(randn(4, 7, 2)), v=complex_parameter(7, 3)), randn(5, 4)


def complex_of_two_layers() -> Made:
    return Net(
        lambda self, x: self.d(torch.complex(self.a(x), self.b(x)).abs()),
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 7),
        d=nn.Linear(7, 3),
    ), randn(5, 4)


def complex_rotary() -> Made:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads, self.size = 4, 6
            self.q, self.k, self.v = (nn.Linear(5, 24) for _ in range(3))
            self.o = nn.Linear(24, 3)
            angles = torch.arange(5.0)[:, None] * torch.tensor([1.0, 0.1, 0.01])
            table = torch.polar(torch.ones(5, 3, dtype=torch.float64), angles.double())
            self.register_buffer("table", table)

        def turned(self, x: torch.Tensor) -> torch.Tensor:
            pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs * self.table).flatten(-2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, t, _ = x.shape
            q, k, v = (
                layer(x).view(b, t, self.heads, self.size).transpose(1, 2)
                for layer in (self.q, self.k, self.v)
            )
            y = nn.functional.scaled_dot_product_attention(self.turned(q), self.turned(k), v)
            return self.o(y.transpose(1, 2).flatten(2))

    return Rotary(), randn(2, 5, 5)


CASES: dict[str, tuple[Callable[[], Made], dict[str, int]]] = {
    "linear": (complex_linear, {"a": 7}),
    "magnitudes": (magnitudes, {"a": 7}),
    "parts": (parts, {"a": 7}),
    "spectral convolutions": (spectral_convolutions, {"0": 6, "1": 7, "3": 5}),
    "fourier over space": (fourier_over_space, {"a": 6}),
    "real pairs as complex": (real_pairs_as_complex, {"w": 7}),
    "complex of two layers": (complex_of_two_layers, {"a": 7}),
    "rotary": (complex_rotary, {"q": 4}),
}


def grown(name: str, mode: str) -> None:
    make, expected = CASES[name]
    torch.manual_seed(0)
    model, inputs = make()
    plan = gr.plan(model.double(), inputs, stages=3, growth=None, round_to=1)
    assert {g.name: g.width for g in plan.groups.growable if g.name in expected} == expected
    model = plan.build_seed()
    grower = gr.Grower(model, plan, variance_transfer=mode, noise=0.0)
    for _ in range(2):
        before = {t: copy.deepcopy(model).train(t)(inputs) for t in (False, True)}
        grower.grow()
        for training, old in before.items():
            new = copy.deepcopy(model).train(training)(inputs)
            assert bool((new - old).abs().max() <= 1e-12 * old.abs().max())
    grower.finish()
    for p in model.parameters():
        if p.is_complex():
            assert p.dtype == C


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", ["off", "preserving"])
@pytest.mark.each(9)
def test_complex_models_grow_exactly(name: str, mode: str) -> None:
    grown(name, mode)


@pytest.mark.parametrize("dtype", [torch.complex64, C])
def test_new_entries_are_complex_and_of_the_users_deviation(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Net(
        lambda self, x: self.b(self.a(x.to(dtype)).abs().to(dtype)).abs(),
        a=nn.Linear(30, 64, dtype=dtype),
        b=nn.Linear(64, 3, dtype=dtype),
    )
    x = randn(5, 30)
    plan = gr.plan(model, x, stages=2, start=0.5, growth=None)
    seed = plan.build_seed()
    gr.Grower(seed, plan, variance_transfer="off", noise=0.0).grow()
    new = seed.a.weight.detach()[32:]
    assert new.dtype == dtype
    old = seed.a.weight.detach()[:32]
    for part, like in ((new.real, old.real), (new.imag, old.imag)):
        assert 0.8 < float(part.std() / like.std()) < 1.25


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "avagrad", "lars", "torch"])
@pytest.mark.each(2)
def test_new_complex_entries_learn(kind: str) -> None:
    torch.manual_seed(0)
    model, x = complex_linear()
    plan = gr.plan(model, x, stages=2, start=0.5, growth=None, round_to=1)
    model = plan.build_seed()
    make = {
        "sgd": lambda p: gr.optim.SGD(p, lr=0.05, momentum=0.9),
        "adam": lambda p: gr.optim.Adam(p, lr=0.05),
        "adamw": lambda p: gr.optim.AdamW(p, lr=0.05),
        "avagrad": lambda p: gr.optim.AvaGrad(p, lr=0.05),
        "lars": lambda p: gr.optim.LARS(p, lr=0.5, momentum=0.9),
        "torch": lambda p: torch.optim.Adam(p, lr=0.05),
    }[kind]
    optimizer = make(model.parameters())
    grower = gr.Grower(model, plan, optimizer)
    losses = []
    for step in range(12):
        if step == 4:
            grower.grow()
            born = model.a.weight.detach().clone()
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    moved = (model.a.weight.detach() - born)[4:]
    assert bool((moved.real.abs().amax(1) > 0).all()) and bool((moved.imag.abs().amax(1) > 0).all())
    assert losses[-1] < losses[4] < losses[0]


def test_a_complex_constant_is_kept() -> None:
    model = Net(
        lambda self, x: torch.view_as_real(self.b(torch.tanh(self.a(x.to(C)) * self.g))),
        a=nn.Linear(4, 8, dtype=C),
        g=nn.Parameter(torch.full((8,), 1 + 2j, dtype=C)),
        b=nn.Linear(8, 3, dtype=C),
    )
    x = randn(5, 4)
    plan = gr.plan(model, x, stages=2, start=0.5, growth=None)
    model = plan.build_seed()
    report = gr.Grower(model, plan, variance_transfer="off", noise=0.0).grow()
    assert report.change is not None and report.change.relative < 1e-12
    assert bool((model.g == 1 + 2j).all())


def test_transforms_over_a_width_freeze_it() -> None:
    model = Net(
        lambda self, x: self.d(self.c(torch.fft.fft(self.a(x)).abs())),
        a=nn.Linear(4, 8),
        c=nn.Linear(8, 6),
        d=nn.Linear(6, 3),
    )
    groups = gr.discover_width_groups(model, torch.zeros(2, 4))
    assert [g.name for g in groups.growable] == ["c"]
    assert "transforms it as a whole" in groups.explain()


def test_complex_weights_that_are_not_finite_are_refused() -> None:
    model, x = complex_linear()
    with torch.no_grad():
        model.a.weight[0, 0] = complex(0.0, float("nan"))
    with pytest.raises(gr.GrowthError, match=r"a\.weight.*not finite"):
        gr.plan(model, x)
