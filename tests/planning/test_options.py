"""PlanOptions: defaults, changes and refusals that need no model."""

import dataclasses

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.errors import InputError, PlanError

X = torch.zeros(2, 4)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def test_every_option_has_a_default_and_a_line_in_the_docs():
    for field in dataclasses.fields(gr.PlanOptions):
        assert field.default is not dataclasses.MISSING
        assert f"    {field.name}: " in str(gr.PlanOptions.__doc__)


def test_a_change_leaves_the_old_options_alone():
    options = gr.PlanOptions(stages=3)
    changed = options.changed(epochs=30, growth=None)
    assert (changed.stages, changed.epochs, changed.growth) == (3, 30, None)
    assert options == gr.PlanOptions(stages=3) and options.changed() == options
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.stages = 4


def test_options_and_keywords_are_the_same():
    one = gr.plan(mlp(), X, stages=3, epochs=30, growth=None)
    two = gr.plan(mlp(), X, options=gr.PlanOptions(stages=3, epochs=30, growth=None))
    three = gr.plan(mlp(), X, options=gr.PlanOptions(stages=5, epochs=30), stages=3, growth=None)
    assert one.as_dict() == two.as_dict() == three.as_dict()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stage": 3}, "there is no plan option 'stage'; the nearest is 'stages'."),
        ({"batchsize": 3}, "the nearest is 'batch_size'"),
        ({"zzz": 3}, "there is no plan option 'zzz'; there are stages, start, growth"),
    ],
)
def test_an_unknown_option_names_the_nearest(changes, says):
    for refused in (
        lambda: gr.PlanOptions().changed(**changes),
        lambda: gr.plan(mlp(), X, **changes),
    ):
        with pytest.raises(InputError) as caught:
            refused()
        assert says in str(caught.value)


@pytest.mark.parametrize("options", [{"stages": 3}, 3, "stages=3"])
def test_options_that_are_none(options):
    with pytest.raises(InputError, match=r"not a PlanOptions. Options by name are keywords"):
        gr.plan(mlp(), X, options=options)


def test_what_can_be_read_once_is_kept():
    options = gr.PlanOptions(
        freeze=(name for name in "ab"), widths=zip("ab", ([1, 2], [3, 4]), strict=True)
    )
    assert options.freeze == ("a", "b") and options.widths == (("a", (1, 2)), ("b", (3, 4)))
    assert gr.PlanOptions(freeze="a").freeze == ("a",)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"freeze": 3}, "freeze=3 is not a list of names"),
        ({"build": 3}, "build=3 is not a function"),
        ({"budget_of": "money"}, "budget_of='money' is not 'flops' or 'seconds'"),
        ({"widths": [("a", [1]), 3]}, "expected a mapping from group names to one width per stage"),
        ({"stages": 9, "epochs": [1, 2]}, "epochs=[1, 2]: expected 9 whole numbers"),
        ({"epochs": [1, 0]}, "epochs=[1, 0]: expected whole numbers, each at least 1"),
    ],
)
def test_refusals_without_a_model(changes, says):
    with pytest.raises(PlanError) as caught:
        gr.PlanOptions(**changes)
    assert says in str(caught.value)
