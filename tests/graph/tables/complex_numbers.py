"""Rows of rules/complex_numbers.py: Fourier transforms."""

from __future__ import annotations

import torch
from torch import nn

from tests.graph.tables.base import Made, row
from tests.growth_contract import Net, randn


@row({"a": 7})
def fourier_features() -> Made:
    return Net(
        lambda self, x: self.b(torch.cat([self.a(x).sin(), self.a(x).cos()], -1)),
        a=nn.Linear(4, 7),
        b=nn.Linear(14, 3),
    ), randn(5, 4)
