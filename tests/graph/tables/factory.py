"""Rows of rules/factory.py: tensors that the code makes."""

from __future__ import annotations

import torch
from torch import nn

from tests.graph.tables.base import Made, row
from tests.growth_contract import Net, randn


@row({"a": 9})
def tensor_made_from_the_width() -> Made:
    return Net(
        lambda self, x: self.b(
            self.a(x).relu() * torch.full((1,), self.a.weight.shape[0], dtype=x.dtype)
        ),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
    ), randn(5, 4)


@row(None, "aten.matmul")
def ones_of_the_width() -> Made:
    # ones @ W sums over the width
    return Net(
        lambda self, x: self.b(
            self.a(x).relu() @ torch.ones(self.a.weight.shape[0], 4, dtype=x.dtype)
        ),
        a=nn.Linear(4, 9),
        b=nn.Linear(4, 3),
    ), randn(5, 4)
