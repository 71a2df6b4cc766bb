"""docs/distributed.md and docs/fsdp.md: their scripts run on two processes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import growthring as gr

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "number"),
    [("distributed", 0), ("fsdp", 0), pytest.param("fsdp", 1, marks=pytest.mark.slow)],
)
def test_the_script_runs_on_two_processes(page, number, tmp_path):
    code = re.findall(r"```python\n(.*?)```", (ROOT / f"docs/{page}.md").read_text(), re.S)[number]
    (tmp_path / "train.py").write_text(code)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "train.py"]
    ran = subprocess.run([sys.executable, *launch], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("grew: stage 1: ") == 1
    assert ran.stdout.count("True") == 4  # two of each process, whose lines may mix


def test_synchronised_batch_norm_stays_what_it_is(generator):
    """On the CPU torch neither trains nor wraps it, so one process in eval mode is all that can be tried."""
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    x = torch.randn(4, 6, generator=generator)
    plan = gr.plan(net, x, stages=2, start=0.5)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(plan.build_seed()).eval()
    grower, before = gr.Grower(model, plan, noise=0), model(x)
    grower.grow()
    assert type(model[1]) is nn.SyncBatchNorm
    assert model[1].num_features == len(model[1].running_mean) == 16
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-6)
