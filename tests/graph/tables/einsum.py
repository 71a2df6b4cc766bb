"""Rows of rules/einsum.py: sums of products over any axes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from tests.graph.tables.base import Made, row
from tests.growth_contract import Net, parameter, randn


@row({"a": 6})
def bilinear() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x), x), a=nn.Linear(4, 6), b=nn.Bilinear(6, 4, 3)
    ), randn(5, 4)


@row({"w1": 9})
def einsum_with_parameters() -> Made:
    return Net(
        lambda self, x: torch.einsum(
            "btf,of->bto", torch.einsum("bti,fi->btf", x, self.w1).relu(), self.w2
        ),
        w1=parameter(9, 4),
        w2=parameter(3, 9),
    ), randn(2, 5, 4)


@row({"q/2": 5, "v": 5})
def einsum_attention() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (2, -1)) for p in (self.q, self.k, self.v))
        weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])).softmax(-1)
        return self.o(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))

    return Net(
        forward, q=nn.Linear(6, 10), k=nn.Linear(6, 10), v=nn.Linear(6, 10), o=nn.Linear(10, 6)
    ), randn(2, 5, 6)


@row({"a": 9})
def einsum_with_dots() -> Made:
    return Net(
        lambda self, x: torch.einsum("...f,of->...o", self.a(x).relu(), self.w2),
        a=nn.Linear(4, 9),
        w2=parameter(3, 9),
    ), randn(2, 5, 4)


@row(None, "aten.einsum")
def power_sum_over_a_width_by_einsum() -> Made:
    return Net(
        lambda self, x: self.c(torch.einsum("bti->bt", self.a(x).relu())[..., None]),
        a=nn.Linear(4, 9),
        c=nn.Linear(1, 3),
    ), randn(2, 5, 4)


@row({"a": 9})
def diagonal_by_einsum() -> Made:
    return Net(
        lambda self, x: self.b(torch.einsum("bd,d->bd", self.a(x), self.g).relu()),
        a=nn.Linear(4, 9),
        g=parameter(9),
        b=nn.Linear(9, 3),
    ), randn(5, 4)


@row({"a": 7})
def tensor_product_by_einsum() -> Made:
    return Net(
        lambda self, x: self.c(torch.einsum("bi,bj->bij", self.a(x), self.b(x)).relu().flatten(1)),
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 5),
        c=nn.Linear(35, 3),
    ), randn(5, 4)


@row({"a": 6}, "sums over it alone")
def sum_over_a_width_by_einsum() -> Made:
    return Net(
        lambda self, x: self.c(torch.einsum("bsd->bs", self.b(self.a(x).relu()))),
        a=nn.Linear(4, 6),
        b=nn.Linear(6, 8),
        c=nn.Linear(3, 2),
    ), randn(5, 3, 4)
