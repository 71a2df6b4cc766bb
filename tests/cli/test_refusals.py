"""growthring train: what it says when its arguments are wrong."""

import importlib.util

import pytest

from tests.cli.commands import OWN, run


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "my_recipes.py"
    path.write_text(OWN)
    return path


def refused(capsys, *arguments):
    status, out, err = run(capsys, *arguments)
    assert status == 2 and out == "" and "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--out", "OUT"], "--recipe"),
        (["--recipe", "demo"], "--out"),
        (["--recipe", "nothing", "--out", "OUT"], "there is no recipe 'nothing'"),
        (["--recipe", "no.py:f", "--out", "OUT"], "there is no file 'no.py'"),
        (["--recipe", "cifar10-resnet20", "--data", "NO", "--out", "OUT"], "cifar10: found"),
        (["--recipe", "imagenet-resnet50", "--out", "OUT"], "--data"),
        (["--resume", "NO"], "holds no run"),
        (["MINE", "--set", "epochs", "--out", "OUT"], "expected key=value"),
        (["MINE", "--set", "epohcs=3", "--out", "OUT"], "epochs"),
        (["MINE", "--set", "epochs=many", "--out", "OUT"], "'epochs' is int, not str"),
        (["MINE", "--set", "epochs=1", "--out", "OUT"], "epoch"),
        (["MINE", "--set", "lr.x=1", "--out", "OUT"], "'lr' has no parts"),
        (["MINE", "--set", "model=x", "--out", "OUT"], "write a recipe of your own"),
        (["MINE", "--set", "data=nope", "--out", "OUT"], "there is no data set 'nope'"),
        (["MINE", "--set", "optimizer=sdg", "--out", "OUT"], "optimizer='sdg'"),
        (["MINE", "--set", "optimizer_options.momentun=1", "--out", "OUT"], "momentun"),
        (["MINE", "--set", "optimizer_options.momentum=-1", "--out", "OUT"], "momentum"),
        (["MINE", "--set", "model_options.widht=8", "--out", "OUT"], "widht"),
        (["MINE", "--set", "label_smoothing=2.0", "--out", "OUT"], "label_smoothing"),
        (["MINE", "--set", "input_shape=(1,9,9)", "--out", "OUT"], "(1, 8, 8)"),
        (["MINE", "--device", "nonsense", "--out", "OUT"], "nonsense"),
        (["MINE", "--checkpoint-steps", "-1", "--out", "OUT"], "checkpoint"),
    ],
)
def test_bad_arguments_say_what_is_wrong(arguments, says, own, capsys, tmp_path):
    places = {"OUT": str(tmp_path / "out"), "NO": str(tmp_path / "no")}
    places["MINE"] = f"--recipe={own}:mine"
    assert says in refused(capsys, "train", *(places.get(a, a) for a in arguments))
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("fails", "the user made a mistake"),
        ("number", "returned a int, not a growthring.train.Recipe"),
        ("value", "no function 'value'"),
        ("absent", "no function 'absent'"),
    ],
)
def test_a_recipe_of_the_users_own_that_is_none(function, says, own, capsys, tmp_path):
    out = tmp_path / "out"
    assert says in refused(capsys, "train", "--recipe", f"{own}:{function}", "--out", out)


def test_a_recipe_file_that_cannot_be_run(own, capsys, tmp_path):
    own.write_text("import no_such_module\n")
    assert "no_such_module" in refused(
        capsys, "train", "--recipe", f"{own}:mine", "--out", tmp_path / "out"
    )
    own.write_text("def mine(:\n")
    refused(capsys, "train", "--recipe", f"{own}:mine", "--out", tmp_path / "out")


def test_a_recipe_file_with_a_dataclass_and_a_neighbour(own, capsys, tmp_path):
    """Both need the file to be a module like any other."""
    (tmp_path / "my_neighbour.py").write_text("WIDTH = 8\n")
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    more = "@dataclass\nclass Settings:\n    width: int = 8\n"
    own.write_text(head + OWN + more)
    status, _, err = run(capsys, "plan", "--recipe", f"{own}:mine")
    assert status == 0, err
    own.write_text("import my_neighbour\n" + OWN)
    status, _, err = run(capsys, "plan", "--recipe", f"{own}:mine")
    assert status == 0, err


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is not None, reason="is installed")
def test_tensorboard_that_is_not_installed(own, capsys, tmp_path):
    arguments = ["--recipe", f"{own}:mine", "--tensorboard", "--quiet", "--out", tmp_path / "out"]
    err = refused(capsys, "train", *arguments)
    assert "tensorboard" in err and "pip install" in err
    assert not (tmp_path / "out" / "config.json").exists()


def test_the_loss_is_not_finite(own, capsys, tmp_path):
    arguments = [
        "--recipe",
        f"{own}:mine",
        "--set",
        "lr=1e30",
        "--quiet",
        "--out",
        tmp_path / "out",
    ]
    err = refused(capsys, "train", *arguments)
    assert "step" in err and "stage" in err and "norms" in err
    again = refused(capsys, "train", "--resume", tmp_path / "out", "--trust", "--quiet")
    assert again == err
