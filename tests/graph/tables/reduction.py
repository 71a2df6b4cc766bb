"""Rows of rules/reduction.py: pooling, interpolation, means, sums, distances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.graph.tables.base import IMAGE, ROWS, Made, Row, chain, row
from tests.growth_contract import Net, parameter, randn

for _pool in (
    nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(2),
    nn.AdaptiveAvgPool2d((None, 2)),
    nn.MaxPool2d(3, 2, 1), nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=2, mode="bilinear"),
    nn.Upsample(size=(5, 5), mode="bicubic"), nn.ZeroPad2d(1), nn.ReflectionPad2d(1), nn.ReplicationPad2d(1),
    nn.ConstantPad2d(1, 0.5), nn.CircularPad2d(1), nn.Dropout(0.0), nn.Dropout2d(0.0), nn.Identity(),
    nn.AlphaDropout(0.0),
):  # fmt: skip
    ROWS.append(
        Row(
            f"layer_{_pool!r}",
            lambda a=_pool: chain(nn.Conv2d(3, 7, 1), a, nn.Conv2d(7, 3, 1)),  # type: ignore[misc]
            {"0": 7},
        )
    )


@row({"0": 7})
def lp_pool() -> Made:
    return chain(nn.Conv2d(3, 7, 1), nn.ReLU(), nn.LPPool2d(2, 2), nn.Conv2d(7, 3, 1))


@row({"0": 7})
def pools_1d() -> Made:
    return chain(
        nn.Conv1d(3, 7, 1),
        nn.MaxPool1d(2),
        nn.AvgPool1d(2),
        nn.AdaptiveMaxPool1d(1),
        nn.Conv1d(7, 3, 1),
        inputs=randn(2, 3, 8),
    )


@row({"0": 7})
def pools_3d() -> Made:
    return chain(
        nn.Conv3d(3, 7, 1),
        nn.MaxPool3d(2),
        nn.AvgPool3d(2),
        nn.AdaptiveAvgPool3d(1),
        nn.Conv3d(7, 3, 1),
        inputs=randn(2, 3, 4, 4, 4),
    )


@row({"a": 9})
def mean_over_space() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu().mean((2, 3))),
        a=nn.Conv2d(3, 9, 1),
        b=nn.Linear(9, 3),
    ), randn(*IMAGE)


@row({"a": 9})
def sum_and_max_over_space() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).sum(-1).amax(-1) + self.a(x).flatten(2).max(2)[0]),
        a=nn.Conv2d(3, 9, 1),
        b=nn.Linear(9, 3),
    ), randn(*IMAGE)


@row({"a": 7, "b": 9})
def mean_over_channels() -> Made:
    return Net(
        lambda self, x: self.c(self.b(self.a(x).relu()).mean(1, keepdim=True)),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv2d(7, 9, 1),
        c=nn.Conv2d(1, 3, 1),
    ), randn(*IMAGE)


@row({"a": 7, "b": 9})
def sum_over_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu()).sum(1), a=nn.Conv2d(3, 7, 1), b=nn.Conv2d(7, 9, 1)
    ), randn(*IMAGE)


@row({"a": 7}, "aten.amax")
def max_over_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu()).amax(1), a=nn.Conv2d(3, 7, 1), b=nn.Conv2d(7, 9, 1)
    ), randn(*IMAGE)


@row({"a": 7, "b": 9})
def variance_over_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu()).var(-1), a=nn.Linear(4, 7), b=nn.Linear(7, 9)
    ), randn(5, 4)


@row({"a": 7}, "aten.softmax")
def softmax_over_channels() -> Made:
    return Net(
        lambda self, x: self.c(self.b(self.a(x).relu()).softmax(1)),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv2d(7, 9, 1),
        c=nn.Conv2d(9, 3, 1),
    ), randn(*IMAGE)


@row({"a": 7})
def softmax_over_space() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).flatten(2).softmax(-1)),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv1d(7, 3, 1),
    ), randn(*IMAGE)


@row(None, "aten.cumsum")
def cumulated_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).cumsum(-1)), a=nn.Linear(4, 7), b=nn.Linear(7, 3)
    ), randn(5, 4)


@row(None, "aten.amax")
def channel_and_spatial_attention() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).relu()
        s = torch.cat([h.mean(1, keepdim=True), h.amax(1, keepdim=True)], 1)
        return self.b(h * self.s(s).sigmoid())

    return Net(
        forward, a=nn.Conv2d(3, 7, 1), s=nn.Conv2d(2, 1, 3, padding=1), b=nn.Conv2d(7, 3, 1)
    ), randn(*IMAGE)


@row({"a": 9, "s1": 5})
def squeeze_excite() -> Made:
    return Net(
        lambda self, x: self.b(
            self.a(x).relu()
            * self.s2(self.s1(self.a(x).relu().mean((2, 3), keepdim=True)).relu()).sigmoid()
        ),
        a=nn.Conv2d(3, 9, 1),
        s1=nn.Conv2d(9, 5, 1),
        s2=nn.Conv2d(5, 9, 1),
        b=nn.Conv2d(9, 3, 1),
    ), randn(*IMAGE)


@row(None, "conv1d")
def efficient_channel_attention() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).relu()
        gate = self.c(h.mean((2, 3)).unsqueeze(1)).squeeze(1).sigmoid()
        return self.b(h * gate[:, :, None, None])

    return Net(
        forward, a=nn.Conv2d(3, 9, 1), c=nn.Conv1d(1, 1, 3, padding=1), b=nn.Conv2d(9, 3, 1)
    ), randn(*IMAGE)


@row(None, "operator")
def pairwise_distances() -> Made:
    return Net(
        lambda self, x: torch.cdist(self.a(x), self.b(x)), a=nn.Linear(4, 6), b=nn.Linear(4, 6)
    ), randn(5, 4)


@row({"a": 6}, norms="other")
def cosine_similarity() -> Made:
    return Net(
        lambda self, x: F.cosine_similarity(self.a(x), self.b(x)),
        a=nn.Linear(4, 6),
        b=nn.Linear(4, 6),
    ), randn(5, 4)


@row({"a": 9})
def codebook_distances() -> Made:
    # |x - c|² written as a matmul and two sums
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        return h.pow(2).sum(-1, keepdim=True) - 2 * h @ self.codes.t() + self.codes.pow(2).sum(-1)

    return Net(forward, a=nn.Linear(4, 9), codes=parameter(6, 9)), randn(5, 4)


def _compared(loss: Callable[..., torch.Tensor]) -> Made:
    """Two towers whose features are compared, beside a head."""

    def forward(self: Net, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = self.a(x).tanh(), self.b(x).tanh()
        return self.c(a), loss(a, b)

    parts = {"a": nn.Linear(4, 8), "b": nn.Linear(4, 8), "c": nn.Linear(8, 3)}
    return Net(forward, **parts), randn(5, 4)


@row({"a": 8})
def mse_loss_of_features() -> Made:
    return _compared(F.mse_loss)


@row({"a": 8})
def mse_loss_of_features_summed() -> Made:
    return _compared(lambda a, b: F.mse_loss(a, b, reduction="sum"))


@row({"a": 8})
def l1_loss_of_features() -> Made:
    return _compared(F.l1_loss)


@row({"a": 8})
def smooth_l1_loss_of_features() -> Made:
    return _compared(lambda a, b: F.smooth_l1_loss(a, b, beta=0.5))


@row({"a": 8})
def huber_loss_of_features() -> Made:
    return _compared(lambda a, b: F.huber_loss(a, b, delta=0.5))


@row({"a": 8})
def loss_of_features_entry_by_entry() -> Made:
    return _compared(lambda a, b: F.mse_loss(a, b, reduction="none").mean())


@row({"a": 8})
def mse_loss_against_a_number() -> Made:
    return _compared(lambda a, b: F.mse_loss(a * b, torch.zeros(1, dtype=a.dtype).expand_as(a)))
