"""Widths in front of GroupNorm: in channels wherever a user meets them, in steps of whole groups."""

import pytest
import torch
from torch import nn

import growthring as gr
from tests.messages.test_messages import says

X = torch.zeros(2, 3, 4, 4)


class Net(nn.Module):
    def __init__(self, width: int = 32, groups: int = 8, second: int = 0) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 1), nn.GroupNorm(groups, width)
        self.again = nn.GroupNorm(second, width) if second else nn.Identity()
        self.fc = nn.Linear(width, 5)

    def forward(self, x):
        return self.fc(self.again(torch.relu(self.norm(self.conv(x)))).mean((2, 3)))


def plan_of(model: nn.Module, **options) -> gr.Plan:
    return gr.plan(model, X, **{"stages": 3, "growth": None, "epochs": [1, 1, 1], **options})


def test_channels_everywhere():
    plan = plan_of(Net())
    group = plan.groups["conv"]
    assert (group.width, group.unit, group.count, group.unit_of) == (32, 4, 8, "GroupNorm 'norm'")
    assert plan.widths("conv") == [8, 16, 32]
    assert plan.as_dict()["widths"] == [{"conv": 8}, {"conv": 16}, {"conv": 32}]
    assert (
        "conv  width 32, in groups of 4 (GroupNorm 'norm')\n      writes   conv.weight axis 0\n"
        in str(plan.groups)
    )
    seed = plan.build_seed()
    assert (seed.conv.out_channels, seed.norm.num_groups, seed.norm.num_channels) == (8, 2, 8)
    report = gr.Grower(seed, plan).grow()
    assert [(g.before, g.after) for g in report.groups] == [(8, 16)]
    assert "width 8 -> 16: conv" in str(report)
    assert report.change.relative < 1e-5


def test_steps_of_one_group_are_exact():
    plan = plan_of(
        Net(), widths={"conv": [8, 12, 32]}
    )  # two groups, and one more without a partner
    assert plan.widths("conv") == [8, 12, 32]
    grower = gr.Grower(plan.build_seed(), plan, noise=0.0)
    assert grower.grow().change.relative < 1e-5
    assert grower.grow().change.relative < 1e-5


def test_widths_are_asked_for_in_channels():
    says(
        lambda: plan_of(Net(), widths={"conv": [6, 16, 32]}),
        "widths['conv'] = [6, 16, 32]: GroupNorm 'norm' keeps its groups of 4 channels whole, so widths are "
        "multiples of 4.",
        error=gr.GrowthError,
    )
    says(lambda: plan_of(Net(), widths={"conv": [2, 4, 8]}), "must end at the full width 32")


def test_the_unit_is_named_where_it_overrides_start():
    notes = "\n".join(plan_of(Net(groups=4)).notes)
    assert (
        "'conv' (32) grows in steps of 8: GroupNorm 'norm' keeps groups of 8 channels whole, at least two of them: "
        "stage 0 has 16, not the 8 of start=0.25." in notes
    )
    notes = "\n".join(plan_of(Net()).notes)
    assert "GroupNorm 'norm' keeps groups of 4 channels whole." in notes and "start=" not in notes
    notes = "\n".join(plan_of(Net(groups=4), widths={"conv": [16, 24, 32]}).notes)
    assert "start=" not in notes


def test_round_to_is_in_channels():
    assert plan_of(Net(), round_to=8).widths("conv") == [8, 16, 32]
    assert plan_of(Net(), round_to=1, start=0.4).widths("conv")[0] == 12


def test_the_recursive_schedule_is_in_channels():
    widths = plan_of(Net(), schedule="recursive", growth=0.5).widths("conv")
    assert widths[0] == 8 and widths[-1] == 32 and not any(w % 4 for w in widths)


@pytest.mark.parametrize("second", [4, 16])
def test_two_norms_with_groups_of_their_own(second):
    plan = plan_of(Net(second=second))
    unit = 32 // min(8, second)
    assert (plan.groups["conv"].width, plan.groups["conv"].unit) == (32, unit)
    assert plan.widths("conv")[-1] == 32 and not any(w % unit for w in plan.widths("conv"))
    assert gr.Grower(plan.build_seed(), plan, noise=0.0).grow().change.relative < 1e-5


def test_a_factory_is_asked_for_channels():
    def build(widths):
        return Net(widths["conv"], widths["conv"] // 4)

    plan = plan_of(Net(), build=build)
    seed = plan.build_seed()
    assert (seed.conv.out_channels, seed.norm.num_groups) == (8, 2)
    assert gr.Grower(seed, plan).grow().change.relative < 1e-5


def test_a_frozen_width_is_in_channels_too():
    frozen = gr.discover_width_groups(
        nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 32, 1), nn.GroupNorm(8, 32)), X
    )["1"]
    assert (frozen.width, frozen.unit, frozen.frozen.kind) == (32, 4, "output")
