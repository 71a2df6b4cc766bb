"""What keeps its full size, why, and what that costs."""

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.planning.kept import Kept

X = torch.zeros(2, 16)


class Stream(nn.Module):
    """A residual stream with one block; `table` freezes the stream, `returned` does, too."""

    def __init__(self, width: int = 64, table: bool = False, returned: bool = False) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(16, width), nn.Linear(width, 10)
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)
        self.returned = returned
        self.register_buffer("table", torch.randn(width) if table else None)

    def forward(self, x):
        x = self.stem(x)
        x = x if self.table is None else x + self.table
        x = x + self.down(torch.relu(self.up(x)))
        return x if self.returned else self.head(x)


def plan_of(model: nn.Module, x: torch.Tensor = X, **options) -> gr.Plan:
    return gr.plan(model, x, **{"stages": 3, "growth": None, "epochs": [1, 1, 1], **options})


def test_a_frozen_stream_is_named_with_its_reason_and_what_it_costs():
    plan = plan_of(Stream(table=True))
    (kept,) = plan.kept
    assert kept.widths == {"stem": 64} and "buffer 'table' spans it" in kept.reason
    assert kept.flops_share == 1  # every layer reads or writes the stream
    parameters = sum(p.numel() for p in plan.model.parameters())
    assert kept.parameters_share == pytest.approx(1 - (64 + 10) / parameters)  # all but two biases
    text = str(plan)
    assert (
        "'stem' (64) keeps its full size: buffer 'table' spans it, and nobody knows the values of new entries. "
        "100% of the FLOPs and 99% of the parameters are in layers of this width." in text
    )
    said = f"cost about {plan.flops_share_if_grown:.2%} instead of {plan.flops_share:.2%}."
    assert f"If it grew like the others, training would {said}" in text


def test_what_it_would_cost_is_what_the_model_costs_without_the_obstacle():
    frozen, free = plan_of(Stream(table=True)), plan_of(Stream())
    assert frozen.flops_share > free.flops_share + 0.1
    assert frozen.flops_share_if_grown == pytest.approx(free.flops_share, rel=1e-12)
    assert not free.kept and free.flops_share_if_grown == free.flops_share
    assert "full size:" not in str(free) and "instead of" not in str(free)


def test_a_stream_that_the_model_returns_is_a_width_that_is_kept():
    plan = plan_of(Stream(returned=True))
    assert [k.widths for k in plan.kept] == [{"stem": 64}]
    assert plan.kept[0].reason == "axis 1 of model output 0"


def test_inputs_outputs_and_kernels_are_not_called_kept():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    assert plan_of(net, torch.zeros(2, 3, 8, 8)).kept == ()


def test_frozen_by_the_user_is_kept_as_well():
    plan = plan_of(Stream(), freeze=["up"])
    assert [(k.widths, k.reason) for k in plan.kept] == [({"up": 64}, "freeze='up'")]


def test_reasons_that_differ_in_names_only_are_one():
    net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(6)))
    plan = plan_of(net, freeze=["0", "1", "2", "3"])
    (kept,) = plan.kept
    assert list(kept.widths) == ["0", "1", "2", "3"]
    assert "4 widths, such as '0' (16) and '1' (16), keep their full size: " in str(plan)
    assert "in layers of these widths. " not in str(plan)  # one line each
    assert "If they grew like the others" in str(plan)


def test_of_heads_and_their_size_one_would_grow():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(16, 3 * 32), nn.Linear(32, 16)
            self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 10)

        def forward(self, x):
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4).softmax(-1)
            x = self.out((q @ k.mT @ v).transpose(1, 2).flatten(2))
            return self.down(torch.relu(self.up(x)))

    plan = plan_of(Heads(), torch.zeros(2, 5, 16))
    widths = {name: width for kept in plan.kept for name, width in kept.widths.items()}
    heads = [g for g in plan.groups if not g.grows and g.width in (4, 8)]
    assert len(heads) == 2 and sum(g.name in widths for g in heads) <= 1


def test_for_programs():
    found = plan_of(Stream(table=True)).as_dict()
    assert found["flops_share_if_grown"] < found["flops_share"]
    (entry,) = found["kept"]
    assert entry["widths"] == {"stem": 64} and entry["flops_share"] == 1
    assert str(Kept(**entry)) in str(plan_of(Stream(table=True)))


def test_flops_of_every_weight_add_up():
    plan = plan_of(Stream())
    full = plan.footprints[-1]
    assert full.flops_of == {
        "stem.weight": 2 * 16 * 64,
        "up.weight": 2 * 64 * 64,
        "down.weight": 2 * 64 * 64,
        "head.weight": 2 * 64 * 10,
    }
    assert sum(full.flops_of.values()) == full.flops
