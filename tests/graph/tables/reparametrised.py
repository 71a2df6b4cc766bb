"""Rows of rules/reparametrised.py: weights that are computed from parameters."""

from __future__ import annotations

from torch import nn

from tests.graph.tables.base import Made, row
from tests.growth_contract import Net, randn


@row({"a": 9, "b": 7})
def weight_norm() -> Made:
    net = Net(
        lambda self, x: self.c(self.b(self.a(x).relu()).relu()),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 7),
        c=nn.Linear(7, 3),
    )
    nn.utils.parametrizations.weight_norm(net.a)
    return net, randn(5, 4)


@row({"b": 7}, "the parametrization _SpectralNorm")
def spectral_norm() -> Made:
    net = Net(
        lambda self, x: self.c(self.b(self.a(x).relu()).relu()),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 7),
        c=nn.Linear(7, 3),
    )
    nn.utils.parametrizations.spectral_norm(net.a)
    return net, randn(5, 4)
