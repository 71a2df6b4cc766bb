"""Rows of rules/recurrent.py; `recurrent_cases` has many more."""

from __future__ import annotations

from torch import nn

from tests.graph.tables.base import Made, row
from tests.growth_contract import Net, randn


@row({"a": 6, "b": 7})
def lstm() -> Made:
    return Net(
        lambda self, x: self.c(self.b(self.a(x)[0]).relu()),
        a=nn.LSTM(4, 6, batch_first=True),
        b=nn.Linear(6, 7),
        c=nn.Linear(7, 3),
    ), randn(2, 5, 4)


@row({"a": 6, "b": 7})
def gru() -> Made:
    return Net(
        lambda self, x: self.c(self.b(self.a(x)[0]).relu()),
        a=nn.GRU(4, 6),
        b=nn.Linear(6, 7),
        c=nn.Linear(7, 3),
    ), randn(2, 5, 4)


@row({"a": 6})
def lstm_cell() -> Made:
    return Net(lambda self, x: self.c(self.a(x)[0]), a=nn.LSTMCell(4, 6), c=nn.Linear(6, 3)), randn(
        5, 4
    )
