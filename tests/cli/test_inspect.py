"""The command `growthring inspect`: what it prints, and what it says when its arguments are wrong."""

import json
import subprocess
import sys

import pytest
import torch

import growthring as gr
from growthring.cli import main
from growthring.cli.models import load_model, parse_inputs
from growthring.zoo import resnet8


def run(capsys, *arguments):
    status = main(list(arguments))
    out, err = capsys.readouterr()
    return status, out, err


def test_inspect_prints_groups_readers_and_reasons(capsys):
    status, out, _ = run(capsys, "inspect", "growthring.zoo:resnet8", "--input", "1x3x32x32")
    assert status == 0
    assert "can grow" in out and "FROZEN" in out
    assert "writes   conv1.weight axis 0" in out
    assert "axis 1 of model input" in out and "axis 1 of model output 0" in out


@pytest.mark.slow
def test_inspect_is_what_print_shows_and_all_lists_kernels(capsys):
    x = torch.zeros(1, 3, 32, 32)
    groups = gr.discover_width_groups(resnet8(), x)
    arguments = ["inspect", "growthring.zoo:resnet8", "--input", "1x3x32x32"]
    assert run(capsys, *arguments)[1] == f"{groups}\n"
    out = run(capsys, *arguments, "--all")[1]
    assert out == f"{groups.table(everything=True)}\n" and "slides this kernel over space" in out


def test_inspect_json_is_one_object(capsys):
    arguments = ["inspect", "growthring.zoo:resnet8", "--input", "1x3x32x32", "--json"]
    status, out, _ = run(capsys, *arguments)
    found = json.loads(out)
    assert status == 0
    growing = {g["name"]: g["width"] for g in found["groups"] if g["grows"]}
    assert growing["conv1"] == 16
    assert all(g["frozen"]["reason"] for g in found["groups"] if not g["grows"])
    assert {m["role"] for g in found["groups"] for m in g["members"]} == {
        "writes",
        "reads",
        "shares",
    }


def test_settings_names_and_freeze(capsys):
    status, out, _ = run(
        capsys,
        *("inspect", "torch.nn:Linear", "--set", "in_features=3", "--set", "out_features=4"),
        *("--input", "input=2x3"),
    )
    assert status == 2  # a single layer has nothing between its input and its output
    status, out, _ = run(
        capsys,
        *(
            "inspect",
            "growthring.zoo:resnet8",
            "--input",
            "1x3x32x32",
            "--freeze",
            "conv1",
            "--json",
        ),
    )
    groups = {g["name"]: g for g in json.loads(out)["groups"]}
    assert groups["conv1"]["frozen"] == {"kind": "user", "reason": "freeze='conv1'"}


def test_a_model_in_a_file(tmp_path, capsys):
    path = tmp_path / "my_own_model.py"
    path.write_text(
        "from torch import nn\n"
        "def make(width=8):\n"
        "    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))\n"
    )
    status, out, _ = run(capsys, "inspect", f"{path}:make", "--set", "width=6", "--input", "1x4")
    assert status == 0 and "0  width 6" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nocolon", "--input", "1x3"], "not of the form module:function"),
        (["growthring.zoo:nothing", "--input", "1x3"], "has no 'nothing'"),
        (["no_such_module:make", "--input", "1x3"], "cannot import 'no_such_module'"),
        (["no_such_file.py:make", "--input", "1x3"], "there is no file 'no_such_file.py'"),
        (["growthring.zoo:resnet8", "--input", "1xthree"], "expected a shape such as"),
        (["growthring.zoo:resnet8", "--input", "1x3:int99"], "torch has no type 'int99'"),
        (["growthring.zoo:resnet8", "--input", "1x3", "--input", "a=1"], "every --input a name"),
        (["growthring.zoo:resnet8", "--input", "1x7x32x32"], "own forward pass fails"),
        (["growthring.zoo:resnet8", "--set", "width", "--input", "1x3"], "expected KEY=VALUE"),
        (["growthring.zoo:resnet8", "--set", "nonsense=1", "--input", "1x3"], "failed: TypeError"),
        (["growthring.zoo:__all__", "--input", "1x3"], "no '__all__'"),
        (["math:pi", "--input", "1x3"], "neither a model nor callable"),
        (["builtins:dict", "--input", "1x3"], "returned a dict"),
        (["growthring.zoo:resnet8", "--input", "1x3x32x32", "--freeze", "x"], "matches no module"),
    ],
)
def test_bad_arguments_say_what_is_wrong(capsys, arguments, says):
    status, out, err = run(capsys, "inspect", *arguments)
    assert status == 2 and out == ""
    assert says in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give MODULE:FUNCTION with --input, or --recipe NAME."),
        (["demo"], "'demo' is a recipe: --recipe demo."),
        (["growthring.zoo:resnet8"], "needs an example of its inputs"),
        (["growthring.zoo:resnet8", "--recipe", "demo"], "not both"),
        (["--recipe", "demo", "--input", "1x3"], "--input is for a model of your own"),
        (["--recipe", "demo", "--set", "width=3"], "expected key=value with a key out of"),
        (["--recipe", "nothing"], "there is no recipe 'nothing'"),
        (
            ["tests.cli.test_inspect:MODEL", "--input", "1x2", "--set", "bias=1"],
            "is a model that is made already: it takes no --set",
        ),
    ],
)
def test_a_model_or_a_recipe(capsys, arguments, says):
    status, out, err = run(capsys, "inspect", *arguments)
    assert status == 2 and out == "" and says in err and "Traceback" not in err


def test_the_model_of_a_recipe(capsys):
    sets = ["--set", "model_options.width=8", "--set", "freeze=('conv1',)"]
    status, out, err = run(capsys, "inspect", "--recipe", "demo", *sets, "--json")
    assert (status, err) == (0, "")
    groups = {g["name"]: g for g in json.loads(out)["groups"]}
    assert groups["conv1"]["width"] == 8
    assert groups["conv1"]["frozen"] == {"kind": "user", "reason": "freeze='conv1'"}


def test_no_command_shows_the_help(capsys):
    status, out, _ = run(capsys)
    assert status == 2 and "inspect" in out


def test_inputs_are_reproducible_and_typed():
    (first,), (second,) = parse_inputs(["2x3"]), parse_inputs(["2x3"])
    assert first.equal(second)
    assert not parse_inputs(["ids=1x4:int64"])["ids"].any()


def test_a_model_object_needs_no_call():
    assert type(load_model("tests.cli.test_inspect:MODEL")).__name__ == "Linear"


MODEL = load_model("torch.nn:Linear", ["in_features=2", "out_features=2"])


@pytest.mark.slow
def test_the_module_runs_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "growthring", "inspect", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "examples:" in done.stdout
