"""Random compositions of operators: grown without noise through two stages they are exact, or frozen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from torch import nn

import growthring as gr
from growthring.errors import WidthGroupError
from tests.growth_contract import distance, make_plan, perturb, randn

STEPS: dict[str, Callable[..., torch.Tensor]] = {}
Tensor = torch.Tensor


def step(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of the block, the activation (batch, time, width) and the one before the last block."""
    STEPS[function.__name__] = function
    return function


class Block(nn.Module):
    """One step, with whatever layers it may need for the width it meets."""

    def __init__(self, name: str, width: int, out: int) -> None:
        super().__init__()
        self.name = name
        self.heads = 2
        if name in ("linear", "residual", "gate", "joined", "written", "low_rank"):
            self.a = nn.Linear(width, width if name in ("residual", "gate") else out)
        if name == "low_rank":
            self.a, self.b = nn.Linear(width, out), nn.Linear(out, width)
        if name in ("layer_norm", "inner_norm"):
            self.n = nn.LayerNorm(width)
        if name == "batch_norm":
            self.n = nn.BatchNorm1d(width)
        if name in ("attention", "mixed_heads"):
            self.q, self.k, self.v = (nn.Linear(width, 2 * out) for _ in range(3))
            self.o = nn.Linear(2 * out, width)
        if name == "convolution":
            self.a = nn.Conv1d(width, out, 3, padding=1)
        if name == "grouped":
            self.a = nn.Conv1d(width, 2 * out, 1, groups=2)
        if name in ("gain", "einsum"):
            self.w = nn.Parameter(randn(width))

    def forward(self, h: Tensor, before: Tensor) -> Tensor:
        return STEPS[self.name](self, h, before)


@step
def linear(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return m.a(h)


@step
def residual(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return h + m.a(h.relu())


@step
def gate(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return h * m.a(h).sigmoid()


@step
def joined(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return torch.cat([m.a(h), h], -1)


@step
def low_rank(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return m.b(m.a(h)) - h


@step
def written(m: Any, h: Tensor, before: Tensor) -> Tensor:
    new = m.a(h)
    n = h.shape[-1]
    out = h.new_zeros(*h.shape[:2], n + new.shape[-1])
    out[..., :n] = h.tanh()
    out[..., n:].add_(new)
    return out


@step
def written_in_place(m: Any, h: Tensor, before: Tensor) -> Tensor:
    h = h.clone()
    h[:, 1:] += h[:, :-1].clone()
    h[:, 0].mul_(0.5)
    return h


@step
def halves(m: Any, h: Tensor, before: Tensor) -> Tensor:
    a, b = h.chunk(2, -1)
    return torch.cat([b, a.relu()], -1)


@step
def glu(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return F.glu(torch.cat([h, h.sin()], -1), -1)


@step
def activation(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return F.gelu(h) + F.leaky_relu(h, 0.1)


@step
def layer_norm(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return m.n(h)


@step
def inner_norm(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return h + m.n(h).tanh()


@step
def batch_norm(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return m.n(h.transpose(1, 2)).transpose(1, 2)


def _heads(m: Any, h: Tensor) -> tuple[Tensor, ...]:
    return tuple(layer(h).unflatten(-1, (m.heads, -1)).transpose(1, 2) for layer in (m.q, m.k, m.v))


@step
def attention(m: Any, h: Tensor, before: Tensor) -> Tensor:
    y = F.scaled_dot_product_attention(*_heads(m, h))
    return h + m.o(y.transpose(1, 2).flatten(2))


@step
def mixed_heads(m: Any, h: Tensor, before: Tensor) -> Tensor:
    q, k, v = _heads(m, h)
    p = torch.einsum("...td,...sd->...ts", q, k).softmax(-1)
    return m.o(torch.einsum("bhts,bhsd->bthd", p, v).flatten(2))


@step
def convolution(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return m.a(h.mT).mT


@step
def grouped(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return m.a(h.mT).mT


@step
def shuffled(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return h.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


@step
def gain(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return h * (1 + m.w)


@step
def einsum(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return torch.einsum("...i,i->...i", h, m.w) + h


@step
def pooled(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return h + h.mean(1, keepdim=True) - h.amax(1, keepdim=True)


@step
def rolled(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return torch.roll(h, 1, 1) + h[:, [2, 0, 1]]


@step
def scattered(m: Any, h: Tensor, before: Tensor) -> Tensor:
    to = torch.tensor([1, 1, 0])[:, None].expand(-1, h.shape[-1])
    return torch.stack([torch.zeros_like(x).scatter_add(0, to, x) for x in h])


@step
def added(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return torch.index_add(h, 1, torch.tensor([0, 2]), h[:, :2].square())


@step
def doubled(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return h.repeat(1, 1, 2) + h.repeat_interleave(2, -1)


@step
def again(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return h + before if h.shape == before.shape else torch.cat([h, before], -1)


@step
def whole_sum(m: Any, h: Tensor, before: Tensor) -> Tensor:
    return h + h.sum(-1, keepdim=True)


class Program(nn.Module):
    """Blocks one after the other between two linear layers."""

    def __init__(self, code: list[tuple[str, int]]) -> None:
        super().__init__()
        self.first = nn.Linear(3, 8).double()
        self.blocks = nn.ModuleList()
        h = before = self.first(randn(2, 3, 3))
        for name, out in code:
            block = Block(name, h.shape[-1], out).double()
            h, before = block(h, before).detach(), h
            self.blocks.append(block)
        self.last = nn.Linear(h.shape[-1], 2)

    def forward(self, x: Tensor) -> Tensor:
        h = before = self.first(x)
        for block in self.blocks:
            h, before = block(h, before), h
        return self.last(h)


PROGRAMS = given(
    st.lists(
        st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from([4, 6])), min_size=1, max_size=5
    )
)
SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@settings(SETTINGS, max_examples=10)
@PROGRAMS
def test_random_programs_are_exact_or_frozen(code: list[tuple[str, int]]) -> None:
    check(code)


@pytest.mark.slow
@settings(SETTINGS, max_examples=100)
@PROGRAMS
def test_many_random_programs_are_exact_or_frozen(code: list[tuple[str, int]]) -> None:
    check(code)


def check(code: list[tuple[str, int]]) -> None:
    torch.manual_seed(0)
    x = randn(2, 3, 3)
    try:
        plan = make_plan(Program(code), x, stages=3)
    except WidthGroupError as refusal:
        assert "frozen" in str(refusal)
        return
    model = plan.build_seed()
    perturb(model)
    grower = gr.Grower(model, plan, variance_transfer="off", noise=0.0)
    for _ in range(2):
        before = {t: copy.deepcopy(model).train(t)(x).detach() for t in (False, True)}
        grower.grow()
        for training, old in before.items():
            new = copy.deepcopy(model).train(training)(x).detach()
            assert distance(old, new) <= 1e-12, (code, training)
        grower.finish()
