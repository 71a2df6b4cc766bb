"""What the contenders are, and names that cannot be."""

import pytest
import torch

from growthring.compare import DEFAULT, KNOWN, Contender, parse_variant
from growthring.compare.contenders import line_up
from growthring.compare.manifest import entry_of
from growthring.errors import InputError
from growthring.train import Recipe, change, format_settings, parse_settings
from growthring.train.recipes import cifar10_resnet20, demo
from growthring.train.setup import check, make_model, make_optimizer
from tests.train.runs import small

RINGS = ("rate_adaptation", "output_rate", "ring_schedule")


def recipe_of(name: str, base: Recipe | None = None) -> Recipe:
    base = demo() if base is None else base
    return KNOWN[name].of(name, base).recipe(base, seed=2)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("base", [small(), small("optimizer=adamw", "optimizer_options={}")])
def test_every_known_contender_can_be_made(name, base):
    recipe = recipe_of(name, base)
    check(recipe)
    make_optimizer(recipe, make_model(recipe, torch.Generator().manual_seed(0)), total_steps=5)
    assert recipe.seed == 2 and KNOWN[name].text


def test_the_default_ones_are_known():
    assert set(DEFAULT) <= set(KNOWN) and len(set(DEFAULT)) == len(DEFAULT)


def test_baselines():
    assert recipe_of("fixed").fixed and not recipe_of("fixed").small
    assert recipe_of("small").small and not recipe_of("small").fixed


def test_paired_is_the_recipe_as_it_is():
    assert KNOWN["paired"].of("paired", demo()).settings == {}
    assert recipe_of("paired", change(demo(), {"method": "net2net"})).method == "paired"


@pytest.mark.parametrize(
    "name", ["net2net", "splitting", "firefly-split", "firefly", "gradmax", "random"]
)
def test_rivals_have_one_global_rate(name):
    recipe = recipe_of(name)  # the demo's own rates are not plain
    assert recipe.method == name
    assert [recipe.optimizer_options[key] for key in RINGS] == [None, False, "shared"]
    assert recipe.optimizer_options["momentum"] == 0.9


@pytest.mark.parametrize(
    ("name", "variance", "rates"),
    [
        ("growing", "off", [None, False, "shared"]),
        ("vt", "paper", [None, False, "shared"]),
        ("ra", "off", ["norm", None, "shared"]),
        ("paper", "paper", ["norm", None, "shared"]),
        ("paper-global-output", "paper", ["norm", False, "shared"]),
        ("vt-own", "paper", [None, False, "own"]),
        ("paper-own", "paper", ["norm", False, "own"]),
        ("constraint", "constraint", ["norm", None, "shared"]),
        ("max", "paper", ["max", None, "shared"]),
    ],
)
def test_ablations(name, variance, rates):
    recipe = recipe_of(name)
    assert (recipe.method, recipe.variance_transfer) == ("paired", variance)
    assert [recipe.optimizer_options[key] for key in RINGS] == rates


@pytest.mark.parametrize(
    ("name", "optimizer", "state", "adaptation"),
    [
        ("adam", "adam", "keep", None),
        ("adam-reset", "adam", "reset", None),
        ("adam-ra", "adam", "keep", "norm"),
        ("avagrad", "avagrad", "keep", None),
        ("avagrad-reset", "avagrad", "reset", None),
        ("avagrad-ra", "avagrad", "keep", "norm"),
    ],
)
def test_other_optimizers_replace_the_options_as_a_whole(name, optimizer, state, adaptation):
    recipe = recipe_of(name)
    options = recipe.optimizer_options
    assert recipe.plan.optimizer == optimizer and "momentum" not in options
    assert (options["state_at_growth"], options["rate_adaptation"]) == (state, adaptation)
    assert recipe.lr == (3e-3 if optimizer == "adam" else 0.5)


def test_lars_has_a_rate_of_its_own():
    recipe = recipe_of("lars", cifar10_resnet20())
    assert (recipe.plan.optimizer, recipe.lr) == ("lars", 5.0)
    assert recipe.optimizer_options == {"momentum": 0.9, "weight_decay": 5e-4}


def test_the_order_is_the_one_asked_for_and_fixed_comes_first_unless_named():
    def names(asked):
        return [contender.name for contender in line_up(asked, demo())]

    assert names(["vt", "paired"]) == ["fixed", "vt", "paired"]
    assert names(["vt", "fixed", "fixed-flops", "paired"]) == ["vt", "fixed", "paired"]
    own = Contender("noisy", {"noise": 0.1})
    assert names(["paired", own]) == ["fixed", "paired", "noisy"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["paried"], "there is no contender 'paried'. Known: fixed, small, paired"),
        (["vt", "vt"], "'vt' is given twice"),
        ([Contender("a", {"lr": 1.0}), Contender("A", {"lr": 2.0})], "'a' is given twice"),
        ([], "no contenders"),
        ([Contender("paper", {"lr": 1.0})], "cannot be called 'paper'"),
        ([Contender("fixed-flops", {"lr": 1.0})], "cannot be called 'fixed-flops'"),
        ([Contender("../x", {"lr": 1.0})], "letters, digits"),
        ([Contender("table.md", {"lr": 1.0})], "letters, digits"),
        ([Contender("lock", {"lr": 1.0})], "cannot be called 'lock'"),
        ([Contender("x", {"seed": 1})], "the seeds are those of the comparison"),
    ],
)
def test_names_that_cannot_be(asked, says):
    with pytest.raises(InputError) as caught:
        line_up(asked, demo())
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("a:lr=1.0", {"lr": 1.0}),
        ("a: lr=1.0, noise=0.1 ", {"lr": 1.0, "noise": 0.1}),
        (
            "a:optimizer_options={'momentum': 0.8, 'x': [1, 2]},lr=1.0",
            {"optimizer_options": {"momentum": 0.8, "x": [1, 2]}, "lr": 1.0},
        ),
        ("a:freeze=('b,c',)", {"freeze": ("b,c",)}),
    ],
)
def test_variants(text, settings):
    assert (parse_variant(text).name, parse_variant(text).settings) == ("a", settings)


@pytest.mark.parametrize("text", ["a", "a:", ":lr=1", "a:lr", "a:lr=1,noise", ""])
def test_variants_that_say_nothing(text):
    with pytest.raises(InputError, match="expected NAME:KEY=VALUE"):
        parse_variant(text)


def test_what_is_stored_can_be_read_again():
    base = demo()
    for name, known in KNOWN.items():
        settings = known.of(name, base).settings
        assert parse_settings(format_settings(settings)) == settings
    with pytest.raises(InputError, match=r"contender 'mine'.*cannot be stored as a text"):
        entry_of(Contender("mine", {"optimizer_options.rate": recipe_of}), base, seeds=1)


def test_a_wrong_setting_names_the_contender():
    with pytest.raises(InputError, match=r"contender 'mine': --set 'epohcs=3'"):
        parse_variant("mine:epohcs=3")
    with pytest.raises(InputError, match=r"contender 'mine'.*epohcs"):
        Contender("mine", {"epohcs": 3}).recipe(demo(), seed=0)
