"""Blocks of whole networks, where rules meet."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.graph.tables.base import IMAGE, Made, row
from tests.growth_contract import Net, parameter, randn


@row({"d1.0": 5, "d2.0": 7, "mid.0": 9, "up2": 7, "u2.0": 7, "up1": 5, "u1.0": 5})
def unet() -> Made:
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()

            def block(i: int, o: int) -> nn.Module:
                return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())

            self.d1, self.d2, self.mid = block(3, 5), block(5, 7), block(7, 9)
            self.up2, self.u2 = nn.ConvTranspose2d(9, 7, 2, stride=2), block(14, 7)
            self.up1, self.u1 = nn.ConvTranspose2d(7, 5, 2, stride=2), block(10, 5)
            self.head = nn.Conv2d(5, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = self.d1(x)
            b = self.d2(F.max_pool2d(a, 2))
            c = self.mid(F.max_pool2d(b, 2))
            y = self.u2(torch.cat([self.up2(c), b], 1))
            return self.head(self.u1(torch.cat([self.up1(y), a], 1)))

    return UNet(), randn(2, 3, 8, 8)


@row({"a": 9, "b": 7})
def residual_without_norm() -> Made:
    return Net(
        lambda self, x: self.d(self.a(x) + self.c(self.b(self.a(x)).relu())),
        a=nn.Conv2d(3, 9, 1),
        b=nn.Conv2d(9, 7, 3, padding=1),
        c=nn.Conv2d(7, 9, 1),
        d=nn.Conv2d(9, 3, 1),
    ), randn(*IMAGE)


@row({"a": 9, "c": 7}, norms="other")
def convnext_block() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        y = self.n(self.b(h).permute(0, 2, 3, 1))
        y = self.d(F.gelu(self.c(y))) * self.g
        return self.head(h + y.permute(0, 3, 1, 2))

    return Net(
        forward,
        a=nn.Conv2d(3, 9, 1),
        b=nn.Conv2d(9, 9, 3, padding=1, groups=9),
        n=nn.LayerNorm(9),
        c=nn.Linear(9, 7),
        d=nn.Linear(7, 9),
        g=nn.Parameter(1e-2 * torch.ones(9)),
        head=nn.Conv2d(9, 3, 1),
    ), randn(*IMAGE)


@row({"i": 9, "t1": 7})
def mixer_over_tokens() -> Made:
    return Net(
        lambda self, x: self.o(self.i(x) + self.t2(F.gelu(self.t1(self.i(x).mT))).mT),
        i=nn.Linear(5, 9),
        t1=nn.Linear(4, 7),
        t2=nn.Linear(7, 4),
        o=nn.Linear(9, 3),
    ), randn(2, 4, 5)


@row({"a": 7})
def film() -> Made:
    def forward(self: Any, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        h = self.n(self.a(x))
        scale, shift = self.m(c)[..., None, None].chunk(2, 1)
        return self.b((h * scale + shift).relu())

    return Net(
        forward, a=nn.Conv2d(3, 7, 1), n=nn.BatchNorm2d(7), m=nn.Linear(4, 14), b=nn.Conv2d(7, 3, 1)
    ), (randn(*IMAGE), randn(2, 4))


@row({"a": 9})
def soft_mixture_of_experts() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        gates = self.gate(x).softmax(-1)
        experts = torch.stack([f(x) for f in (self.a, self.b)], -1)
        return self.o((experts * gates.unsqueeze(-2)).sum(-1).relu())

    return Net(
        forward, gate=nn.Linear(4, 2), a=nn.Linear(4, 9), b=nn.Linear(4, 9), o=nn.Linear(9, 3)
    ), randn(5, 4)


@row({"a": 9})
def two_outputs() -> Made:
    def forward(self: Any, x: torch.Tensor) -> dict[str, Any]:
        h = self.a(x).relu()
        return {"logits": self.b(h), "aux": [self.c(h)]}

    return Net(forward, a=nn.Linear(4, 9), b=nn.Linear(9, 3), c=nn.Linear(9, 2)), randn(5, 4)


@row({"b": 6}, "output")
def features_as_output() -> Made:
    def forward(self: Any, x: torch.Tensor) -> Any:
        h = self.a(x).relu()
        return self.c(self.b(h).relu()), h

    return Net(forward, a=nn.Linear(4, 9), b=nn.Linear(9, 6), c=nn.Linear(6, 3)), randn(5, 4)


@row({"a": 9})
def infinite_outputs() -> Made:
    # masked logits are a legitimate output
    return Net(
        lambda self, x: self.b(self.a(x).relu()).masked_fill(
            torch.tensor([True, False, False]), float("-inf")
        ),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
    ), randn(5, 4)


@row(None, "aten.tanh")
def code_branches_on_width() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).relu()
        if h.shape[-1] > 5:
            h = h.tanh()
        return self.b(h)

    return Net(forward, a=nn.Linear(4, 9), b=nn.Linear(9, 3)), randn(5, 4)


@row({"a": 9})
def stochastic_depth_and_scalar_gate() -> Made:
    return Net(
        lambda self, x: self.c(self.a(x) + self.s.tanh() * self.b(self.a(x)).relu()),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 9),
        s=parameter(1),
        c=nn.Linear(9, 3),
    ), randn(5, 4)


@row({"a": 9})
def product_keys() -> Made:
    # scores against a learned table, softmax over the table, then values
    return Net(
        lambda self, x: (self.a(x) @ self.keys.t()).softmax(-1) @ self.values,
        a=nn.Linear(4, 9),
        keys=parameter(6, 9),
        values=parameter(6, 3),
    ), randn(5, 4)


@row({"a": 7})
def bidirectional_sum_of_projections() -> Made:
    return Net(
        lambda self, x: self.c(
            torch.addcmul(self.a(x), self.b(x), self.d(x), value=0.5)
            + torch.lerp(self.a(x), self.b(x), 0.3)
        ),
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 7),
        d=nn.Linear(4, 7),
        c=nn.Linear(7, 3),
    ), randn(5, 4)


@row({"a": 7})
def rotation_of_two_halves_without_attention() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        p, q = self.a(x).chunk(2, -1)
        return self.b(torch.cat([-q, p], -1) + self.a(x))

    return Net(forward, a=nn.Linear(4, 14), b=nn.Linear(14, 3)), randn(5, 4)


@row({"?": 7})
def pairs_of_channels_rotated() -> Made:
    # interleaved rotary: (…, d/2, 2) unbound and stacked again
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        p, q = self.a(x).unflatten(-1, (-1, 2)).unbind(-1)
        return self.b(torch.stack([-q, p], -1).flatten(-2).relu())

    return Net(forward, a=nn.Linear(4, 14), b=nn.Linear(14, 3)), randn(5, 4)


@row({"a": 9})
def wide_and_deep_with_an_output_stream() -> Made:
    # a hidden layer of the width of the outputs is added to them
    return Net(
        lambda self, x: self.b(self.a(x).relu()) + self.c(x),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
        c=nn.Linear(4, 3),
    ), randn(5, 4)
