"""Which factor of heads × head size grows by itself: whole heads where they can follow the stages."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import growthring as gr
from growthring.core import presets
from tests.growth_contract import Net, check_contract, make_plan, randn


class Heads(nn.Module):
    """Attention whose heads divide a width of their own, or (`tied`) the residual width."""

    def __init__(
        self, heads: int = 4, size: int = 8, tied: bool = False, way: str = "sdpa"
    ) -> None:
        super().__init__()
        self.n_head, self.way, inner = heads, way, heads * size
        self.tied = tied
        width = inner if tied else 20
        self.stem, self.qkv = nn.Linear(4, width), nn.Linear(width, 3 * inner)
        self.out = nn.Linear(inner, 3)

    def forward(self, x):
        h = self.stem(x)
        size = h.shape[-1] // self.n_head if self.tied else -1
        q, k, v = (
            p.view(*p.shape[:2], self.n_head, size).transpose(1, 2)
            for p in self.qkv(h).chunk(3, -1)
        )
        if self.way == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v)
        elif self.way == "matmul":
            y = (q @ k.mT).softmax(-1) @ v
        else:
            weights = torch.einsum("bhtd,bhsd->bhts", q, k).softmax(-1)
            y = torch.einsum("bhts,bhsd->bhtd", weights, v)
        return self.out(y.transpose(1, 2).flatten(2))


def factor(plan: gr.Plan, model: Heads) -> tuple[str, list[int]]:
    """The factor that grows, and its widths; heads and head sizes are told apart by what they are at the end."""
    inner = model.out.in_features
    sizes = {"count": model.n_head, "size": inner // model.n_head}
    (found,) = [
        (name, plan.widths(g.name))
        for g in plan.groups.growable
        for name, n in sizes.items()
        if g.width == n
    ]
    return found


def planned(model: nn.Module, **options: object) -> gr.Plan:
    torch.manual_seed(0)
    return make_plan(model, randn(2, 5, 4), **options)


@pytest.mark.each(3)
@pytest.mark.parametrize("way", ["sdpa", "matmul", "einsum"])
def test_whole_heads_grow_however_attention_is_written(way):
    model = Heads(way=way)
    plan = planned(model, stages=2, start=0.5)
    assert factor(plan, model) == ("count", [2, 4]) and plan.widths("stem") == [10, 20]
    assert plan.build_seed().n_head == 2
    check_contract(plan)


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("heads", "stages", "expected"),
    [
        (1, 3, ("size", [4, 8, 16])),
        (2, 3, ("size", [4, 8, 16])),  # two is the least width
        (3, 3, ("size", [4, 8, 16])),  # one of three would be left without its pair
        (8, 3, ("count", [2, 4, 8])),
        (4, 3, ("size", [4, 8, 16])),  # a quarter of four heads is one
        (6, 2, ("size", [4, 16])),  # and of six no whole number
    ],
)
def test_numbers_of_heads_that_cannot_follow_leave_it_to_the_head_size(heads, stages, expected):
    model = Heads(heads, 16)
    assert factor(planned(model, stages=stages), model) == expected


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("heads", "options", "expected"),
    [
        (8, {"stages": 3}, ("count", [2, 4, 8])),
        (4, {"stages": 2, "start": 0.5}, ("count", [2, 4])),
        (4, {"stages": 3}, ("size", [4, 8, 16])),  # a quarter of four heads is one
        (8, {"stages": 5}, ("size", [4, 6, 8, 11, 16])),  # 2.8 heads
        (8, {"stages": 9}, ("size", [4, 5, 6, 7, 8, 10, 11, 13, 16])),  # no nine numbers of heads
        (8, {"stages": 2, "start": 0.5, "round_to": 4}, ("count", [4, 8])),
        (4, {"stages": 2, "start": 0.5, "round_to": 4}, ("size", [8, 16])),
    ],
)
def test_heads_that_a_residual_width_is_tied_to_must_follow_every_stage(heads, options, expected):
    model = Heads(heads, 16, tied=True)
    plan = planned(model, **options)
    assert factor(plan, model) == expected
    check_contract(plan)


def test_a_number_of_heads_that_the_code_keeps_leaves_it_to_the_head_size():
    def forward(self, x):
        q, k, v = (p.view(*p.shape[:2], 4, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))

    plan = planned(Net(forward, qkv=nn.Linear(4, 3 * 32), out=nn.Linear(32, 3)), stages=2)
    assert [g.width for g in plan.groups.growable] == [8]


def test_batches_of_weights_are_not_heads():
    """Experts beside each other: a product with a weight, and more of them would be another model."""

    def forward(self, x):
        parts = self.up(x).view(len(x), *self.mix.shape[:2]).transpose(0, 1)
        return self.out(torch.bmm(parts, self.mix).transpose(0, 1).flatten(1).relu())

    mix = nn.Parameter(0.1 * torch.randn(4, 8, 8))
    model = Net(forward, up=nn.Linear(4, 32), out=nn.Linear(32, 3), mix=mix)
    torch.manual_seed(0)
    plan = make_plan(model, randn(5, 4), stages=2)
    assert {g.width for g in plan.groups.growable} <= {8}


def test_the_preset_decides_and_an_option_wins(monkeypatch):
    model = Heads(8, 16)

    def chosen(**options):
        torch.manual_seed(0)
        return factor(gr.plan(model, torch.randn(2, 5, 4), **options), model)[0]

    assert chosen() == "count" and chosen(heads="size") == "size"
    assert chosen(preset="paper") == "size" and chosen(preset="paper", heads="count") == "count"
    before = presets.PRESETS["default"]
    monkeypatch.setitem(presets.PRESETS, "default", dataclasses.replace(before, heads="larger"))
    assert chosen() == "size"


def test_discovery_by_itself_goes_by_the_default_plan():
    groups = gr.discover_width_groups(Heads(8, 16, tied=True), torch.zeros(2, 5, 4))
    assert {g.width for g in groups.growable} == {8, 128}
    groups = gr.discover_width_groups(Heads(4, 16, tied=True), torch.zeros(2, 5, 4))
    assert {g.width for g in groups.growable} == {16, 64}
