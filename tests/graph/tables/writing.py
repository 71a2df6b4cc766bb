"""Rows of rules/writing.py: operators that write into part of a tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.graph.tables.base import IMAGE, Made, row
from tests.growth_contract import Net, randn


@row({"a": 7})
def in_place_arithmetic() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        g = self.g(x).relu()
        h = h.clone()
        h.add_(g)
        h.mul_(g)
        h.relu_()
        return self.b(h)

    return Net(forward, a=nn.Linear(4, 7), g=nn.Linear(4, 7), b=nn.Linear(7, 3)), randn(5, 4)


@row({"stem": 8, "a": 7})
def in_place_product_of_scaled_gates() -> Made:
    # h is used after h.mul_(g), without the value that mul_ returns
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        h = self.a(x)
        h.mul_(self.g(x).relu())
        return self.b(h.relu())

    return Net(
        forward,
        stem=nn.Linear(4, 8, bias=False),
        a=nn.Linear(8, 7, bias=False),
        g=nn.Linear(8, 7, bias=False),
        b=nn.Linear(7, 3, bias=False),
    ), randn(5, 4)


@row({"a": 5, "a/2": 4})
def slice_assignment() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).clone()
        g = self.g(x)
        h[:, : g.shape[1]] = g
        return self.b(h.relu())

    return Net(forward, a=nn.Linear(4, 9), g=nn.Linear(4, 5), b=nn.Linear(9, 3)), randn(5, 4)


@row({"a/2": 5})
def slice_addition() -> Made:
    # Temporal-shift-like: part of the channels gets something added in place
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).clone()
        h[:, :4] += 1.0
        return self.b(h.relu())

    return Net(forward, a=nn.Linear(4, 9), b=nn.Linear(9, 3)), randn(5, 4)


@row({"stem": 8, "a": 7})
def in_place_gate_in_front_of_a_norm() -> Made:
    # the norm sees h after h.mul_(g), through the name that h had before
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.n1(self.stem(x)).relu()
        h = self.a(x)
        h.mul_(self.g(x).relu())
        return self.b(self.n2(h).relu())

    return Net(
        forward,
        stem=nn.Conv2d(3, 8, 1),
        n1=nn.BatchNorm2d(8),
        a=nn.Conv2d(8, 7, 1, bias=False),
        g=nn.Conv2d(8, 7, 1, bias=False),
        n2=nn.BatchNorm2d(7),
        b=nn.Conv2d(7, 3, 1),
    ), randn(*IMAGE)


@row({"stem": 8, "a": 7})
def in_place_add_in_front_of_a_norm() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.n1(self.stem(x)).relu_()
        h = self.a(x)
        h += self.g(x)
        torch.relu_(h)
        return self.b(self.n2(h))

    return Net(
        forward,
        stem=nn.Conv2d(3, 8, 1),
        n1=nn.BatchNorm2d(8),
        a=nn.Conv2d(8, 7, 1),
        g=nn.Conv2d(8, 7, 1),
        n2=nn.BatchNorm2d(7),
        b=nn.Conv2d(7, 3, 1),
    ), randn(*IMAGE)
