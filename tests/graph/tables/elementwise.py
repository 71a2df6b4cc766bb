"""Rows of rules/elementwise.py: operators that work entry by entry, and numbers in the code."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.graph.tables.base import IMAGE, ROWS, Made, Row, chain, row
from tests.growth_contract import Net, randn

for _activation in (
    nn.ReLU(), nn.LeakyReLU(0.2), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Sigmoid(), nn.Tanh(),
    nn.ELU(),
    nn.SELU(), nn.CELU(), nn.Softplus(), nn.Softsign(), nn.Mish(), nn.LogSigmoid(), nn.Hardswish(),
    nn.Hardsigmoid(),
    nn.Hardtanh(),
    nn.ReLU6(), nn.Threshold(0.1, 0.2), nn.Hardshrink(), nn.Softshrink(), nn.Tanhshrink(), nn.PReLU(), nn.RReLU(),
):  # fmt: skip
    ROWS.append(
        Row(
            f"activation_{_activation!r}",
            lambda a=_activation: chain(nn.Linear(4, 7), a, nn.Linear(7, 3), inputs=randn(5, 4)),  # type: ignore[misc]
            {"0": 7},
            training=not isinstance(_activation, nn.RReLU),
        )
    )


@row({"0": 7})
def prelu_per_channel() -> Made:
    return chain(nn.Conv2d(3, 7, 1), nn.PReLU(7), nn.Conv2d(7, 3, 1))


@row({"0": 5})
def glu() -> Made:
    return chain(nn.Conv2d(3, 10, 1), nn.GLU(1), nn.Conv2d(5, 3, 1))


@row({"gate": 9})
def swiglu() -> Made:
    return Net(
        lambda self, x: self.down(F.silu(self.gate(x)) * self.up(x)),
        gate=nn.Linear(4, 9),
        up=nn.Linear(4, 9),
        down=nn.Linear(9, 3),
    ), randn(5, 4)


@row({"a": 5})
def gated_halves() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        a, b = self.a(x).chunk(2, -1)
        return self.b(a * b.sigmoid())

    return Net(forward, a=nn.Linear(4, 10), b=nn.Linear(5, 3)), randn(5, 4)


@row({"a": 5})
def gate_by_slices_in_code() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        half = h.shape[-1] // 2
        return self.b(h[..., :half] * h[..., half:])

    return Net(forward, a=nn.Linear(4, 10), b=nn.Linear(5, 3)), randn(5, 4)


@row({"a": 7})
def arithmetic() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        h = 2 * h - 0.5 * torch.tanh(h) + 1.0
        h = h / (1 + h.abs()) - (3 - h) ** 2 + torch.exp(-h * h) * torch.where(h > 0, h, 0.1 * h)
        return self.b(torch.maximum(h, self.c(x)).clamp(-3, 3))

    return Net(forward, a=nn.Linear(4, 7), b=nn.Linear(7, 3), c=nn.Linear(4, 7)), randn(5, 4)


@row({"a": 7})
def broadcast_between_layouts() -> Made:
    return Net(
        lambda self, x: self.b(
            (self.a(x) + self.c(x.mean((2, 3)))[:, :, None, None]).relu() * self.s(x)
        ),
        a=nn.Conv2d(3, 7, 1),
        c=nn.Linear(3, 7),
        s=nn.Conv2d(3, 1, 1),
        b=nn.Conv2d(7, 3, 1),
    ), randn(*IMAGE)


@row({"a": 9})
def divided_by_its_width() -> Made:
    return Net(
        lambda self, x: (
            self.b(self.a(x).relu() / self.a.weight.shape[0]) * self.b.weight.shape[1] ** 0.5
        ),
        a=nn.Linear(4, 9, bias=False),
        b=nn.Linear(9, 3, bias=False),
    ), randn(5, 4)


@row(None, "aten.mul")
def number_with_an_odd_law() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu() * (1 + 1 / self.a.weight.shape[0])),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
    ), randn(5, 4)


@row(None, "aten.add")
def number_added_depends_on_width() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu() + 1 / self.a.weight.shape[0]),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
    ), randn(5, 4)


@row(None, "aten.add")
def whole_number_added_depends_on_width() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu() + self.a.weight.shape[0]),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
    ), randn(5, 4)


@row(None, "aten.pow")
def power_depends_on_width() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu() ** self.a.weight.shape[0]),
        a=nn.Linear(4, 3),
        b=nn.Linear(3, 3),
    ), randn(5, 4)


@row({"a": 7})
def residual_square_of_a_stream() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x) ** 2 + self.a(x) * self.a(x).detach()),
        a=nn.Linear(4, 7),
        b=nn.Linear(7, 3),
    ), randn(5, 4)


@row({"a": 9})
def input_added_to_a_layer() -> Made:
    # the stream is the model's input: frozen
    return Net(
        lambda self, x: self.c(x + self.b(self.a(x).relu())),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 4),
        c=nn.Linear(4, 3),
    ), randn(5, 4)


@row({"a": 8})
def broadcast_tensors() -> Made:
    def forward(self: Net, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).relu()
        a, b = torch.broadcast_tensors(h, h.mean(-1, keepdim=True))
        return self.c(a * b)

    return Net(forward, a=nn.Linear(4, 8), c=nn.Linear(8, 3)), randn(5, 4)
