"""Recipes: settings on the command line, a user's own file, what differs between two."""

import dataclasses
import functools
import json
import sys

import pytest
import torch

from growthring.errors import InputError
from growthring.train.recipe import Recipe, change, differences, load_recipe
from growthring.train.recipes import RECIPES
from growthring.zoo import mlp8


def recipe(**options) -> Recipe:
    return Recipe("mine", mlp8, **options)


# change: key=value.


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
    changed = change(before, [setting])
    found = getattr(changed, key)
    assert found == value and type(found) is type(value)
    assert before == recipe(model_options={"width": 8, "depth": 2}), "the old one is as it was"
    others = [f.name for f in dataclasses.fields(Recipe) if f.name != key]
    assert all(getattr(changed, name) == getattr(before, name) for name in others)


def test_the_last_setting_counts_and_parts_add_up():
    changed = change(
        recipe(),
        ["epochs=3", "optimizer_options.a=1", "epochs=5", "optimizer_options.b=x", "lr=2"],
    )
    assert changed.epochs == 5 and changed.lr == 2
    assert changed.optimizer_options == {"a": 1, "b": "x"}
    assert change(recipe(), []) == recipe()


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
        change(recipe(), [setting])
    assert text in str(caught.value) and f"--set {setting!r}" in str(caught.value)


def test_a_wrong_key_lists_the_right_ones():
    with pytest.raises(InputError) as caught:
        change(recipe(), ["zzz=1"])
    text = str(caught.value)
    assert "epochs" in text and "optimizer_options" in text
    assert "model," not in text and "name," not in text


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_changed(name):
    changed = change(RECIPES[name](), ["optimizer_options.momentum=0.5", "epochs=50"])
    assert changed.optimizer_options["momentum"] == 0.5
    assert RECIPES[name]().optimizer_options["momentum"] == 0.9, "what recipes share is not changed"


# as_dict and differences.


def test_as_dict_is_json():
    found = recipe(freeze=("a",), model_options={"width": 3}).as_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(found) == {f.name for f in dataclasses.fields(Recipe)}
    assert found["model"] == "growthring.zoo.mlp.mlp8"
    assert found["freeze"] == ["a"] and found["model_options"] == {"width": 3}


class Factory:
    def __call__(self):
        return torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    "model",
    [functools.partial(mlp8, width=8), Factory(), lambda: None, torch.nn.Identity],
    ids=["partial", "object", "lambda", "class"],
)
def test_any_callable_is_a_model(model):
    found = json.loads(json.dumps(Recipe("mine", model).as_dict()))
    assert isinstance(found["model"], str) and " at 0x" not in found["model"]


def ring_rule(norm, first):
    return norm / first


def test_a_function_among_the_options_is_the_same_in_another_process():
    found = json.dumps(recipe(optimizer_options={"rate": ring_rule}).as_dict())
    assert "ring_rule" in found
    assert " at 0x" not in found, (
        "an address differs from run to run, and a resume would be refused"
    )


def test_a_recipe_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe().epochs = 3


def test_differences():
    assert differences({}, {}) == []
    assert differences({"epochs": 3, "lr": 0.1}, {"epochs": 4, "lr": 0.1}) == ["epochs: 3 -> 4"]
    assert differences({"a": 1}, {"b": "x"}) == ["a: 1 -> None", "b: None -> 'x'"]
    assert differences({"o": {"m": 0.9}}, {"o": {"m": 0.8}}) == ["o: {'m': 0.9} -> {'m': 0.8}"]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_does_not_differ_from_its_own_json(name):
    stored = json.loads(json.dumps(RECIPES[name]().as_dict()))
    assert differences(stored, RECIPES[name]().as_dict()) == []


def test_every_change_is_a_difference():
    before = recipe()
    settings = {
        "epochs": "3", "lr": "0.5", "mirror": "false", "growth": "none", "optimizer": "adam",
        "freeze": "('a',)", "model_options.width": "4", "first_epochs": "2", "seed": "7",
    }  # fmt: skip
    for key, value in settings.items():
        changed = change(before, [f"{key}={value}"])
        (line,) = differences(before.as_dict(), changed.as_dict())
        assert line.startswith(f"{key.split('.')[0]}: ")


# load_recipe.

HEAD = "from growthring.train.recipe import Recipe\nfrom growthring.zoo import mlp8\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file into a folder of its own and returns its path; what it imports is forgotten."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_by_name():
    for name in RECIPES:
        assert load_recipe(name, RECIPES).name == name


