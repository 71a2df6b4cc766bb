"""Rows of rules/selection.py: operators that join, cut and pick entries."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.graph.tables.base import IMAGE, Made, chain, row
from tests.growth_contract import Net, randn, tokens


@row({"a": 7, "b": 5})
def cat() -> Made:
    return Net(
        lambda self, x: self.c(torch.cat([self.a(x), self.b(x), x], 1).relu()),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv2d(3, 5, 1),
        c=nn.Conv2d(15, 3, 3),
    ), randn(*IMAGE)


@row({"a": 7})
def cat_of_one_tensor_twice() -> Made:
    return Net(
        lambda self, x: self.c(torch.cat([self.a(x)] * 2, 1).relu()),
        a=nn.Conv2d(3, 7, 1),
        c=nn.Conv2d(14, 3, 3),
    ), randn(*IMAGE)


@row({"a": 7})
def cat_of_a_tensor_and_its_relu() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        return self.c(self.n(torch.cat([h.relu(), (-h).relu()], 1)))

    return Net(forward, a=nn.Conv2d(3, 7, 1), n=nn.BatchNorm2d(14), c=nn.Conv2d(14, 3, 3)), randn(
        *IMAGE
    )


@row({"stem": 6, "a": 4, "b": 4})
def dense_block() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        h = torch.cat([h, self.a(self.n1(h).relu())], 1)
        h = torch.cat([h, self.b(self.n2(h).relu())], 1)
        return self.head(self.n3(h).relu().mean((2, 3)))

    return Net(
        forward,
        stem=nn.Conv2d(3, 6, 1),
        n1=nn.BatchNorm2d(6),
        a=nn.Conv2d(6, 4, 3, padding=1),
        n2=nn.BatchNorm2d(10),
        b=nn.Conv2d(10, 4, 3, padding=1),
        n3=nn.BatchNorm2d(14),
        head=nn.Linear(14, 3),
    ), randn(*IMAGE)


@row({"a": 7, "b": 5})
def cat_added_to_a_stream() -> Made:
    return Net(
        lambda self, x: self.d((torch.cat([self.a(x), self.b(x)], 1) + self.c(x)).relu()),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv2d(3, 5, 1),
        c=nn.Conv2d(3, 12, 1),
        d=nn.Conv2d(12, 3, 1),
    ), randn(*IMAGE)


@row({"a": 7})
def stack_and_sum() -> Made:
    return Net(
        lambda self, x: self.c(torch.stack([self.a(x), self.b(x)]).sum(0).relu()),
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 7),
        c=nn.Linear(7, 3),
    ), randn(5, 4)


class Splitting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sizes = [6, 3]
        self.a, self.b, self.c = nn.Linear(4, 9), nn.Linear(6, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.a(x).split(self.sizes, -1)
        return self.b(left.relu()) + self.c(right.sigmoid())


@row({"a": 6, "a/2": 3})
def split_by_sizes() -> Made:
    return Splitting(), randn(5, 4)


@row({"a": 5})
def split_by_one_size() -> Made:
    class Equal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.size = 5
            self.a, self.b = nn.Linear(4, 15), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            p, q, r = self.a(x).split(self.size, -1)
            return self.b(p.relu() * q.tanh() + r)

    return Equal(), randn(5, 4)


@row({"a": 6, "a/2": 5})
def chunk_of_odd_width() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        p, q = self.a(x).chunk(2, -1)
        return self.b(p.relu()) + self.c(q.tanh())

    return Net(forward, a=nn.Linear(4, 11), b=nn.Linear(6, 3), c=nn.Linear(5, 3)), randn(5, 4)


@row({"a/2": 5})
def slice_with_a_number() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x)[:, :4].relu()) + self.c(self.a(x)[:, 4:]),
        a=nn.Linear(4, 9),
        b=nn.Linear(4, 3),
        c=nn.Linear(5, 3),
    ), randn(5, 4)


@row({"a": 2, "a/3": 2})
def narrow() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu().narrow(1, 2, 5)),
        a=nn.Linear(4, 9),
        b=nn.Linear(5, 3),
    ), randn(5, 4)


@row(None, "aten.slice")
def strided_slice_of_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x)[:, ::2].relu()), a=nn.Linear(4, 8), b=nn.Linear(4, 3)
    ), randn(5, 4)


@row({"a": 9})
def select_a_token() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu()[:, 0]), a=nn.Linear(4, 9), b=nn.Linear(9, 3)
    ), randn(2, 5, 4)


@row(None, "aten.select")
def select_a_channel() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x)[..., :1] * x) + self.a(x)[..., 2, None],
        a=nn.Linear(4, 9),
        b=nn.Linear(4, 3),
    ), randn(2, 5, 4)


@row({"a": 6})
def channel_padding_shortcut() -> Made:
    # ResNet option A: the shortcut is padded with zero channels
    return Net(
        lambda self, x: self.c(
            (F.pad(self.a(x)[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)) + self.b(self.a(x).relu())).relu()
        ),
        a=nn.Conv2d(3, 6, 1),
        b=nn.Conv2d(6, 10, 3, stride=2, padding=1),
        c=nn.Conv2d(10, 3, 1),
    ), randn(*IMAGE)


@row({"a": 7})
def roll_space() -> Made:
    return Net(
        lambda self, x: self.b(torch.roll(self.a(x), (1, 2), (2, 3))),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv2d(7, 3, 1),
    ), randn(*IMAGE)


@row(None, "aten.roll")
def roll_channels() -> Made:
    return Net(
        lambda self, x: self.b(torch.roll(self.a(x), 1, 1)),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv2d(7, 3, 1),
    ), randn(*IMAGE)


@row(None, "aten.flip")
def flip_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).flip(1)), a=nn.Conv2d(3, 7, 1), b=nn.Conv2d(7, 3, 1)
    ), randn(*IMAGE)


@row({"0": 5})
def pixel_shuffle() -> Made:
    return chain(nn.Conv2d(3, 20, 1), nn.PixelShuffle(2), nn.ReLU(), nn.Conv2d(5, 3, 1))


@row({"0": 5})
def pixel_unshuffle() -> Made:
    return chain(nn.Conv2d(3, 5, 1), nn.PixelUnshuffle(2), nn.ReLU(), nn.Conv2d(20, 3, 1))


@row({"0": 5})
def channel_shuffle() -> Made:
    return chain(nn.Conv2d(3, 10, 1), nn.ChannelShuffle(2), nn.ReLU(), nn.Conv2d(10, 3, 1))


@row({"b": 5})
def channel_shuffle_by_hand() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        b, c, height, width = h.shape
        h = h.view(b, 2, c // 2, height, width).transpose(1, 2).reshape(b, c, height, width)
        return self.c(self.b(h).relu())

    return Net(
        forward, a=nn.Conv2d(3, 10, 1), b=nn.Conv2d(10, 10, 1, groups=2), c=nn.Conv2d(10, 3, 1)
    ), randn(*IMAGE)


@row({"stem": 6})
def shuffle_unit() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        left, right = h.chunk(2, 1)
        right = self.n(self.b(self.a(right).relu())).relu()
        h = torch.cat([left, right], 1)
        b, c, height, width = h.shape
        h = (
            h.view(b, 2, c // 2, height, width)
            .transpose(1, 2)
            .contiguous()
            .view(b, c, height, width)
        )
        return self.head(h)

    return Net(
        forward,
        stem=nn.Conv2d(3, 12, 1),
        a=nn.Conv2d(6, 6, 1),
        b=nn.Conv2d(6, 6, 3, padding=1, groups=6),
        n=nn.BatchNorm2d(6),
        head=nn.Conv2d(12, 3, 1),
    ), randn(*IMAGE)


@row(None, "aten.index")
def index_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x)[:, [0, 2, 4]]), a=nn.Linear(4, 7), b=nn.Linear(3, 3)
    ), randn(5, 4)


@row({"a": 7})
def index_tokens() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x)[:, [0, 2]].relu()), a=nn.Linear(4, 7), b=nn.Linear(7, 3)
    ), randn(2, 5, 4)


@row(None, "aten.gather")
def gather_channels() -> Made:
    return Net(
        lambda self, x, i: self.b(self.a(x).gather(1, i)), a=nn.Linear(4, 7), b=nn.Linear(3, 3)
    ), (randn(5, 4), tokens(5, 3, high=2))
