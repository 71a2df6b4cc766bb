"""docs/distributed.md and docs/fsdp.md: their scripts run on two processes."""

import pytest
import torch
from torch import nn

import growthring as gr
from tests.pages import blocks, run_script


@pytest.mark.parametrize(
    ("page", "number"),
    [("distributed", 0), ("fsdp", 0), pytest.param("fsdp", 1, marks=pytest.mark.slow)],
)
def test_the_script_runs_on_two_processes(page, number, tmp_path):
    ran = run_script(blocks(f"{page}.md")[number], tmp_path, 2)
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
