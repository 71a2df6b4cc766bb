"""Compiled, on two processes: a program for each stage and each fade, and the same weights everywhere."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import growthring as gr
from tests.distributed_helpers import on_ranks

STAGES, STEPS = 10, 60


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.o = nn.Linear(6, 20), nn.LayerNorm(20), nn.Linear(20, 3)

    def forward(self, x):
        return self.o(torch.relu(self.norm(self.a(x))))


def trained(rank):
    """Programs at the last step of each stage; whether compiled and plain passes were the same; the weights."""
    torch.compiler.reset()
    programs = []

    def backend(graph, inputs):
        programs.append(graph)
        return graph.forward

    torch.manual_seed(0)
    widths = [2 * (stage + 1) for stage in range(STAGES)]
    plan = gr.plan(Normed(), torch.ones(2, 6), widths={"a": widths}, total_steps=STEPS)
    ddp = DistributedDataParallel(plan.build_seed())
    model = torch.compile(ddp, backend=backend)
    optimizer = gr.optim.SGD(model.parameters(), lr=0.05)
    grower = gr.Grower(model, plan, optimizer, generator=torch.Generator().manual_seed(5), fade=0.5)
    draw = torch.Generator().manual_seed(rank)
    counts, is_same = {}, True
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for _ in range(STEPS):
            x = torch.randn(4, 6, generator=draw)
            outputs = model(x)
            is_same = is_same and torch.equal(outputs, ddp.module(x))
            optimizer.zero_grad()
            outputs.square().mean().backward()
            optimizer.step()
            counts[grower.stage] = len(programs)
            grower.step()
    assert grower.is_complete
    return counts, is_same, [p.detach() for p in ddp.parameters()]


@pytest.mark.slow
def test_ten_stages_with_fading_norms_on_two_processes():
    (counts, is_same, mine), (others, is_others, theirs) = on_ranks(trained)
    assert is_same and is_others and counts == others
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    found = [counts[stage] for stage in range(STAGES)]
    assert found[0] == 1
    assert all(after - before in (1, 2) for before, after in itertools.pairwise(found))
    assert found[-1] - found[-2] == 2, "a fade, and what comes after it"
