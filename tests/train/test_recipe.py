"""Recipes: their settings, a user's own file, what differs between two."""

import dataclasses
import functools
import json
import sys

import pytest
import torch

from growthring.errors import InputError, PlanError
from growthring.planning.options import OPTIONS, PlanOptions
from growthring.train.bounds import misfit
from growthring.train.recipe import KINDS, Recipe, change, differences, load_recipe
from growthring.train.recipes import RECIPES
from growthring.train.settings import parse_settings
from growthring.train.setup import make_plan
from growthring.zoo import mlp8


def recipe(**options) -> Recipe:
    return Recipe("mine", mlp8, **{"preset": "paper", **options})


def put(before: Recipe, *texts: str) -> Recipe:
    return change(before, parse_settings(texts))


# A recipe in Python.


def test_the_plan_is_one_value():
    mine = recipe(epochs=30, stages=3, lr=0.5, optimizer="adam")
    paper = PlanOptions(preset="paper", epochs=30, stages=3, optimizer="adam")
    assert mine.plan == paper and mine.lr == 0.5
    assert recipe(plan=mine.plan, stages=4).plan == mine.plan.changed(stages=4)
    assert dataclasses.replace(mine, lr=0.1) == recipe(plan=mine.plan)
    assert (mine.plan.epochs, mine.batch_size) == (30, 128)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"epohcs": 3}, "a recipe has no setting 'epohcs'; the nearest is 'epochs'"),
        ({"zzz": 3}, "a recipe has no setting 'zzz'; there are batch_growth"),
        ({"lr": "fast"}, "lr='fast': 'lr' is float, not str"),
        ({"epochs": [1, 2, 3]}, "'epochs' is int, not list"),
        ({"plan": PlanOptions(preset="paper", stages=2, epochs=[1, 2])}, "is int, not tuple"),
        ({"input_shape": (1, "a")}, "'input_shape' is tuple[int, ...], not tuple"),
        ({"plan": {"epochs": 3}}, "is a dict, not a PlanOptions"),
        ({"build": "mlp8"}, "'build' is a function | None, not str"),
    ],
)
def test_settings_are_checked_by_their_types(settings, says):
    with pytest.raises(InputError) as caught:
        recipe(**settings)
    assert says in str(caught.value)


def test_the_plan_checks_its_options():
    with pytest.raises(PlanError, match="stages=0"):
        recipe(stages=0)
    with pytest.raises(InputError, match=r"epochs.x=3: 'epochs' has no parts"):
        change(recipe(), {"epochs.x": 3})


def test_every_option_of_the_plan_is_a_setting():
    widths = {"0": [4, 8, 16]}
    mine = recipe(stages=3, widths=widths, heads="size", batch_memory=1e9, build=mlp8)
    stored = mine.as_dict()
    assert stored["widths"] == [["0", [4, 8, 16]]] and stored["build"] == "growthring.zoo.mlp.mlp8"
    assert (stored["heads"], stored["batch_memory"]) == ("size", 1e9) and "outputs" not in stored
    assert all(misfit(key, value) is None for key, value in stored.items())
    assert recipe(stages=3, widths=stored["widths"]).plan.widths == mine.plan.widths
    (line,) = differences(recipe().as_dict(), recipe(heads="size").as_dict())
    assert line == "heads: 'auto' -> 'size'"


def test_a_recipes_plan_is_made_with_its_options():
    net = functools.partial(torch.nn.Sequential, torch.nn.Linear(4, 16), torch.nn.Linear(16, 3))
    mine = Recipe("mine", net, stages=3, input_shape=(4,), widths={"0": [2, 8, 16]})
    assert make_plan(mine, net()).widths("0") == [2, 8, 16]


# as_dict and differences.


def test_as_dict_is_json():
    found = recipe(freeze=("a",), model_options={"width": 3}).as_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    fields = {f.name: f for f in dataclasses.fields(Recipe)} | OPTIONS
    later = {name for name, field in fields.items() if field.metadata.get("later")}
    assert set(found) == set(KINDS) - later - {"preset"}, "as runs have stored them so far"
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
    assert differences({"heads": "count"}, {}) == ["heads: 'count' -> 'auto'"]
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
        changed = put(before, f"{key}={value}")
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
    assert load_recipe(f"{path}:good", RECIPES).plan.epochs == 7
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
    assert load_recipe(f"{path}:good", RECIPES).plan.epochs == 7
    write("gr_edited.py", text.format(12345))
    assert load_recipe(f"{path}:good", RECIPES).plan.epochs == 12345


def test_a_file_that_imports_its_neighbour(write):
    write("gr_neighbour.py", "EPOCHS = 7\n")
    path = write(
        "gr_importer.py",
        HEAD
        + "from gr_neighbour import EPOCHS\ndef good():\n    return Recipe('x', mlp8, epochs=EPOCHS)\n",
    )
    assert load_recipe(f"{path}:good", RECIPES).plan.epochs == 7


def test_a_file_with_a_dataclass(write):
    path = write(
        "gr_dataclass.py",
        "from __future__ import annotations\nimport dataclasses\n"
        + HEAD
        + "@dataclasses.dataclass\nclass Sizes:\n    epochs: int = 7\n\n"
        "def good():\n    return Recipe('own', mlp8, epochs=Sizes().epochs)\n",
    )
    assert load_recipe(f"{path}:good", RECIPES).plan.epochs == 7


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
