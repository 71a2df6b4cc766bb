"""Settings as texts: on the command line and in stored files."""

import pytest
import torch

from growthring.errors import InputError
from growthring.train.recipe import Recipe, change
from growthring.train.recipes import RECIPES
from growthring.train.settings import format_settings, parse_setting, parse_settings
from growthring.zoo import mlp8


def recipe(**options) -> Recipe:
    return Recipe("mine", mlp8, **{"preset": "paper", **options})


def put(before: Recipe, *texts: str) -> Recipe:
    return change(before, parse_settings(texts))


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("epochs=3", "epochs", 3),
        (" epochs = 3 ", "epochs", 3),
        ("seed=1_000", "seed", 1000),
        ("seed=0x10", "seed", 16),
        ("lr=0.25", "lr", 0.25),
        ("lr=1e-3", "lr", 1e-3),
        ("lr=1", "lr", 1),
        ("noise=0", "noise", 0),
        ("mirror=false", "mirror", False),
        ("mirror=True", "mirror", True),
        ("compile=true", "compile", True),
        ("fixed=TRUE", "fixed", True),
        ("growth=none", "growth", None),
        ("growth=None", "growth", None),
        ("growth=null", "growth", None),
        ("growth=0.3", "growth", 0.3),
        ("first_epochs=4", "first_epochs", 4),
        ("first_epochs=none", "first_epochs", None),
        ("num_train=100", "num_train", 100),
        ("side=16", "side", 16),
        ("clip_norm=1", "clip_norm", 1),
        ("budget=0.5", "budget", 0.5),
        ("optimizer=adam", "optimizer", "adam"),
        ("optimizer='adam'", "optimizer", "adam"),
        ('data="cifar10"', "data", "cifar10"),
        ("schedule=linear", "schedule", "linear"),
        ("batch_rate=sqrt", "batch_rate", "sqrt"),
        ("batch_rate=none", "batch_rate", "none"),
        ("variance_transfer=off", "variance_transfer", "off"),
        ("precision=bfloat16", "precision", "bfloat16"),
        ("freeze=('a', 'b.*')", "freeze", ("a", "b.*")),
        ("freeze=['a']", "freeze", ("a",)),
        ("freeze=()", "freeze", ()),
        ("input_shape=(1, 8, 8)", "input_shape", (1, 8, 8)),
        ("input_shape=[1,8,8]", "input_shape", (1, 8, 8)),
        ("input_shape=1,8,8", "input_shape", (1, 8, 8)),
        ("model_options={'width': 4}", "model_options", {"width": 4}),
        ("model_options={}", "model_options", {}),
        ("model_options.width=4", "model_options", {"width": 4, "depth": 2}),
        ("model_options.norm=none", "model_options", {"width": 8, "depth": 2, "norm": None}),
        ("model_options.name=a=b", "model_options", {"width": 8, "depth": 2, "name": "a=b"}),
        ("optimizer_options.momentum=0.8", "optimizer_options", {"momentum": 0.8}),
        ("optimizer_options.betas=(0.9, 0.98)", "optimizer_options", {"betas": (0.9, 0.98)}),
    ],
)
def test_settings(setting, key, value):
    before = recipe(model_options={"width": 8, "depth": 2})
    changed = put(before, setting).settings()
    found = changed.pop(key)
    assert found == value and type(found) is type(value)
    assert before == recipe(model_options={"width": 8, "depth": 2}), "the old one is as it was"
    assert all(before.settings()[name] == other for name, other in changed.items())


