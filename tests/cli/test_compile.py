"""--compile of growthring train and plan: what it sets, what is said, what is refused."""

import pytest

from growthring.checkpoint import read_json
from growthring.planning import compiling
from growthring.planning.compiling import Compiling
from growthring.train.compilation import Compilation
from tests.cli.commands import TINY, one_object, run


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    """Nothing here needs a compiler."""
    monkeypatch.setattr(Compilation, "backend", "eager")


def refused(capsys, *arguments):
    """What a command says that is refused."""
    status, out, err = run(capsys, *arguments)
    assert status == 2 and out == "" and "Traceback" not in err
    return err


def test_a_run_is_compiled_and_resumed_as_it_was_begun(capsys, tmp_path):
    status, out, err = run(
        capsys, "train", *TINY, "--out", tmp_path, "--compile", "always", "--json"
    )
    assert status == 0, err
    assert one_object(out)["compile_seconds"] > 0
    config = read_json(tmp_path / "config.json")
    assert config["settings"]["compile"] == "always"
    assert config["source"]["settings"][-1] == "compile=always"
    status, out, err = run(capsys, "train", "--resume", tmp_path)
    assert status == 0 and "is finished" in out + err
    text = refused(capsys, "train", "--resume", tmp_path, "--compile", "never")
    assert "--compile is for a new run: one that is resumed goes on as it was begun" in text


def test_seconds_of_compiling_are_in_the_plan(capsys, monkeypatch):
    recipe = ["--recipe", "demo", "--set", "model_options.width=8", "--set", "total_steps=10000"]
    monkeypatch.setattr(compiling, "seconds_of_stages", lambda stages, *more: [0.1] * len(stages))
    found = lambda stages, *more: [Compiling(30.0, 0.5)] * len(stages)  # noqa: E731
    monkeypatch.setattr(compiling, "measure_compiling", found)
    status, out, err = run(capsys, "plan", *recipe, "--measure", "--compile", "--json")
    assert status == 0, err
    values = one_object(out)
    assert set(values["compile_seconds"]) <= {0.0, 30.0} and max(values["compile_seconds"]) == 30
    assert "--compile goes with --measure" in refused(capsys, "plan", *recipe, "--compile")
