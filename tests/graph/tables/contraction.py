"""Rows of rules/contraction.py: convolutions, linear layers, matrix products, embeddings."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.graph.tables.base import IMAGE, Made, chain, row
from tests.growth_contract import Net, parameter, randn, tokens


@row({"0": 9})
def conv1d() -> Made:
    return chain(nn.Conv1d(3, 9, 3), nn.ReLU(), nn.Conv1d(9, 4, 1), inputs=randn(2, 3, 8))


@row({"0": 9, "2": 7})
def conv2d() -> Made:
    return chain(
        nn.Conv2d(3, 9, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(9, 7, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(7, 4, 1),
    )


@row({"0": 5})
def conv3d() -> Made:
    return chain(
        nn.Conv3d(2, 5, 3, padding=1), nn.ReLU(), nn.Conv3d(5, 3, 2), inputs=randn(2, 2, 4, 4, 4)
    )


@row({"0": 6})
def conv2d_unbatched() -> Made:
    return chain(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 1), inputs=randn(3, 6, 6))


@row({"0": 9})
def conv_circular_padding() -> Made:
    return chain(
        nn.Conv2d(3, 9, 3, padding=1, padding_mode="circular"),
        nn.ReLU(),
        nn.Conv2d(9, 4, 3, padding="same", padding_mode="reflect"),
    )


@row({"0": 4})
def conv_grouped() -> Made:
    return chain(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 12, 3, groups=4), nn.ReLU(), nn.Conv2d(12, 5, 1)
    )


@row({"0/2": 3, "2": 5})
def conv_grouped_by_size() -> Made:
    return chain(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 10, 3, groups=2), nn.ReLU(), nn.Conv2d(10, 5, 1)
    )


@row({"stem": 10, "a/2": 4, "b": 4})
def resnext_block() -> Made:
    return Net(
        lambda self, x: self.head(
            (
                self.stem(x) + self.c(self.n2(self.b(self.n1(self.a(self.stem(x))).relu())).relu())
            ).relu()
        ),
        stem=nn.Conv2d(3, 10, 1),
        a=nn.Conv2d(10, 12, 1, bias=False),
        n1=nn.BatchNorm2d(12),
        b=nn.Conv2d(12, 12, 3, padding=1, groups=3, bias=False),
        n2=nn.BatchNorm2d(12),
        c=nn.Conv2d(12, 10, 1),
        head=nn.Conv2d(10, 4, 1),
    ), randn(*IMAGE)


@row({"0": 7})
def conv_depthwise() -> Made:
    return chain(
        nn.Conv2d(3, 7, 3), nn.ReLU(), nn.Conv2d(7, 7, 3, groups=7), nn.ReLU(), nn.Conv2d(7, 5, 1)
    )


@row({"0": 6})
def conv_depthwise_multiplier() -> Made:
    return chain(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 18, 3, groups=6), nn.ReLU(), nn.Conv2d(18, 5, 1)
    )


@row({"0": 7, "2": 5})
def conv_transposed() -> Made:
    return chain(
        nn.ConvTranspose2d(3, 7, 2, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(7, 5, 3),
        nn.ReLU(),
        nn.Conv2d(5, 2, 1),
    )


@row({"0": 7})
def conv_transposed_1d() -> Made:
    return chain(
        nn.ConvTranspose1d(3, 7, 2, stride=2),
        nn.ReLU(),
        nn.ConvTranspose1d(7, 5, 3),
        inputs=randn(2, 3, 5),
    )


@row({"0": 5})
def conv_transposed_3d() -> Made:
    return chain(
        nn.ConvTranspose3d(2, 5, 2),
        nn.ReLU(),
        nn.ConvTranspose3d(5, 3, 2),
        inputs=randn(2, 2, 3, 3, 3),
    )


@row({"0": 4})
def conv_transposed_grouped() -> Made:
    return chain(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 12, 3, groups=4),
        nn.ReLU(),
        nn.Conv2d(12, 5, 1),
    )


@row({"0/2": 5, "2": 7})
def conv_transposed_grouped_by_size() -> Made:
    return chain(
        nn.Conv2d(3, 10, 3),
        nn.ReLU(),
        nn.ConvTranspose2d(10, 14, 3, groups=2),
        nn.ReLU(),
        nn.Conv2d(14, 5, 1),
    )


@row({"0": 7})
def conv_transposed_depthwise() -> Made:
    return chain(
        nn.Conv2d(3, 7, 3),
        nn.ReLU(),
        nn.ConvTranspose2d(7, 7, 3, groups=7),
        nn.ReLU(),
        nn.Conv2d(7, 5, 1),
    )


@row({"0": 9, "2": 7})
def mlp() -> Made:
    return chain(
        nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3), inputs=randn(5, 4)
    )


@row({"0": 9})
def mlp_without_bias() -> Made:
    return chain(
        nn.Linear(4, 9, bias=False), nn.GELU(), nn.Linear(9, 3, bias=False), inputs=randn(2, 5, 4)
    )


@row({"0": 9})
def linear_on_a_vector() -> Made:
    return chain(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3), inputs=randn(4))


@row({"w1": 9})
def matmul_with_parameters() -> Made:
    return Net(
        lambda self, x: torch.relu(x @ self.w1 + self.b) @ self.w2,
        w1=parameter(4, 9),
        b=parameter(9),
        w2=parameter(9, 3),
    ), randn(2, 5, 4)


@row({"w1": 9})
def addmm_with_parameters() -> Made:
    return Net(
        lambda self, x: torch.mm(torch.relu(torch.addmm(self.b, x, self.w1)), self.w2),
        w1=parameter(4, 9),
        b=parameter(9),
        w2=parameter(9, 3),
    ), randn(5, 4)


@row({"w1/2": 8})
def bmm_with_experts() -> Made:
    # every expert reads all tokens; weights (expert, in, out)
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.bmm(x.unsqueeze(0).expand(3, -1, -1), self.w1).relu()
        return torch.bmm(hidden, self.w2).sum(0)

    return Net(forward, w1=parameter(3, 4, 8), w2=parameter(3, 8, 5)), randn(6, 4)


@row({"u": 9, "v": 5})
def low_rank_weight() -> Made:
    return Net(
        lambda self, x: self.head(F.linear(x, self.u @ self.v).relu()),
        u=parameter(9, 5),
        v=parameter(5, 4),
        head=nn.Linear(9, 3),
    ), randn(5, 4)


@row({"base": 9, "down": 6})
def lora() -> Made:
    return Net(
        lambda self, x: self.head((self.base(x) + self.up(self.down(x)) * 0.5).relu()),
        base=nn.Linear(4, 9),
        down=nn.Linear(4, 6, bias=False),
        up=nn.Linear(6, 9, bias=False),
        head=nn.Linear(9, 3),
    ), randn(5, 4)


@row({"a": 7})
def outer_product_features() -> Made:
    return Net(
        lambda self, x: self.c(
            (self.a(x).relu()[:, :, None] * self.b(x).relu()[:, None, :]).flatten(1)
        ),
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 5),
        c=nn.Linear(35, 3),
    ), randn(5, 4)


@row(None, "a (6)")
def gram_matrix() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).flatten(2)
        return self.b((h @ h.mT).flatten(1))

    return Net(forward, a=nn.Conv2d(3, 6, 1), b=nn.Linear(36, 3)), randn(*IMAGE)


@row(None, "itself")
def inner_product_with_itself() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        return h @ h.mT

    return Net(forward, a=nn.Linear(4, 6)), randn(2, 5, 4)


@row({"a": 6})
def similarity_of_two_towers() -> Made:
    return Net(
        lambda self, x, y: self.a(x).relu() @ self.b(y).T, a=nn.Linear(4, 6), b=nn.Linear(5, 6)
    ), (randn(3, 4), randn(7, 5))


@row({"e": 9})
def embedding() -> Made:
    return Net(
        lambda self, x: self.b(self.e(x).relu()), e=nn.Embedding(10, 9), b=nn.Linear(9, 3)
    ), tokens(2, 5)


@row({"e": 9})
def embedding_with_padding() -> Made:
    return Net(
        lambda self, x: self.b(self.e(x)), e=nn.Embedding(10, 9, padding_idx=0), b=nn.Linear(9, 3)
    ), tokens(2, 5)


@row({"e": 9})
def embedding_scaled_by_width() -> Made:
    return Net(
        lambda self, x: self.b(
            (self.e(x) * math.sqrt(self.e.weight.shape[1]) + self.p[: x.shape[1]]).relu()
        ),
        e=nn.Embedding(10, 9),
        p=parameter(5, 9),
        b=nn.Linear(9, 3),
    ), tokens(2, 5)


@row({"e": 9}, "embedding_bag")
def embedding_bag() -> Made:
    return Net(
        lambda self, x: self.b(self.e(x)), e=nn.EmbeddingBag(10, 9), b=nn.Linear(9, 3)
    ), tokens(2, 5)


@row({"a": 7, "b": 5})
def depthwise_over_a_concatenation() -> Made:
    return Net(
        lambda self, x: self.c(self.d(torch.cat([self.a(x), self.b(x)], 1)).relu()),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv2d(3, 5, 1),
        d=nn.Conv2d(12, 12, 3, groups=12),
        c=nn.Conv2d(12, 3, 1),
    ), randn(*IMAGE)


@row({"a": 6, "d": 5})
def grouped_over_a_concatenation() -> Made:
    return Net(
        lambda self, x: self.c(self.d(torch.cat([self.a(x), self.b(x)], 1)).relu()),
        a=nn.Conv2d(3, 6, 1),
        b=nn.Conv2d(3, 6, 1),
        d=nn.Conv2d(12, 10, 3, groups=2),
        c=nn.Conv2d(10, 3, 1),
    ), randn(*IMAGE)


@row({"a": 9})
def mean_pooled_by_a_matmul() -> Made:
    return Net(
        lambda self, x: self.b(
            torch.full((1, x.shape[1]), 1 / x.shape[1], dtype=x.dtype) @ self.a(x)
        ),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
    ), randn(2, 5, 4)


@row(None, "aten.matmul")
def sum_by_a_matmul_with_ones_like() -> Made:
    # ones_like of an activation contracted with another one of that width
    return Net(
        lambda self, x: self.a(x).relu() @ torch.ones_like(self.b(x)).mT,
        a=nn.Linear(4, 9),
        b=nn.Linear(4, 9),
    ), randn(2, 5, 4)


@row({"a": 7, "w": 5})
def bilinear_form_by_matmul() -> Made:
    return Net(
        lambda self, x: (self.a(x) @ self.w) @ self.b(x).mT,
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 5),
        w=parameter(7, 5),
    ), randn(2, 5, 4)


@row({"v": 7, "v/2": 7})
def three_matrices_of_one_width() -> Made:
    return Net(
        lambda self, x: F.linear(x, self.u @ self.v @ self.w),
        u=parameter(3, 7),
        v=parameter(7, 7),
        w=parameter(7, 4),
    ), randn(5, 4)


@row({"e": 7, "f": 5})
def embedding_of_two_kinds_concatenated() -> Made:
    return Net(
        lambda self, x: self.b(torch.cat([self.e(x), self.f(x)], -1).relu()),
        e=nn.Embedding(10, 7),
        f=nn.Embedding(10, 5),
        b=nn.Linear(12, 3),
    ), tokens(2, 5)


@row({"e": 7})
def functional_embedding_read_twice() -> Made:
    return Net(
        lambda self, x: self.b(F.embedding(x, self.e) + self.e[0]),
        e=parameter(10, 7),
        b=nn.Linear(7, 3),
    ), tokens(2, 5)