def test_the_last_setting_counts_and_parts_add_up():
    changed = put(
        *(
            recipe(),
            "epochs=3",
            "optimizer_options.a=1",
            "epochs=5",
            "optimizer_options.b=x",
            "lr=2",
        )
    )
    assert changed.plan.epochs == 5 and changed.lr == 2
    assert changed.optimizer_options == {"a": 1, "b": "x"}
    assert put(recipe()) == recipe()
    texts = ["optimizer_options={}", "optimizer_options.a=1", "optimizer_options={'b': 2}"]
    assert put(recipe(), *texts).optimizer_options == {"b": 2}
    assert put(recipe(), *texts, texts[1]).optimizer_options == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("epochs=3.5", "'epochs' is int, not float"),
        ("epochs=true", "'epochs' is int, not bool"),
        ("epochs=abc", "'epochs' is int, not str"),
        ("epochs=", "'epochs' is int, not str"),
        ("epochs=none", "'epochs' is int, not NoneType"),
        ("epochs=[1, 2]", "'epochs' is int, not list"),
        ("epochs={}", "'epochs' is int, not dict"),
        ("lr=abc", "'lr' is float, not str"),
        ("lr=nan", "'lr' is float"),
        ("lr=true", "'lr' is float, not bool"),
        ("lr=1+1", "'lr' is float, not str"),
        ("lr=1j", "'lr' is float, not complex"),
        ("lr=__import__('os')", "'lr' is float, not str"),
        ("lr=0.1,0.2", "'lr' is float, not tuple"),
        ("mirror=1", "'mirror' is bool, not int"),
        ("mirror=yes", "'mirror' is bool, not str"),
        ("first_epochs=4.5", "'first_epochs' is int | None, not float"),
        ("budget=50%", "'budget' is float | None, not str"),
        ("freeze=none", "'freeze' is tuple[str, ...], not NoneType"),
        ("freeze=(1, 2)", "'freeze' is tuple[str, ...]"),
        ("input_shape=8", "'input_shape' is tuple[int, ...], not int"),
        ("input_shape=('a',)", "'input_shape' is tuple[int, ...]"),
        ("input_shape=(1.5, 2)", "'input_shape' is tuple[int, ...]"),
        ("model_options=none", "'model_options' is Mapping[str, Any], not NoneType"),
        ("model_options=4", "'model_options' is Mapping[str, Any], not int"),
        ("model_options.=4", "model_options"),
        ("epochs.x=3", "'epochs' has no parts"),
        ("name=x", "write a recipe of your own to change the name"),
        ("model=mlp8", "write a recipe of your own to change the model"),
        ("model.x=3", "write a recipe of your own to change the model"),
        ("epoch=3", "expected key=value with a key out of"),
        ("Epochs=3", "expected key=value with a key out of"),
        ("epochs", "expected key=value with a key out of"),
        ("=3", "expected key=value with a key out of"),
        ("", "expected key=value with a key out of"),
    ],
)
def test_wrong_settings(setting, text):
    with pytest.raises(InputError) as caught:
        put(recipe(), setting)
    assert text in str(caught.value) and f"--set {setting!r}" in str(caught.value)


def test_a_wrong_key_lists_the_right_ones():
    with pytest.raises(InputError) as caught:
        put(recipe(), "zzz=1")
    text = str(caught.value)
    assert "epochs" in text and "optimizer_options" in text
    assert "model," not in text and "name," not in text


@pytest.mark.parametrize(
    "name", [n for n, make in RECIPES.items() if make().plan.optimizer == "sgd"]
)
def test_every_recipe_can_be_changed(name):
    changed = put(RECIPES[name](), "optimizer_options.momentum=0.5", "epochs=50")
    assert changed.optimizer_options["momentum"] == 0.5
    assert RECIPES[name]().optimizer_options["momentum"] == 0.9, "what recipes share is not changed"


@pytest.mark.parametrize(
    "settings",
    [
        {"fixed": True, "growth": None, "lr": 0.1, "epochs": 3, "method": "random"},
        {"batch_rate": "none", "data": "3", "schedule": "linear", "heads": "count"},
        {"freeze": ("a", "b.*"), "widths": {"0": [2, 4]}, "outputs": ("logits",)},
        {
            "optimizer_options.a": None,
            "optimizer_options.b": "true",
            "optimizer_options": {"c": [1]},
        },
    ],
)
def test_settings_come_back_from_their_texts(settings):
    texts = format_settings(settings)
    assert all(isinstance(text, str) for text in texts) and parse_settings(texts) == settings
    assert format_settings(parse_settings(texts)) == texts


def test_texts_are_plain_where_that_is_enough():
    settings = {
        "batch_rate": "none",
        "optimizer_options.a": "none",
        "data": "3",
        "method": "random",
    }
    texts = ["batch_rate=none", "optimizer_options.a='none'", "data=3", "method=random"]
    assert format_settings(settings) == texts


@pytest.mark.parametrize("value", [mlp8, float("inf"), object(), torch.zeros(2)])
def test_settings_without_a_text(value):
    with pytest.raises(InputError, match=r"optimizer_options.x=.* cannot be stored as a text"):
        format_settings({"optimizer_options.x": value})


@pytest.mark.parametrize("text", ["width", "=3", " =3", ""])
def test_no_key_and_value(text):
    with pytest.raises(InputError, match="expected KEY=VALUE"):
        parse_setting(text)
