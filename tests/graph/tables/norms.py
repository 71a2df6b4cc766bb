"""Rows of rules/norms.py: normalisations, by torch and by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.graph.tables.base import IMAGE, Made, chain, row
from tests.growth_contract import Net, randn


@row({"0": 9})
def batch_norm_2d() -> Made:
    return chain(nn.Conv2d(3, 9, 3, bias=False), nn.BatchNorm2d(9), nn.ReLU(), nn.Conv2d(9, 4, 1))


@row({"0": 9})
def batch_norm_1d() -> Made:
    return chain(nn.Linear(4, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3), inputs=randn(6, 4))


@row({"0": 9})
def batch_norm_1d_sequence() -> Made:
    return chain(
        nn.Conv1d(4, 9, 1), nn.BatchNorm1d(9), nn.GELU(), nn.Conv1d(9, 3, 1), inputs=randn(6, 4, 5)
    )


@row({"0": 5})
def batch_norm_3d() -> Made:
    return chain(
        nn.Conv3d(2, 5, 1),
        nn.BatchNorm3d(5),
        nn.ReLU(),
        nn.Conv3d(5, 3, 1),
        inputs=randn(2, 2, 3, 3, 3),
    )


@row({"0": 9})
def batch_norm_plain() -> Made:
    return chain(nn.Conv2d(3, 9, 3), nn.BatchNorm2d(9, affine=False), nn.ReLU(), nn.Conv2d(9, 4, 1))


@row({"0": 9}, norms="other")
def batch_norm_untracked() -> Made:
    return chain(
        nn.Conv2d(3, 9, 3),
        nn.BatchNorm2d(9, track_running_stats=False),
        nn.ReLU(),
        nn.Conv2d(9, 4, 1),
    )


@row({"0": 9}, norms="other")
def layer_norm() -> Made:
    return chain(nn.Linear(4, 9), nn.LayerNorm(9), nn.ReLU(), nn.Linear(9, 3), inputs=randn(6, 4))


@row({"0": 9}, norms="other")
def layer_norm_plain() -> Made:
    return chain(
        nn.Linear(4, 9),
        nn.LayerNorm(9, elementwise_affine=False),
        nn.Linear(9, 3),
        inputs=randn(6, 4),
    )


@row({"0": 9}, norms="other")
def layer_norm_without_bias() -> Made:
    return chain(
        nn.Linear(4, 9), nn.LayerNorm(9, bias=False), nn.GELU(), nn.Linear(9, 3), inputs=randn(6, 4)
    )


@row({"0": 9}, norms="other")
def layer_norm_over_images() -> Made:
    return chain(nn.Conv2d(3, 9, 3), nn.LayerNorm((9, 4, 4)), nn.ReLU(), nn.Conv2d(9, 4, 1))


@row({"a": 9, "b": 6}, norms="other")
def layer_norm_twice_in_one_module() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = F.layer_norm(self.a(x), self.a.weight.shape[:1])
        return self.c(F.layer_norm(self.b(h.relu()), self.b.weight.shape[:1]))

    return Net(forward, a=nn.Linear(4, 9), b=nn.Linear(9, 6), c=nn.Linear(6, 3)), randn(5, 4)


@row({"a": 9}, norms="other")
def layer_norm_module_used_twice() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.n(self.a(x)).relu()
        return self.c(self.n(h + self.b(h)))

    return Net(
        forward, a=nn.Linear(4, 9), b=nn.Linear(9, 9), n=nn.LayerNorm(9), c=nn.Linear(9, 3)
    ), randn(5, 4)


@row({"0": 8}, norms="other")
def group_norm() -> Made:
    return chain(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 4, 1))


@row({"0": 8}, norms="other")
def group_norm_of_one_group() -> Made:
    return chain(nn.Conv2d(3, 8, 3), nn.GroupNorm(1, 8), nn.ReLU(), nn.Conv2d(8, 4, 1))


@row({"0": 7}, norms="other")
def group_norm_of_single_channels() -> Made:
    return chain(nn.Conv2d(3, 7, 3), nn.GroupNorm(7, 7), nn.ReLU(), nn.Conv2d(7, 4, 1))


@row({"0": 7}, norms="other")
def instance_norm() -> Made:
    return chain(
        nn.Conv2d(3, 7, 3), nn.InstanceNorm2d(7, affine=True), nn.ReLU(), nn.Conv2d(7, 4, 1)
    )


@row({"0": 7}, norms="other")
def instance_norm_tracked() -> Made:
    return chain(
        nn.Conv1d(3, 7, 1),
        nn.InstanceNorm1d(7, track_running_stats=True),
        nn.ReLU(),
        nn.Conv1d(7, 4, 1),
        inputs=randn(2, 3, 6),
    )


@row({"0": 9}, norms="other")
def rms_norm() -> Made:
    return chain(
        nn.Linear(4, 9), nn.RMSNorm(9, eps=1e-6), nn.SiLU(), nn.Linear(9, 3), inputs=randn(6, 4)
    )


@row({"0": 9}, norms="other")
def rms_norm_default_eps() -> Made:
    return chain(nn.Linear(4, 9), nn.RMSNorm(9), nn.SiLU(), nn.Linear(9, 3), inputs=randn(6, 4))


class HandRMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = 1e-5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


@row({"0": 9}, norms="other")
def rms_norm_by_hand() -> Made:
    return chain(nn.Linear(4, 9), HandRMSNorm(9), nn.SiLU(), nn.Linear(9, 3), inputs=randn(6, 4))


class ChannelsFirstNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(var + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


@row({"0": 9}, norms="other")
def layer_norm_channels_first_by_hand() -> Made:
    return chain(nn.Conv2d(3, 9, 1), ChannelsFirstNorm(9), nn.ReLU(), nn.Conv2d(9, 3, 1))


@row(None, "operator")
def local_response_norm() -> Made:
    return chain(nn.Conv2d(3, 9, 1), nn.LocalResponseNorm(3), nn.ReLU(), nn.Conv2d(9, 3, 1))


@row({"a": 9}, norms="other")
def normalised_features() -> Made:
    return Net(
        lambda self, x: self.b(F.normalize(self.a(x), dim=-1)), a=nn.Linear(4, 9), b=nn.Linear(9, 3)
    ), randn(5, 4)


@row({"i": 9}, norms="other")
def adaptive_layer_norm() -> Made:
    def forward(self: Any, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        h = self.i(x)
        scale, shift = self.m(c).chunk(2, -1)
        return self.o(self.n(h) * (1 + scale[:, None]) + shift[:, None])

    return Net(
        forward,
        i=nn.Linear(5, 9),
        n=nn.LayerNorm(9, elementwise_affine=False),
        m=nn.Linear(4, 18),
        o=nn.Linear(9, 3),
    ), (randn(2, 4, 5), randn(2, 4))


@row({"stem": 8, "a": 7})
def gate_in_front_of_a_norm() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.n1(self.stem(x)).relu()
        return self.b(self.n2(self.a(x) * self.g(x).relu()).relu())

    return Net(
        forward,
        stem=nn.Conv2d(3, 8, 1),
        n1=nn.BatchNorm2d(8),
        a=nn.Conv2d(8, 7, 1, bias=False),
        g=nn.Conv2d(8, 7, 1, bias=False),
        n2=nn.BatchNorm2d(7),
        b=nn.Conv2d(7, 3, 1),
    ), randn(*IMAGE)


@row(None, "aten.group_norm", norms="other")
def group_norm_over_a_concatenation() -> Made:
    return Net(
        lambda self, x: self.c(self.n(torch.cat([self.a(x), self.b(x)], 1)).relu()),
        a=nn.Conv2d(3, 6, 1),
        b=nn.Conv2d(3, 6, 1),
        n=nn.GroupNorm(4, 12),
        c=nn.Conv2d(12, 3, 1),
    ), randn(*IMAGE)


@row(None, "aten.group_norm", norms="other")
def group_norm_over_an_uneven_concatenation() -> Made:
    return Net(
        lambda self, x: self.c(self.n(torch.cat([self.a(x), self.b(x)], 1)).relu()),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(3, 4, 1),
        n=nn.GroupNorm(3, 12),
        c=nn.Conv2d(12, 3, 1),
    ), randn(*IMAGE)


@row(None, "aten.group_norm", norms="other")
def group_norm_across_a_concatenation() -> Made:
    # groups of six span both parts
    return Net(
        lambda self, x: self.c(self.n(torch.cat([self.a(x), self.b(x)], 1)).relu()),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(3, 4, 1),
        n=nn.GroupNorm(2, 12),
        c=nn.Conv2d(12, 3, 1),
    ), randn(*IMAGE)


@row({"a": 7, "b": 5}, norms="other")
def layer_norm_over_a_concatenation() -> Made:
    return Net(
        lambda self, x: self.c(self.n(torch.cat([self.a(x), x, self.b(x)], 1)).relu()),
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 5),
        n=nn.LayerNorm(16),
        c=nn.Linear(16, 3),
    ), randn(5, 4)


@row({"q/2": 7, "v": 7}, norms="other")
def layer_norm_over_heads() -> Made:
    class SubNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = 2
            self.q, self.k, self.v, self.o = (
                nn.Linear(5, 14),
                nn.Linear(5, 14),
                nn.Linear(5, 14),
                nn.Linear(14, 3),
            )
            self.n = nn.LayerNorm(14)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, n, _ = x.shape
            q, k, v = (
                f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
            )
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            return self.o(self.n(y))

    return SubNorm(), randn(2, 4, 5)


@row({"q/2": 7, "v": 7}, norms="other")
def norm_of_values_per_head() -> Made:
    class ValueNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = 2
            self.q, self.k, self.v, self.o = (
                nn.Linear(5, 14),
                nn.Linear(5, 14),
                nn.Linear(5, 14),
                nn.Linear(14, 3),
            )
            self.n = nn.RMSNorm(7, eps=1e-5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, n, _ = x.shape
            q, k, v = (
                f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
            )
            return self.o(
                F.scaled_dot_product_attention(q, k, self.n(v)).transpose(1, 2).flatten(2)
            )

    return ValueNorm(), randn(2, 4, 5)


@row({"a": 5})
def batch_norm_after_flatten() -> Made:
    return Net(
        lambda self, x: self.c(self.n(self.a(x).flatten(1)).relu()),
        a=nn.Conv2d(3, 5, 3),
        n=nn.BatchNorm1d(80),
        c=nn.Linear(80, 3),
    ), randn(*IMAGE)
