"""docs/loops.md and the README's example run as they stand, and leave plain full-size models."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import growthring as gr

ROOT = Path(__file__).parents[1]
LOOPS = dict(
    re.findall(
        r"^## An? (\S+)\n.*?```python\n(.*?)```", (ROOT / "docs/loops.md").read_text(), re.M | re.S
    )
)


def execute(code: str, names: dict) -> dict:
    exec(compile(code, "loop.md", "exec"), names)
    return names


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.each(6)
def test_a_loop_runs_and_ends_with_the_plain_model(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", gr.GrowthWarning)
        names = execute(LOOPS[kind], {"__name__": f"loops_{kind}"})
    assert capsys.readouterr().out.count("grew: ") == 1
    plan, fresh, model = names["plan"], names["fresh"].eval(), names["model"].eval()
    assert plan.flops_share < 0.7, "it pays"
    key = "ema" if kind == "MLP" else "model"
    (saved,) = tmp_path.glob("*.pt")
    shapes = {name: tuple(t.shape) for name, t in torch.load(saved)[key].items()}
    assert shapes == {name: tuple(t.shape) for name, t in plan.model.state_dict().items()}
    trained = names["ema"].module.eval() if key == "ema" else model
    assert torch.equal(fresh(plan.example_inputs), trained(plan.example_inputs))
    marked = [line for line in LOOPS[kind].splitlines() if "# +" in line]
    assert len(marked) == (6 if kind == "LSTM" else 5), (
        "the import, plan, seed, Grower and one call"
    )


def test_there_are_six():
    assert list(LOOPS) == ["ResNet", "MLP", "GPT", "U-Net", "ViT", "LSTM"]


@pytest.mark.slow
def test_a_stopped_loop_ends_as_one_that_was_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = execute(LOOPS["LSTM"], {"__name__": "loops_whole"})
    whole = names["train"](0, names["steps"])
    resumed = names["model"].state_dict()
    assert all(torch.equal(v, resumed[k]) for k, v in whole.state_dict().items())


def test_the_readme_runs():
    (code,) = re.findall(
        r"```python\n(import torch\n.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    names = execute(code, {})
    model = names["model"]
    assert isinstance(model, nn.Module) and names["grower"].is_complete
