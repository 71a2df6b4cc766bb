"""Plans whose outputs gain classes: which lists they take, their widths, seeds and costs."""

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.errors import PlanError
from growthring.planning.planner import fixed_plan
from growthring.train import Recipe
from growthring.train.recipe import change
from growthring.train.settings import format_settings, parse_settings
from growthring.zoo import mlp8

X = torch.zeros(2, 6)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 9))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"classes": (8, 3, 9)}, r"classes=\(8, 3, 9\): from 8 to 3 at stage 1; classes only come"),
        ({"classes": (3.0, 9.0)}, r"classes=\(3.0, 9.0\): expected a number of classes for each stage"),
        ({"classes": (True, 9)}, "expected a number of classes for each stage, whole and at least 1"),
        ({"classes": (0, 9)}, "whole and at least 1"),
        ({"classes": ()}, "expected a number of classes for each stage"),
        ({"classes": 9}, "classes=9: expected a number of classes for each stage"),
        ({"classes": "3, 9"}, "expected a number of classes for each stage"),
        ({"classes": (3, 9), "stages": 3}, "2 numbers for 3 stages. Each stage needs one: pass stages=2"),
        ({"classes": (3, 9), "epochs": [2, 2, 3]}, "2 numbers for 3 stages"),
        ({"classes": (3, 9), "growth_at": [0.3, 0.6]}, "2 numbers for 3 stages"),
        ({"classes": (3, 9), "preset": "paper"}, "2 numbers for 9 stages"),
    ],
)  # fmt: skip
def test_lists_that_cannot_be_are_refused_before_there_is_a_model(options, text):
    with pytest.raises(PlanError, match=text):
        gr.PlanOptions(**options)


def test_widths_that_classes_have_already_are_refused():
    with pytest.raises(
        PlanError, match=r"widths\['2'\] = .*: these are the classes of the outputs"
    ):
        gr.plan(mlp(), X, classes=(3, 9), widths={"2": [3, 9]})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"round_to": 4, "stages": 4},
        {"schedule": "doubling"},
        {"schedule": "recursive", "growth": 0.5},
        {"preset": "paper", "stages": 4},
        {"budget": 0.7},
        {"widths": {"0": [4, 4, 10, 16]}},
        {"epochs": [2, 3, 4, 5]},
        {"growth_at": [0.1, 0.4, 0.6], "total_steps": 100},
    ],
    ids=str,
)
def test_classes_are_as_they_were_given_whatever_the_schedule(options):
    plan = gr.plan(mlp(), X, classes=(1, 4, 5, 9), **options)
    other = gr.plan(mlp(), X, **{"stages": 4, **options})
    assert plan.classes == (1, 4, 5, 9) and plan.widths("2") == [1, 4, 5, 9]
    assert plan.widths("0") == other.widths("0") and other.classes == ()
    assert plan.num_stages == 4 and plan.stage_steps == other.stage_steps


def test_the_seed_is_the_leading_part_and_its_attributes_follow():
    net = mlp()
    plan = gr.plan(net, X, classes=(4, 9))
    seed = plan.build_seed()
    assert seed[2].out_features == 4 and seed[2].weight.shape == (4, 8)
    gain = 2**0.5  # of a fan-in of 8 instead of 16
    assert torch.allclose(seed[2].weight, gain * net[2].weight[:4, :8])
    assert plan.empty_model(0)[2].weight.shape == (4, 8)
    assert plan.num_parameters(0) == sum(p.numel() for p in seed.parameters())


def test_table_and_numbers_name_the_classes():
    plan = gr.plan(mlp(), X, classes=(4, 9))
    assert "2, classes" in str(plan) and "2  classes 9" in str(plan.groups)
    assert [widths["2"] for widths in plan.as_dict()["widths"]] == [4, 9]
    assert plan.as_dict()["roles"] == {"2": "classes"}
    assert "roles" not in gr.plan(mlp(), X).as_dict()


def test_a_model_of_which_only_the_classes_grow():
    plan = gr.plan(nn.Linear(6, 9), X, classes=(4, 9))
    assert plan.build_seed().weight.shape == (4, 6) and plan.flops_share < 1
    assert gr.plan(mlp(), X, classes=(9, 9)).build_seed()[2].weight.shape == (9, 8)


def test_a_drawn_seed_and_a_factory_have_the_classes_of_stage_0():
    plan = gr.plan(mlp().to("meta"), X, classes=(4, 9), deviations=0.1)
    assert plan.build_seed()[2].weight.shape == (4, 8)

    def build(widths):
        return nn.Sequential(
            nn.Linear(6, widths["0"]), nn.ReLU(), nn.Linear(widths["0"], widths["2"])
        )

    seed = gr.plan(mlp(), X, classes=(4, 9), build=build).build_seed()
    assert seed[2].out_features == 4


def test_recipes_have_the_setting_and_store_it_only_where_it_is_given():
    plain, grown = Recipe("a", mlp8), Recipe("a", mlp8, classes=[3, 10])
    assert "classes" not in plain.as_dict() and grown.as_dict()["classes"] == [3, 10]
    settings = parse_settings(["classes=[3, 10]", "epochs=3"])
    assert change(plain, settings).plan.classes == grown.plan.classes == (3, 10)
    assert parse_settings(format_settings({"classes": (3, 10)})) == {"classes": (3, 10)}
    assert fixed_plan(mlp(), X, grown.plan).num_stages == 1
