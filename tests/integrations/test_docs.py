"""The scripts of the pages about other people's trainers do what the pages say."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def script(page):
    return re.search(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.S)[1]


def run(page, capsys):
    exec(compile(script(page), page, "exec"), {"__name__": "__main__"})
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
    (tmp_path / "train.py").write_text(script("accelerate.md"))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "train.py"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    ran = subprocess.run(
        [sys.executable, *launch], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
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
