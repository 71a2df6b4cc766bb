"""How strong a regulariser is at each stage."""

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.errors import InputError
from growthring.planning.options import PlanOptions
from growthring.planning.planner import fixed_plan


def net(width=16):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 64), nn.Linear(64, 2))


def planned(**options):
    return gr.plan(net(), torch.zeros(1, 4), **options)


def test_the_strength_follows_the_width_and_ends_at_one():
    plan = planned(stages=5, growth=None)
    found = gr.strengths(plan, 0.2)
    assert found[0] == 0.2 and found[-1] == 1.0 and list(found) == sorted(found)
    shares = [(plan.widths("0")[t] / 16 + plan.widths("2")[t] / 64) / 2 for t in range(5)]
    for strength, share in zip(found, shares, strict=True):
        assert strength == pytest.approx(0.2 + 0.8 * (share - shares[0]) / (1 - shares[0]))


def test_at_one_all_stages_are_exactly_alike():
    assert gr.strengths(planned(stages=3), 1) == (1.0, 1.0, 1.0)
    assert gr.strengths(planned(), 0.0)[0] == 0.0


def test_weight_decay_in_a_loop_of_ones_own():
    plan = planned(total_steps=12)
    model = plan.build_seed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    grower = gr.Grower(model, plan, optimizer)
    strength = gr.strengths(plan, narrow=0.1)
    decays, found = [group["weight_decay"] for group in optimizer.param_groups], []
    for _ in range(12):
        model(torch.ones(2, 4)).sum().backward()
        for group, decay in zip(optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay * strength[grower.stage]
        found.append(optimizer.param_groups[0]["weight_decay"])
        optimizer.step()
        grower.step()
    expected = [0.5 * s for s, n in zip(strength, plan.stage_steps, strict=True) for _ in range(n)]
    assert found == expected and len(set(found)) == plan.num_stages


def test_what_does_not_grow_has_the_full_strength():
    assert gr.strengths(fixed_plan(net(), torch.zeros(1, 4), PlanOptions(epochs=3)), 0.1) == (1.0,)


@pytest.mark.parametrize("narrow", [-0.1, 1.5, float("nan"), True, "0.5"])
def test_refused(narrow):
    with pytest.raises(InputError, match=r"narrow=.*from 0 to 1"):
        gr.strengths(planned(), narrow)
