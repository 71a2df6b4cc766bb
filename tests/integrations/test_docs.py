"""The scripts of the pages about other people's trainers do what the pages say."""

import shutil

import pytest

from tests.pages import blocks, run_script


def run(page, capsys):
    exec(compile(blocks(page)[0], page, "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_the_script_for_accelerate_runs_and_resumes(tmp_path, monkeypatch, capsys):
    state = pytest.importorskip("accelerate").state.AcceleratorState
    state._reset_state(True)
    monkeypatch.chdir(tmp_path)
    first = run("accelerate.md", capsys)
    assert first.count("grew: stage 1: ") == 1
    assert first.endswith("True\n")
    assert run("accelerate.md", capsys) == "True\n"  # there was nothing left to do


@pytest.mark.slow
def test_the_script_for_accelerate_runs_on_two_processes(tmp_path):
    pytest.importorskip("accelerate")
    ran = run_script(blocks("accelerate.md")[0], tmp_path, 2, ACCELERATE_USE_CPU="true")
    assert ran.stdout.count("grew: stage 1: ") == 1
    assert ran.stdout.endswith("True\n")


@pytest.mark.filterwarnings("ignore")
def test_the_script_for_transformers_runs_and_resumes(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate").state.AcceleratorState._reset_state(True)
    monkeypatch.chdir(tmp_path)
    assert run("transformers.md", capsys).endswith("True 32\n")
    weights = (tmp_path / "run/checkpoint-24/model.safetensors").read_bytes()
    for later in ("checkpoint-12", "checkpoint-18", "checkpoint-24"):
        shutil.rmtree(tmp_path / "run" / later)
    assert run("transformers.md", capsys).endswith("True 32\n")
    assert (tmp_path / "run/checkpoint-24/model.safetensors").read_bytes() == weights