@pytest.mark.parametrize("name", ["nothing", "", "Demo", "cifar10-resnet20:x", ":demo", "mine.py"])
def test_an_unknown_name(name):
    with pytest.raises(InputError) as caught:
        load_recipe(name, RECIPES)
    text = str(caught.value)
    assert f"there is no recipe '{name}'" in text
    assert "cifar10-resnet20" in text and "demo" in text and "path/to/file.py:function" in text


def test_from_a_file(write, monkeypatch, tmp_path):
    path = write("gr_mine.py", HEAD + "def good():\n    return Recipe('own', mlp8, epochs=7)\n")
    assert load_recipe(f"{path}:good", RECIPES).epochs == 7
    monkeypatch.chdir(tmp_path)
    assert load_recipe("gr_mine.py:good", RECIPES).name == "own"
    assert load_recipe("./gr_mine.py:good", {}).name == "own"


def test_a_file_with_a_model_of_its_own(write):
    path = write(
        "gr_model.py",
        HEAD + "import torch\n\ndef net(width=8):\n    return torch.nn.Linear(width, 2)\n\n"
        "def good():\n    return Recipe('own', net, model_options={'width': 3})\n",
    )
    found = load_recipe(f"{path}:good", RECIPES)
    assert found.model(**found.model_options).in_features == 3
    assert found.as_dict()["model"] == "gr_model.net"
    assert differences(found.as_dict(), load_recipe(f"{path}:good", RECIPES).as_dict()) == []


def test_a_file_that_was_edited_is_read_anew(write):
    text = HEAD + "def good():\n    return Recipe('own', mlp8, epochs={})\n"
    path = write("gr_edited.py", text.format(7))
    assert load_recipe(f"{path}:good", RECIPES).epochs == 7
    write("gr_edited.py", text.format(12345))
    assert load_recipe(f"{path}:good", RECIPES).epochs == 12345


def test_a_file_that_imports_its_neighbour(write):
    write("gr_neighbour.py", "EPOCHS = 7\n")
    path = write(
        "gr_importer.py",
        HEAD
        + "from gr_neighbour import EPOCHS\ndef good():\n    return Recipe('x', mlp8, epochs=EPOCHS)\n",
    )
    assert load_recipe(f"{path}:good", RECIPES).epochs == 7


def test_a_file_with_a_dataclass(write):
    path = write(
        "gr_dataclass.py",
        "from __future__ import annotations\nimport dataclasses\n"
        + HEAD
        + "@dataclasses.dataclass\nclass Sizes:\n    epochs: int = 7\n\n"
        "def good():\n    return Recipe('own', mlp8, epochs=Sizes().epochs)\n",
    )
    assert load_recipe(f"{path}:good", RECIPES).epochs == 7


def test_a_file_named_like_a_module_does_not_replace_it(write):
    path = write("json.py", HEAD + "def good():\n    return Recipe('own', mlp8)\n")
    assert load_recipe(f"{path}:good", RECIPES).name == "own"
    assert sys.modules["json"] is json


def test_no_such_file(tmp_path):
    for path in (tmp_path / "none.py", tmp_path / "a:b.py"):
        with pytest.raises(InputError, match=r"there is no file '.*py'"):
            load_recipe(f"{path}:good", RECIPES)
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(InputError, match="there is no file"):
        load_recipe(f"{tmp_path}/folder.py:good", RECIPES)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("missing", "has no function 'missing'"),
        ("VALUE", "has no function 'VALUE'"),
        ("", "has no function ''"),
        ("number", "returned a int, not a growthring.train.Recipe"),
        ("nothing", "returned a NoneType"),
        ("needs", "needs"),
        ("fails", "KeyError"),
    ],
)
def test_a_function_that_is_none(write, function, text):
    path = write(
        "gr_bad.py",
        "VALUE = 3\ndef number():\n    return 5\ndef nothing():\n    pass\n"
        "def needs(argument):\n    pass\ndef fails():\n    return {}['key']\n",
    )
    with pytest.raises(InputError) as caught:
        load_recipe(f"{path}:{function}", RECIPES)
    assert text in str(caught.value) and path in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def good(:\n", "SyntaxError"),
        ("import gr_not_there\n", "gr_not_there"),
        ("raise ValueError('on import')\n", "on import"),
        ("\x00", "cannot"),
    ],
    ids=["syntax", "import", "raises", "zero"],
)
def test_a_file_that_cannot_be_imported(write, text, says):
    path = write("gr_broken.py", text)
    with pytest.raises(InputError) as caught:
        load_recipe(f"{path}:good", RECIPES)
    assert path in str(caught.value) and (says in str(caught.value) or says == "cannot")
