"""The published settings: schedules exactly as published, costs as our rule gives them."""

import functools
import math

import pytest
import torch

import growthring as gr
from growthring.train.recipe import Recipe, change
from growthring.train.recipes import RECIPES
from growthring.train.setup import make_model, make_plan

CIFAR10 = [8, 9, 11, 13, 16, 19, 23, 28, 33]
CIFAR100 = [10, 12, 14, 17, 20, 24, 29, 35, 39]
IMAGENET = [4, 4, 5, 6, 8, 9, 11, 14, 29]
# name: published %, our rule %, epochs, batch size, full widths
CASES = {
    "cifar10-resnet20": (54.90, 52.97, CIFAR10, 128, {16, 32, 64}),
    "cifar10-vgg11": (52.91, 53.45, CIFAR10, 128, {64, 128, 256, 512}),
    "cifar10-mobilenetv1": (53.80, 53.96, CIFAR10, 128, {32, 64, 128, 256, 512, 1024}),
    "cifar100-resnet18": (52.63, 52.59, CIFAR100, 128, {64, 128, 256, 512}),
    "cifar100-vgg19": (52.08, 52.49, CIFAR100, 128, {64, 128, 256, 512}),
    "cifar100-mobilenetv1": (52.90, 53.12, CIFAR100, 128, {32, 64, 128, 256, 512, 1024}),
    "imagenet-resnet50": (60.12, 60.92, IMAGENET, 256, {64, 128, 256, 512, 1024, 2048}),
    "imagenet-mobilenetv1": (63.72, 61.09, IMAGENET, 512, {32, 64, 128, 256, 512, 1024}),
    "cifar10-wrn28-1": (58.24, 52.94, CIFAR10, 128, {16, 32, 64}),
}
SLOW = {"imagenet-resnet50", "imagenet-mobilenetv1", "cifar100-mobilenetv1"}
QUICK = ("cifar10-resnet20",)  # planned in every run of the tests
NAMES = [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CASES]


@functools.cache
def planned(name: str) -> gr.Plan:
    recipe = RECIPES[name]()
    return make_plan(recipe, make_model(recipe, torch.Generator().manual_seed(0)))


def published_widths(full: int) -> list[int]:
    """C_t = C_0 · 1.2^t rounded to even, capped; the last stage takes the full width."""
    early = [min(full, 2 * math.floor(full / 4 * 1.2**t / 2 + 0.5)) for t in range(8)]
    return [*early, full]


def test_the_names():
    own = {"cifar10-small", "cifar10-wide", "demo", "python-gpt", "shakespeare-gpt"}
    own |= {
        f"cifar100-stream-{name}" for name in ("classes", "data", "classes-small", "data-small")
    }
    own |= {f"{name}-transformer" for name in ("numbers", "multi30k", "tatoeba", "iwslt14")}
    assert set(RECIPES) == {*CASES, *own}
    for name, make in RECIPES.items():
        recipe = make()
        assert isinstance(recipe, Recipe) and recipe.name == name
        assert make.__doc__


@pytest.mark.parametrize("name", CASES)
def test_the_settings(name):
    recipe = RECIPES[name]()
    published, _, epochs, batch, _ = CASES[name]
    assert recipe.published == published
    assert (
        recipe.plan.epochs == sum(epochs) and recipe.batch_size == batch and recipe.plan.stages == 9
    )
    assert recipe.plan.optimizer == "sgd" and recipe.lr == 0.1
    decay = 1e-4 if name.startswith("imagenet") else 5e-4
    assert recipe.optimizer_options == {"momentum": 0.9, "weight_decay": decay}
    assert recipe.lr_schedule == "cosine" and recipe.variance_transfer == "paper"
    assert recipe.mirror and recipe.shift == 4
    data, classes = {
        "cifar10": ("cifar10", 10),
        "cifar100": ("cifar100", 100),
        "imagenet": ("imagenet", 1000),
    }[name.split("-")[0]]
    assert recipe.data == data and recipe.model_options["num_classes"] == classes
    side = 224 if data == "imagenet" else 32
    assert recipe.input_shape == (3, side, side)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CASES]
)
def test_costs_epochs_and_widths(name):
    plan = planned(name)
    _, ours, epochs, batch, full = CASES[name]
    assert 100 * plan.flops_share == pytest.approx(ours, abs=0.1)
    assert list(plan.epochs) == epochs
    assert list(plan.batch_sizes) == [batch] * 9
    assert {g.width for g in plan.groups.growable} == full
    for group in plan.groups.growable:
        assert plan.widths(group.name) == published_widths(group.width), group.name
    assert plan.notes == () or all("has the widths of stage" not in n for n in plan.notes[1:])


def test_the_widths_of_resnet20():
    plan = planned("cifar10-resnet20")
    rows = {tuple(plan.widths(g.name)) for g in plan.groups.growable}
    assert rows == {
        (4, 4, 6, 6, 8, 10, 12, 14, 16),
        (8, 10, 12, 14, 16, 20, 24, 28, 32),
        (16, 20, 24, 28, 34, 40, 48, 58, 64),
    }


def test_the_cost_of_resnet20_by_hand():
    """Multiply-adds of its convolutions and its linear layer, counted without torch."""
    plan = planned("cifar10-resnet20")

    def count(a: int, b: int, c: int) -> int:
        first = 3 * a * 9 * 1024 + 6 * a * a * 9 * 1024
        second = a * b * 9 * 256 + 5 * b * b * 9 * 256
        third = b * c * 9 * 64 + 5 * c * c * 9 * 64
        return 2 * (first + second + third + c * 10)

    rows = sorted({tuple(plan.widths(g.name)) for g in plan.groups.growable})
    by_hand = [count(*widths) for widths in zip(*rows, strict=True)]
    counted = [f.flops for f in plan.footprints]
    # shortcuts of the CIFAR ResNets hold no weights, or 1×1 convolutions: at most 3 %
    for hand, found in zip(by_hand, counted, strict=True):
        assert hand <= found <= 1.03 * hand


@pytest.mark.slow
def test_the_demo_fits_the_embedded_digits():
    recipe = RECIPES["demo"]()
    plan = planned("demo")
    assert recipe.data == "digits" and recipe.input_shape == (1, 8, 8) and not recipe.mirror
    assert plan.num_stages == 2 and sum(plan.epochs) == recipe.plan.epochs
    assert all(n >= 1 for n in plan.epochs) and plan.flops_share < 1
    assert plan.named_widths(0) != plan.named_widths(1)


def test_a_fixed_size_run_is_one_stage_of_all_epochs():
    recipe = change(RECIPES["demo"](), {"fixed": True})
    plan = make_plan(recipe, make_model(recipe, torch.Generator().manual_seed(0)))
    assert plan.num_stages == 1 and plan.epochs == (recipe.plan.epochs,) and plan.flops_share == 1.0


def test_recipes_are_independent_of_each_other():
    first, second = RECIPES["demo"](), RECIPES["demo"]()
    assert first == second and first is not second
