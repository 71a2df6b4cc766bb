"""Parameters and buffers used in more ways than one: tied, sliced, scaled, shared."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.graph.tables.base import IMAGE, Made, row
from tests.growth_contract import Net, parameter, randn, tokens


@row({"e": 9, "m1": 7})
def tied_embedding() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.n(self.e(x) + self.m2(self.m1(self.e(x)).relu())))

    net = Net(
        forward,
        e=nn.Embedding(10, 9),
        m1=nn.Linear(9, 7),
        m2=nn.Linear(7, 9),
        n=nn.LayerNorm(9),
        head=nn.Linear(9, 10, bias=False),
    )
    net.head.weight = net.e.weight
    return net, tokens(2, 5)


@row(None, "only 'a.weight' writes it")
def tied_autoencoder() -> Made:
    return Net(
        lambda self, x: F.linear(self.a(x).relu(), self.a.weight.t()), a=nn.Linear(4, 9)
    ), randn(5, 4)


@row({"a": 9})
def layer_used_twice() -> Made:
    return Net(
        lambda self, x: self.c(self.b(self.b(self.a(x).relu()).relu()).relu()),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 9),
        c=nn.Linear(9, 3),
    ), randn(5, 4)


@row({"p": 9, "b": 7})
def layer_used_twice_on_different_streams() -> Made:
    return Net(
        lambda self, x, y: (
            self.c(self.b(self.p(x).relu()).relu()) + self.d(self.b(self.q(y).relu()).tanh())
        ),
        p=nn.Linear(4, 9),
        q=nn.Linear(5, 9),
        b=nn.Linear(9, 7),
        c=nn.Linear(7, 3),
        d=nn.Linear(7, 3),
    ), (randn(5, 4), randn(5, 5))


@row({"patch": 8})
def class_token_and_positions() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls.expand(h.shape[0], -1, -1), h], 1) + self.pos
        return self.head(self.n(h)[:, 0])

    return Net(
        forward,
        patch=nn.Conv2d(3, 8, 3, stride=3),
        cls=nn.Parameter(torch.zeros(1, 1, 8)),
        pos=parameter(1, 5, 8),
        n=nn.LayerNorm(8),
        head=nn.Linear(8, 3),
    ), randn(*IMAGE)


@row({"a": 9, "b": 7})
def layer_scale() -> Made:
    return Net(
        lambda self, x: self.d(self.a(x) + self.g * self.c(F.gelu(self.b(self.a(x))))),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 7),
        c=nn.Linear(7, 9),
        g=nn.Parameter(torch.full((9,), 1e-2)),
        d=nn.Linear(9, 3),
    ), randn(5, 4)


@row({"a": 9})
def learned_temperature() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu() * self.t.exp() + self.s),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
        t=nn.Parameter(torch.zeros(())),
        s=nn.Parameter(torch.zeros(1)),
    ), randn(5, 4)


class Buffered(nn.Module):
    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 9), nn.Linear(9, 7), nn.Linear(7, 3)
        self.register_buffer("mask", (torch.arange(9) % 2).double(), persistent=persistent)
        self.register_buffer("table", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x).relu() * self.mask + self.table).relu())


@row({"b": 7}, "buffer 'mask'")
def buffer_over_a_width() -> Made:
    return Buffered(True), randn(5, 4)


@row({"b": 7}, "buffer 'mask'")
def buffer_over_a_width_not_persistent() -> Made:
    return Buffered(False), randn(5, 4)


@row({"g": 9})
def weight_scaled_by_a_parameter() -> Made:
    return Net(
        lambda self, x: self.b(F.linear(x, self.w * self.g[:, None]).relu()),
        w=parameter(9, 4),
        g=parameter(9),
        b=nn.Linear(9, 3),
    ), randn(5, 4)


@row(None, "aten.mul")
def weight_scaled_by_its_fan_in() -> Made:
    class Equalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.u, self.v, self.w = parameter(9, 4), parameter(7, 9), parameter(3, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for w in (self.u, self.v, self.w):
                x = F.linear(x, w * (1 / math.sqrt(w.shape[1]))).tanh()
            return x

    return Equalised(), randn(5, 4)


@row({"w": 7})
def weight_sliced_in_code() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        d = self.w.shape[0] // 2
        return self.b(
            F.linear(x, self.w[:d], self.s[:d]).relu() * F.linear(x, self.w[d:], self.s[d:])
        )

    return Net(forward, w=parameter(14, 4), s=parameter(14), b=nn.Linear(7, 3)), randn(5, 4)


@row({"u": 5, "v": 7})
def weights_concatenated_in_code() -> Made:
    return Net(
        lambda self, x: self.b(F.linear(x, torch.cat([self.u, self.v])).relu()),
        u=parameter(5, 4),
        v=parameter(7, 4),
        b=nn.Linear(12, 3),
    ), randn(5, 4)


@row({"a": 6, "a/2": 8}, norms="other")
def weight_standardised() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        w = self.a.weight
        w = (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-5)
        return self.b(F.linear(F.linear(x, self.z.weight).relu(), w).relu())

    return Net(forward, z=nn.Linear(4, 8), a=nn.Linear(8, 6), b=nn.Linear(6, 3)), randn(5, 4)


@row({"a": 9})
def softmax_of_a_parameter() -> Made:
    return Net(
        lambda self, x: (
            sum(w * f(x) for w, f in zip(self.mix.softmax(0), (self.a, self.b), strict=True))
            @ self.w
        ),
        a=nn.Linear(4, 9),
        b=nn.Linear(4, 9),
        mix=parameter(2),
        w=parameter(9, 3),
    ), randn(5, 4)


@row({"a": 7})
def dead_branch_and_unused_layer() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu()),
        a=nn.Linear(4, 7),
        b=nn.Linear(7, 3),
        unused=nn.Linear(7, 7),
    ), randn(5, 4)


class OneNumberForAll(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dim = 8
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x.view(-1, self.dim))
        return self.b(h.relu().view(-1, self.dim)).view(-1, self.dim)


@row(None, "does not follow another width")
def one_attribute_for_growing_and_fixed_sizes() -> Made:
    return OneNumberForAll(), randn(5, 8)


@row({"a": 7})
def tied_layers_transposed() -> Made:
    return Net(
        lambda self, x: F.conv_transpose2d(self.b(self.a(x).relu()).relu(), self.a.weight),
        a=nn.Conv2d(3, 7, 3),
        b=nn.Conv2d(7, 7, 1),
    ), randn(*IMAGE)


@row({"a": 7})
def parameter_added_to_an_image() -> Made:
    return Net(
        lambda self, x: self.b((self.a(x) + self.p).relu() * self.g.view(1, -1, 1, 1)),
        a=nn.Conv2d(3, 7, 1),
        p=parameter(1, 7, 6, 6),
        g=parameter(7),
        b=nn.Conv2d(7, 3, 1),
    ), randn(*IMAGE)


@row(None, "used in two ways")
def weight_of_a_square_layer_symmetrised() -> Made:
    return Net(
        lambda self, x: self.c(F.linear(self.a(x).relu(), self.w + self.w.t()).relu()),
        a=nn.Linear(4, 7),
        w=parameter(7, 7),
        c=nn.Linear(7, 3),
    ), randn(5, 4)
