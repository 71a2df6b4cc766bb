"""Texts that list or count: each reason once, what differs by name, nouns that fit their numbers."""

import copy

import pytest
import torch
from torch import nn

import growthring as gr
from tests.messages.test_messages import says

X = torch.zeros(2, 4)


def mlp(width: int = 8, depth: int = 2) -> nn.Sequential:
    layers = [nn.Linear(4, width)]
    for _ in range(depth - 1):
        layers += [nn.ReLU(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(width, 3))


def test_nothing_grows_names_each_reason_once():
    text = says(
        lambda: gr.plan(mlp(depth=6), X, freeze=["*"]),
        "nothing in Sequential can grow. Its widths and why they are frozen:\n",
        "\n  6 widths, such as 0 (8) and 2 (8): freeze='*'",
        "0.in (4): axis 1 of model input",
        "12 (3): axis 1 of model output 0",
    )
    assert text.count("freeze=") == 1


def test_nothing_grows_leaves_kernels_out():
    text = says(lambda: gr.plan(nn.Conv2d(3, 8, 3), torch.zeros(1, 3, 8, 8)), "nothing in Conv2d")
    assert "kernel" not in text


def test_an_unknown_group_lists_the_nearest_names():
    plan = gr.plan(mlp(depth=12), X, stages=2)
    text = says(lambda: plan.widths("22x"), "there is no width group '22x'. Growable groups: 22, ")
    assert text.endswith("and 4 more.")


def state_of(plan: gr.Plan) -> dict:
    return gr.Grower(plan.build_seed(), plan).state_dict()


def refused(plan: gr.Plan, state: dict, *parts: str) -> str:
    grower = gr.Grower(plan.build_seed(), plan)
    return says(
        lambda: grower.load_state_dict(state), "the saved growth follows another plan", *parts
    )


def test_which_width_of_another_plan_differs():
    plan = gr.plan(mlp(), X, stages=3, growth=None)
    state = state_of(plan)
    other = copy.deepcopy(state)
    other["widths"][1]["2"] = 6
    text = refused(plan, other, ": '2' is 6 wide at stage 1 there, and 4 here.", "Load it with")
    assert "more" not in text
    other["widths"][0]["0"], other["widths"][1]["0"] = 3, 3
    refused(plan, other, "'0' is 3 wide at stage 0 there, and 2 here; 1 more width differs.")


def test_another_plan_has_other_stages_or_groups():
    plan = gr.plan(mlp(), X, stages=3, growth=None)
    one = gr.plan(mlp(), X, stages=2, growth=None)
    refused(plan, state_of(one), "it has 2 stages, this plan has 3.")
    frozen = gr.plan(mlp(), X, stages=3, growth=None, freeze=["2"])
    refused(plan, state_of(frozen), "'2' grows here only.")
    refused(frozen, state_of(plan), "'2' grows there only.")


def test_one_norm_fades():
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    plan = gr.plan(net, X, stages=2)
    report = gr.Grower(plan.build_seed(), plan).grow()
    assert "1 norm fades its statistics in; Grower.step sees to it" in str(report)


@pytest.mark.parametrize(("depth", "words"), [(1, "1 parameter, 'aux.bias', is"), (2, "such as")])
def test_parameters_that_are_not_used(depth, words):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()
            self.aux = nn.Linear(2, 2)
            if depth == 1:
                del self.aux.weight

        def forward(self, x):
            return self.net(x)

    (note,) = [n for n in gr.plan(Net(), X, stages=2).notes if "aux" in n]
    assert words in note and "used by no forward pass" in note


def test_a_plan_of_one_stage():
    assert str(gr.plan(mlp(), X, stages=1, epochs=1)).startswith("Plan: Sequential in 1 stage\n")
    assert "fixed-size training (1 epoch)." in str(gr.plan(mlp(), X, stages=1, epochs=1))
