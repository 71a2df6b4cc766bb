"""Fades in compiled models: advancing costs no program, and computes what numbers in Python would."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import growthring as gr
from growthring import zoo
from growthring.growing.fading import Fade
from growthring.growing.fading.weighted import parse_call, weighted
from tests.discovered import discovered_once as discovered_once


class Counting:
    """A backend of `torch.compile` that counts the programs it is given."""

    def __init__(self) -> None:
        self.programs = 0

    def __call__(self, graph, inputs):
        self.programs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 12), nn.LayerNorm(12), nn.ReLU(), nn.RMSNorm(12), nn.Linear(12, 3)
    )


NETS = {
    "norms": (normed, torch.linspace(-1, 1, 24).reshape(6, 4)),
    "GPT": (lambda: zoo.GPT(16, 8, 1, 2, 16), torch.arange(16).reshape(2, 8)),
}


def grown_once(make, stages=2):
    """A model with fades that have just begun, its Grower, and inputs."""
    torch.manual_seed(0)
    x = NETS["norms"][1]
    plan = gr.plan(make(), x, stages=stages, total_steps=30)
    model = plan.build_seed()
    grower = gr.Grower(model, plan)
    grower.grow(measure=False)
    return model, grower, x


@pytest.mark.parametrize("name", NETS)
def test_a_fade_is_one_program_and_its_end_another(name):
    make, x = NETS[name]
    torch.manual_seed(0)
    plan = gr.plan(make(), x, stages=3, total_steps=30)
    model, backend = plan.build_seed(), Counting()
    grower = gr.Grower(model, plan)
    compiled = torch.compile(model, backend=backend)
    compiled(x).sum().backward()
    assert backend.programs == 1
    for stage in (1, 2):
        grower.grow(measure=False)
        before = backend.programs
        for progress in (0.0, 0.1, 0.25, 0.5, 0.9):
            grower.advance(progress)
            assert torch.equal(compiled(x), model(x)), f"stage {stage}, {progress}"
        assert backend.programs == before + 1
        grower.finish()
        for _ in range(3):
            assert torch.equal(compiled(x), model(x))
        assert backend.programs == before + 2


def test_gradients_of_a_compiled_fade_are_those_of_a_plain_one():
    model, grower, x = grown_once(normed)
    compiled = torch.compile(model, backend="aot_eager")
    for progress in (0.0, 0.3, 0.6):
        grower.advance(progress)
        found = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
        wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        torch.testing.assert_close(found, wanted)


def test_a_copy_of_a_compiled_fading_model_goes_on_by_itself():
    model, grower, x = grown_once(normed)
    grower.advance(0.25)
    compiled = torch.compile(model, backend="eager")
    before = compiled(x)
    twin = copy.deepcopy(model)
    grower.advance(0.75)
    assert torch.equal(torch.compile(twin, backend="eager")(x), before)
    assert not torch.equal(compiled(x), before)


class Checkpointed(nn.Module):
    """Takes its statistics in code of its own, which runs once more in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.o = nn.Linear(4, 12), nn.Linear(12, 3)

    def forward(self, x):
        def normalised(h):
            return F.layer_norm(h, h.shape[-1:])

        return self.o(checkpoint(normalised, self.a(x), use_reentrant=False))


@pytest.mark.parametrize("make", [normed, Checkpointed])
def test_a_fade_that_advances_before_the_backward_pass_leaves_its_gradients(make):
    model, grower, x = grown_once(make)
    grower.advance(0.25)
    parameters = list(model.parameters())
    wanted = torch.autograd.grad(model(x).square().sum(), parameters)
    loss = model(x).square().sum()
    grower.advance(0.5)
    for found, kept in zip(torch.autograd.grad(loss, parameters), wanted, strict=True):
        assert torch.equal(found, kept)


def test_a_failed_growth_leaves_a_fade_where_it_was(monkeypatch):
    model, grower, x = grown_once(normed, stages=3)
    grower.advance(0.25)
    compiled = torch.compile(model, backend="eager")
    before, state = compiled(x), grower.state_dict()["fades"]

    def fail(*args):
        raise RuntimeError("no pace")

    monkeypatch.setattr(grower._subjects.pace, "enter", fail)
    with pytest.raises(gr.GrowthError, match="no pace"):
        grower.grow(measure=False)
    assert torch.equal(compiled(x), before) and torch.equal(model(x), before)
    for now, then in zip(grower.state_dict()["fades"], state, strict=True):
        assert now["progress"] == then["progress"] and torch.equal(now["start"], then["start"])
    monkeypatch.undo()
    grower.advance(0.5)
    assert torch.equal(compiled(x), model(x)) and not torch.equal(model(x), before)


START = torch.tensor([1.0, 1.0, 0.0, 0.5], dtype=torch.float64)


def by_numbers(x: torch.Tensor, progress: float) -> dict[str, torch.Tensor]:
    """What weighted reductions over the last axis are, with Python's numbers for all that has no axes."""
    weights = START + (1 - START) * progress
    total = 1.0 * (4 * float(weights.mean()))
    w = weights.to(x.dtype)
    mean = (x * w).sum(-1, keepdim=True) / total
    squares = ((x - mean) * (x - mean) * w).sum(-1, keepdim=True)
    shares = w / total
    centred = x - (x * shares).sum(-1, keepdim=True)
    square = (centred * centred * shares).sum(-1, keepdim=True)
    return {
        "mean": (x * w).mean(-1) * (4 / total),
        "var": (squares / max(total - 1.0, 0.0)).squeeze(-1),
        "mse_loss": (F.mse_loss(x, torch.zeros_like(x), reduction="none") * w).sum() / total / len(x),
        "layer_norm": centred * torch.rsqrt(square + 1e-5),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("progress", [0.0, 0.1, 0.37, 1.0])
def test_every_bit_is_that_of_numbers(progress, dtype, generator):
    x = torch.randn(7, 4, generator=generator, dtype=torch.float64).to(dtype)
    fade = Fade(START.clone())
    fade.advance(progress)
    wanted = by_numbers(x, progress)
    calls = {
        "mean": parse_call(torch.mean, "mean", (x, -1), {}),
        "var": parse_call(torch.var, "var", (x, -1), {}),
        "layer_norm": parse_call(F.layer_norm, "layer_norm", (x, (4,)), {}),
    }
    for name, call in calls.items():
        assert torch.equal(weighted(call, {0: fade}), wanted[name]), name
    one = x[0]
    loss = parse_call(F.mse_loss, "loss", (one, torch.zeros_like(one)), {})
    assert torch.equal(weighted(loss, {0: fade}), by_numbers(x[:1], progress)["mse_loss"])


def test_a_fade_writes_to_the_tensors_that_it_has():
    fade = Fade(START.clone(), is_mean=True)
    share, factors = fade.share, fade._factors
    kept = fade.frozen()
    fade.advance(0.5)
    assert fade.share is share and fade._factors is factors
    assert share == fade.weights.mean() and torch.equal(factors, fade.weights / share)
    assert kept.share == START.mean() and torch.equal(kept._factors, START / START.mean())
