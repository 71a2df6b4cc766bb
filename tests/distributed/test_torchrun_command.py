"""`growthring train` under torchrun: as it is typed, stopped, killed and taken up again."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from growthring.checkpoint import load_weights, read_json
from tests.pages import blocks, run_script

PYTHON = shlex.quote(sys.executable)
TORCHRUN = f"{PYTHON} -m torch.distributed.run --standalone"
RECIPE = """
from torch import nn
from growthring.train import Recipe

class Wide(nn.Module):
    def forward(self, x):
        return x.flatten(1).double()

def net(width=16):
    first = (Wide(), nn.Linear(64, width), nn.LayerNorm(width), nn.ReLU())
    return nn.Sequential(*first, nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10)).double()

def small():
    options = {"momentum": 0.9}
    tiny = {"epochs": 6, "stages": 3, "start": 0.25, "num_train": 500, "batch_size": 32}
    return Recipe("small", net, input_shape=(1, 8, 8), optimizer_options=options, lr=0.05, **tiny)
"""


def run(command, folder):
    words = shlex.split(command)
    ran = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path):
    code = blocks("torchrun.md", "sh")[0]
    first, second = [line.split("#")[0].strip() for line in code.splitlines()]
    small = " --set epochs=2 --set stages=2 --set num_train=64 --set model_options.width=4"
    assert first.startswith("torchrun ") and second.startswith("growthring ")
    status, out, error = run(first.replace("torchrun", TORCHRUN, 1) + small, tmp_path)
    assert status == 0, error
    assert out.count("test accuracy") == 1 and "trained by 2 processes." in out
    assert error.count("BatchNorm normalises over each of the 2 processes' slices") == 1
    status, _, error = run(f"{PYTHON} -m {second}", tmp_path)
    assert status == 0 and "is finished" in error, error


def test_the_script_of_the_page_runs(tmp_path):
    out = run_script(blocks("torchrun.md")[0], tmp_path, 2).stdout
    assert out == "6 ('trained by 2 processes.',)\n"


class Launched:
    """A run of two processes under torchrun, some steps long."""

    def __init__(self, command, folder):
        self.log = (folder / "log").open("w+")
        words = shlex.split(f"{TORCHRUN} --nproc_per_node 2 {command}")
        self.agent = subprocess.Popen(words, cwd=folder, stderr=self.log, text=True)

    def wait_for(self, checkpoint):
        while self.agent.poll() is None and not checkpoint.exists():
            time.sleep(0.05)
        assert self.agent.poll() is None, self.said

    def send(self, rank, number):
        """A signal to one of the two."""
        pids = Path(f"/proc/{self.agent.pid}/task/{self.agent.pid}/children").read_text().split()
        for pid in pids:
            if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(int(pid), number)

    @property
    def said(self):
        self.log.seek(0)
        return self.log.read()


@pytest.fixture
def small(tmp_path):
    """The recipe, what one process makes of it, and how it is trained."""
    (tmp_path / "mine.py").write_text(RECIPE)
    train = "train --recipe mine.py:small --checkpoint-steps 5"
    assert run(f"{PYTHON} -m growthring {train} --out one", tmp_path)[0] == 0
    return train


def assert_same(folder, name):
    one, other = (load_weights(folder / each / "model.safetensors") for each in ("one", name))
    for key, tensor in one.items():
        torch.testing.assert_close(tensor, other[key], rtol=1e-10, atol=1e-10)
    costs = [read_json(folder / each / "result.json") for each in ("one", name)]
    assert costs[0]["flops"] == costs[1]["flops"]
    assert costs[0]["test_accuracy"] == costs[1]["test_accuracy"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
def test_a_killed_process_ends_the_other_and_the_run_goes_on_in_one(small, tmp_path):
    script = shlex.quote(str(Path(sys.executable).with_name("growthring")))
    launched = Launched(f"{script} {small} --out two", tmp_path)  # as torchrun $(which growthring)
    launched.wait_for(tmp_path / "two/checkpoints/step-000000030")
    launched.send(1, signal.SIGKILL)
    assert launched.agent.wait() != 0
    assert "rank 0 lost another process" in launched.said
    assert not (tmp_path / "two/result.json").exists()
    command = f"{PYTHON} -m growthring train --resume two --recipe mine.py:small"
    status, _, error = run(command, tmp_path)
    assert status == 0, error
    assert_same(tmp_path, "two")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("rank", [1, None], ids=["to one process", "to torchrun"])
def test_a_signal_stops_all_at_one_step(rank, small, tmp_path):
    launched = Launched(f"-m growthring {small} --out two", tmp_path)
    launched.wait_for(tmp_path / "two/checkpoints/step-000000030")
    if rank is None:
        launched.agent.send_signal(signal.SIGTERM)
    else:
        launched.send(rank, signal.SIGINT)
    assert launched.agent.wait() != 0
    words = "everything is saved. Go on with: growthring train --resume two"
    assert launched.said.count(words) == 1
    if rank is not None:
        assert "exitcode  : 130" in launched.said
    command = (
        f"{TORCHRUN} --nproc_per_node 2 -m growthring train --resume two --recipe mine.py:small"
    )
    status, _, error = run(command, tmp_path)
    assert status == 0, error
    assert_same(tmp_path, "two")
