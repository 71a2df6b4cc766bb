"""What growthring's own passes make torch, or the model's code, warn of stays with them."""

import os
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import growthring as gr
from tests.cli.commands import TINY

# Growths of several kinds of model, where every warning is an error from the first import on.
STRICT = """
import warnings
import torch
from torch import nn
import growthring as gr
from growthring.zoo import GPT

class Groups(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)
        self.two, self.norm = nn.Conv2d(16, 16, 3), nn.GroupNorm(4, 16)
        self.fc = nn.Linear(16, 2)

    def forward(self, x):
        return self.fc(self.norm(self.two(torch.relu(self.bn(self.conv(x))))).mean((2, 3)))

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(4, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x):
        return self.fc(self.lstm(x)[0])

class Outdated(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.b(torch.relu(self.a(x[None].T.squeeze(-1).T)))  # torch says once that T is for matrices

mlp = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
gpt = GPT(vocab_size=11, block_size=8, num_layers=1, num_heads=2, width=16)
cases = [
    (mlp, torch.randn(2, 4)),
    (Groups(), torch.randn(2, 3, 8, 8)),
    (gpt, torch.zeros(2, 4, dtype=torch.long)),
    (Recurrent(), torch.randn(2, 3, 4)),
    (Outdated(), torch.randn(2, 4)),
]
for model, x in cases[FIRST:]:
    plan = gr.plan(model, x, stages=2, epochs=4)
    str(plan), str(plan.groups)
    seed = plan.build_seed()
    grower = gr.Grower(seed, plan, gr.optim.AdamW(seed.parameters()))
    str(grower.grow()), grower.finish()
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    model(x)
assert any("matrices" in str(w.message) or "x.T" in str(w.message) for w in heard), heard
"""


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.mark.parametrize("first", [pytest.param(0, marks=pytest.mark.slow), -1])
def test_growing_where_every_warning_is_an_error(first):
    done = python("-W", "error", "-c", STRICT.replace("FIRST", str(first)))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_commands_where_every_warning_is_an_error(tmp_path):
    run = str(tmp_path / "run")
    for arguments in (
        ["inspect", "growthring.zoo:resnet20", "--input", "2x3x16x16"],
        ["plan", *TINY],
        ["train", *TINY, "--out", run, "--quiet"],
        ["report", run, "--out", str(tmp_path / "page.html")],
    ):
        done = python("-m", "growthring", *arguments, PYTHONWARNINGS="error")
        assert (done.returncode, done.stderr) == (0, ""), arguments


class Warns(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, x):
        warnings.warn("words of the model's own", UserWarning, stacklevel=1)
        return self.b(torch.relu(self.a(x)))


def test_a_models_own_warning_comes_with_the_users_own_pass():
    model, x = Warns(), torch.randn(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = gr.plan(model, x, stages=2, epochs=2)
        seed = plan.build_seed()
        gr.Grower(seed, plan).grow()
        assert str(plan)
        plan.measure(repeats=1)
    with pytest.warns(UserWarning, match="words of the model's own"):
        seed(x)


def test_the_users_settings_of_warnings_are_as_they_were():
    filters, is_always = list(warnings.filters), torch.is_warn_always_enabled()
    gr.plan(Warns(), torch.randn(2, 4), stages=2, epochs=2)
    assert warnings.filters == filters
    assert torch.is_warn_always_enabled() == is_always
