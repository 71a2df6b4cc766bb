"""Rows of rules/structure.py: operators that rearrange entries."""

from __future__ import annotations

import torch
from torch import nn

from tests.graph.tables.base import IMAGE, Made, chain, row
from tests.growth_contract import Net, randn


@row({"a": 7})
def stack_and_flatten() -> Made:
    return Net(
        lambda self, x: self.c(torch.stack([self.a(x), self.b(x)], 2).flatten(1, 2).relu()),
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 7),
        c=nn.Linear(14, 3),
    ), randn(5, 4)


@row({"0": 6, "3": 9})
def flatten_to_linear() -> Made:
    return chain(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 9), nn.ReLU(), nn.Linear(9, 3)
    )


@row({"a": 6})
def flatten_after_permute() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu().permute(0, 2, 3, 1).flatten(1)),
        a=nn.Conv2d(3, 6, 3),
        b=nn.Linear(96, 3),
    ), randn(*IMAGE)


@row({"0": 7})
def unflatten_to_image() -> Made:
    return chain(
        nn.Linear(4, 7 * 9),
        nn.ReLU(),
        nn.Unflatten(1, (7, 3, 3)),
        nn.Conv2d(7, 3, 1),
        inputs=randn(2, 4),
    )


@row({"a": 7})
def view_with_a_computed_width() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).view(x.shape[0], -1, 3, 3)),
        a=nn.Linear(4, 7 * 9),
        b=nn.Conv2d(7, 3, 1),
    ), randn(2, 4)


@row(None, "aten.reshape")
def view_that_mixes_channels_and_space() -> Made:
    # a reshape where a permute is meant: nobody's width
    return Net(
        lambda self, x: self.b(self.a(x).reshape(2, 36, 8)), a=nn.Conv2d(3, 8, 1), b=nn.Linear(8, 3)
    ), randn(*IMAGE)


@row({"a": 9})
def permutations() -> Made:
    return Net(
        lambda self, x: (
            self.b(self.a(x).flatten(2).transpose(1, 2).movedim(2, 0).relu().permute(1, 2, 0)).mT
        ),
        a=nn.Conv2d(3, 9, 1),
        b=nn.Linear(9, 3),
    ), randn(*IMAGE)


@row({"a": 9})
def squeeze_and_expand() -> Made:
    return Net(
        lambda self, x: self.b(
            self.a(x)
            .amax((2, 3), keepdim=True)
            .squeeze(3)
            .squeeze(2)[:, :, None]
            .expand(-1, -1, 4)
            .relu()
            .sum(2)
        ),
        a=nn.Conv2d(3, 9, 1),
        b=nn.Linear(9, 3),
    ), randn(*IMAGE)


@row({"a": 7})
def repeat_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).repeat(1, 2).relu()), a=nn.Linear(4, 7), b=nn.Linear(14, 3)
    ), randn(5, 4)


@row({"a": 7})
def repeat_interleave_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).repeat_interleave(2, 1).relu()),
        a=nn.Linear(4, 7),
        b=nn.Linear(14, 3),
    ), randn(5, 4)


@row({"a": 7})
def maxout() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).unflatten(1, (-1, 2)).amax(-1)),
        a=nn.Linear(4, 14),
        b=nn.Linear(7, 3),
    ), randn(5, 4)


@row({"a/2": 7})
def sum_of_two_halves() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).unflatten(1, (2, -1)).sum(1).relu()),
        a=nn.Linear(4, 14),
        b=nn.Linear(7, 3),
    ), randn(5, 4)


@row({"a": 5, "b": 3})
def flattened_concatenation() -> Made:
    return Net(
        lambda self, x: self.c(torch.cat([self.a(x), self.b(x)], 1).relu().flatten(1)),
        a=nn.Conv2d(3, 5, 3),
        b=nn.Conv2d(3, 3, 3),
        c=nn.Linear(128, 3),
    ), randn(*IMAGE)


@row({"i": 8})
def mixing_where_all_sizes_are_eight() -> Made:
    # batch, tokens, channels, hidden and classes: all eight
    return Net(
        lambda self, x: self.o((self.i(x) + self.t(self.i(x).mT).mT).relu()),
        i=nn.Linear(8, 8),
        t=nn.Linear(8, 8),
        o=nn.Linear(8, 8),
    ), randn(8, 8, 8)
