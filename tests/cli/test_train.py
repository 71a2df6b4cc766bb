"""growthring train: from one command to a grown network, what it refuses, and how it goes on."""

import dataclasses
import os
import signal

import pytest

from growthring.checkpoint import list_checkpoints, read_json
from growthring.cli import main
from tests.cli.commands import HANGS, OWN, TINY, Gate, lines_of, one_object, run
from tests.train.runs import assert_same_run


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "my_recipes.py"
    path.write_text(OWN)
    return path


@pytest.fixture(scope="module")
def whole(own, tmp_path_factory):
    """The user's own recipe, uninterrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main(["train", "--recipe", f"{own}:mine", "--out", str(folder), "--quiet"]) == 0
    return folder


@pytest.mark.slow
def test_train_prints_plan_progress_and_result(capsys, tmp_path):
    status, out, err = run(capsys, "train", *TINY, "--out", tmp_path / "run")
    assert status == 0
    assert len(out.splitlines()) == 1 and "test accuracy" in out and "FLOPs" in out
    assert "Plan: ResNet in 3 stages" in err and err.count("test accuracy") == 3


def test_train_json_and_quiet(capsys, tmp_path):
    arguments = ["train", *TINY, "--fixed", "--json", "--quiet", "--out", tmp_path / "run"]
    status, out, err = run(capsys, *arguments)
    found = one_object(out)
    assert (status, err) == (0, "") and found["flops_share"] == 1.0 and found["epochs"] == 3
    config = read_json(tmp_path / "run" / "config.json")
    assert config["fixed"] and config["settings"]["stages"] == 3


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on_and_a_second_process_is_refused(own, whole, capsys, tmp_path):
    folder = tmp_path / "run"
    arguments = ["--recipe", f"{own}:mine", "--out", folder, "--checkpoint-steps", "1"]
    recipe = ["--recipe", f"{own}:mine"]
    with Gate(folder, 4, "train", *arguments) as gate:
        gate.wait()
        status, _, err = run(capsys, "train", "--resume", folder, *recipe)
        assert status == 2 and f"process {gate.process.pid}" in err and "Traceback" not in err
        status, _, err = run(capsys, "train", *arguments)
        assert status == 2 and f"process {gate.process.pid}" in err
        gate.process.send_signal(signal.SIGINT)
        gate.open()
        _, err = gate.process.communicate(timeout=HANGS)
        assert gate.process.returncode == 130
    assert f"growthring train --resume {folder}" in err and "Traceback" not in err
    assert not (folder / "result.json").exists()
    status, _, err = run(capsys, "train", "--resume", folder, *recipe)
    assert status == 0 and "resuming at stage" in err
    assert_same_run(whole, folder)


@pytest.mark.slow
def test_two_ctrl_c_end_at_once(own, whole, capsys, tmp_path):
    folder = tmp_path / "run"
    arguments = ["--recipe", f"{own}:mine", "--out", folder, "--checkpoint-steps", "1"]
    with Gate(folder, 1, "train", *arguments) as gate:  # which is never opened
        gate.wait()
        gate.process.send_signal(signal.SIGINT)
        err = ""
        for line in lines_of(gate.process):
            err += line
            if "Ctrl-C again" in line:
                gate.process.send_signal(signal.SIGINT)
        assert gate.process.returncode == 130 and "interrupted" in err and "Traceback" not in err
    assert run(capsys, "train", "--resume", folder, "--trust", "--quiet")[0] == 0
    assert_same_run(whole, folder)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [["--checkpoint-steps", "1"], ["--checkpoint-steps", "3"], []])
def test_killed_at_many_moments(steps, own, whole, capsys, tmp_path):
    """Within a pass, and wherever it is when it has been let go."""
    folder = tmp_path / "run"
    arguments = ["--recipe", f"{own}:mine", "--out", folder]
    for number, passes in enumerate((1, 3, 5, 2, 4)):
        first = [*arguments, *steps] if number == 0 else ["--resume", folder, "--trust", *steps]
        with Gate(folder, 0, "train", *first, passes=passes) as gate:
            gate.wait()
            if number % 2:
                gate.open()
            gate.process.kill()
            gate.process.communicate()
    assert run(capsys, "train", "--resume", folder, "--trust", "--quiet")[0] == 0
    assert_same_run(whole, folder)


def test_settings_of_the_first_command_hold_when_resumed(own, capsys, tmp_path):
    folder = tmp_path / "run"
    arguments = ["--recipe", f"{own}:mine", "--set", "optimizer_options.momentum=0.9"]
    assert run(capsys, "train", *arguments, "--fixed", "--out", folder, "--quiet")[0] == 0
    again = ["--resume", folder, "--recipe", f"{own}:mine"]
    assert run(capsys, "train", *again, "--quiet")[0] == 0
    for more, says in (
        (["--set", "epochs=4"], "epochs: 3 -> 4"),
        (["--set", "optimizer_options.momentum=0.5"], "0.9"),
    ):
        status, _, err = run(capsys, "train", *again, *more)
        assert status == 2 and says in err and "Traceback" not in err, (more, err)


def test_a_truncated_checkpoint_is_passed_over_and_named(own, whole, capsys, tmp_path):
    folder = tmp_path / "run"
    assert run(capsys, "train", "--recipe", f"{own}:mine", "--out", folder, "--quiet")[0] == 0
    path = list_checkpoints(folder)[-1][1]
    os.truncate(path / "tensors.safetensors", 99)
    status, _, err = run(capsys, "train", "--resume", folder, "--trust")
    assert status == 0 and path.name in err and "cannot be used" in err
    assert_same_run(whole, folder)
    for _, path in list_checkpoints(folder):
        os.truncate(path / "state.json", 9)
    status, _, err = run(capsys, "train", "--resume", folder, "--trust")
    assert status == 2 and "can be used" in err and "Traceback" not in err


def test_a_folder_that_holds_a_run(whole, own, capsys):
    before = (whole / "model.safetensors").read_bytes()
    status, _, err = run(capsys, "train", "--recipe", f"{own}:mine", "--out", whole)
    assert status == 2 and "already holds a run" in err and "--resume" in err
    assert (whole / "model.safetensors").read_bytes() == before


def test_a_finished_run_that_is_resumed_shows_its_result(whole, own, capsys):
    before = {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()}
    status, out, err = run(capsys, "train", "--resume", whole, "--recipe", f"{own}:mine")
    assert status == 0 and out.startswith(f"{whole}: test accuracy ")
    assert f"'{whole}' is finished: test accuracy " in err and "Nothing is left to train" in err
    assert "resuming" not in err and {p: p.read_bytes() for p in before} == before


def test_a_run_of_the_library_is_not_resumed_by_the_command(capsys, tmp_path):
    from tests.train.runs import Silence, Trainer, small

    Trainer(small(), tmp_path, progress=Silence()).fit()
    status, _, err = run(capsys, "train", "--resume", tmp_path)
    assert status == 2 and "not started by this command" in err


def test_resumed_from_another_folder(capsys, monkeypatch, tmp_path):
    """The recipe was given by a path relative to where the run was started."""
    (tmp_path / "my_recipes.py").write_text(OWN)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "--recipe", "my_recipes.py:mine", "--quiet", "--out", "run"]
    assert run(capsys, *arguments)[0] == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    status, _, err = run(capsys, "train", "--resume", tmp_path / "run", "--trust", "--quiet")
    assert status == 0, err


def test_a_function_among_the_model_options_can_be_resumed(capsys, tmp_path):
    path = tmp_path / "my_functions.py"
    text = OWN.replace("{'width': 8}", "{'width': 8, 'act': act}")
    text = text.replace("def __init__(self, width):", "def __init__(self, width, act):")
    path.write_text(text + "\ndef act(x):\n    return x\n")
    folder = tmp_path / "run"
    arguments = ["train", "--recipe", f"{path}:mine", "--quiet", "--out", folder]
    assert run(capsys, *arguments)[0] == 0
    status, _, err = run(capsys, "train", "--resume", folder, "--trust", "--quiet")
    assert status == 0, err


def test_tensorboard_events(capsys, tmp_path):
    pytest.importorskip("tensorboard")
    assert run(capsys, "train", *TINY, "--tensorboard", "--quiet", "--out", tmp_path)[0] == 0
    assert list((tmp_path / "tensorboard").iterdir())


def test_recipes_are_frozen():
    from growthring.train import RECIPES

    with pytest.raises(dataclasses.FrozenInstanceError):
        RECIPES["demo"]().lr = 1.0
