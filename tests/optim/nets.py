"""Small networks whose rings are of every kind, and what the tests of optimizers do with them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import growthring as gr
from tests.growth_contract import in_dtype, make_plan, randn

STAGES = 6


class MLP(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 3)
        )


class Residual(nn.Module):
    """Convolutions with BatchNorm around a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.n0 = nn.Conv2d(2, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.a, self.n1 = nn.Conv2d(12, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.b, self.n2 = nn.Conv2d(16, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.n0(self.stem(x)).relu()
        h = (h + self.n2(self.b(self.n1(self.a(h)).relu()))).relu()
        return self.head(h.mean((2, 3)))


class Joined(nn.Module):
    """A concatenation: the rings of what reads it lie scattered over its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 12), nn.Linear(5, 8), nn.Linear(25, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.c(torch.cat([self.a(x), self.b(x), x], 1).relu()).relu())


class Attention(nn.Module):
    """Fused qkv of two heads: the rings of its rows lie scattered."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.stem, self.qkv, self.proj = nn.Linear(5, 24), nn.Linear(24, 72), nn.Linear(24, 24)
        self.head = nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        return self.head(self.proj(x))


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 16, 3, padding=1)
        self.deep = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.point, self.head = nn.Conv2d(16, 12, 1), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.point(self.deep(self.stem(x).relu()).relu()).relu().mean((2, 3)))


# The network, an input, and the weight that writes the output.
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "mlp": (MLP, (6, 5), "4.weight"),
    "residual": (Residual, (6, 2, 5, 5), "head.weight"),
    "joined": (Joined, (6, 5), "head.weight"),
    "attention": (Attention, (4, 3, 5), "head.weight"),
    "depthwise": (Depthwise, (6, 2, 5, 5), "head.weight"),
}


@cache
def plan_of(net: str, dtype: torch.dtype = torch.float64, stages: int = STAGES) -> gr.Plan:
    make, shape, _ = NETS[net]
    if dtype != torch.float64:
        return in_dtype(plan_of(net, stages=stages), dtype)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make_plan(make(), randn(*shape), stages=stages, preset="paper")


def batch(plan: gr.Plan, seed: int) -> torch.Tensor:
    like = plan.example_inputs
    g = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=g, dtype=torch.float64).to(like.dtype)


def backward(model: nn.Module, plan: gr.Plan, seed: int) -> torch.Tensor:
    """Adds the gradient of one random batch."""
    out = model.train()(batch(plan, seed))
    target = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out)
    loss = (out - target).square().mean()
    loss.backward()
    return loss.detach()


def train(
    model: nn.Module, plan: gr.Plan, optimizer: torch.optim.Optimizer, steps: int = 3, seed: int = 0
) -> list[float]:
    losses = []
    for i in range(steps):
        optimizer.zero_grad()
        losses.append(float(backward(model, plan, 100 * seed + i)))
        optimizer.step()
    return losses


def grower_of(model: nn.Module, plan: gr.Plan, optimizer: Any = None, **options: Any) -> gr.Grower:
    options = {"generator": torch.Generator().manual_seed(3)} | options
    if options.get("method", "paired") == "paired":
        options = {"variance_transfer": "preserving"} | options
    return gr.Grower(model, plan, optimizer=optimizer, **options)


def snapshot(model: nn.Module, optimizers: Any, grower: gr.Grower | None = None) -> Any:
    """Everything that a refusal must not touch."""
    given = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return copy.deepcopy(
        (
            {n: (id(t), t.detach().clone()) for n, t in tensors},
            {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()},
            [o.state_dict() for o in given],
            None if grower is None else (grower.state_dict(), grower.stage),
        )
    )


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Equal bit for bit, through containers."""
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape, where
        x, y = (t.to_dense() if t.is_sparse else t for t in (a, b))
        assert torch.equal(torch.isnan(x), torch.isnan(y)), where
        assert torch.equal(torch.nan_to_num(x), torch.nan_to_num(y)), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}[{i}]")
    else:
        assert a == b, where


def is_old(grower: gr.Grower, name: str) -> torch.Tensor:
    """Mask of the entries that the last growth did not add."""
    return ~grower.rings.mask(name, grower.rings.num_rings - 1)


def is_finite(model: nn.Module) -> bool:
    return all(bool(torch.isfinite(p).all()) for p in model.parameters())
