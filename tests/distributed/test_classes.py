"""Outputs that gain classes on two processes, which are one: with DistributedDataParallel and with fully_shard."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import growthring as gr
from tests.distributed_helpers import on_ranks

STEPS, CLASSES = 9, (2, 5, 7)


def train(rank, size, kind, method):
    """A run through two growths; `rank` of `size` processes, which share each batch."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 7)
        )
    x = torch.ones(2, 6, dtype=torch.float64)
    plan = gr.plan(net.double(), x, classes=CLASSES, total_steps=STEPS)
    model = trained = plan.build_seed()
    if size > 1 and kind == "shards":
        trained = fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    elif size > 1:
        trained = DistributedDataParallel(model)
    optimizer = gr.optim.AdamW(model.parameters(), lr=0.01, rate_adaptation="norm", ages="ring")
    draw = torch.Generator().manual_seed(5)
    grower = gr.Grower(trained, plan, optimizer, method, generator=draw)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(8, 6, generator=draw, dtype=torch.float64)
        y = torch.randint(0, plan.classes[grower.stage], (8,), generator=draw)
        optimizer.zero_grad()
        F.cross_entropy(trained(x[rank::size]), y[rank::size]).backward()
        optimizer.step()
        grower.step()
    parameters = model.named_parameters()
    return {
        n: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach() for n, p in parameters
    }


def trained_weights(rank, *args):
    return train(rank, 2, *args)


@pytest.mark.parametrize("method", ["paired", "net2net"])
@pytest.mark.parametrize("kind", ["copies", "shards"])
def test_two_processes_are_one(kind, method):
    one = train(0, 1, kind, method)
    assert one["4.weight"].shape == (7, 12)
    for both in on_ranks(trained_weights, kind, method):
        for name, tensor in one.items():
            torch.testing.assert_close(both[name], tensor, rtol=1e-9, atol=1e-9)
