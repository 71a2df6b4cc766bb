"""Growing under fully_shard through public functions alone: each growth makes a new model, the same bit for bit."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

import growthring as gr
from growthring.distributed import fullyshard, publicly
from growthring.graph import restore
from tests.distributed.test_fsdp import STEPS, data, planned, sharded, whole
from tests.distributed_helpers import on_ranks

OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rings": lambda p: gr.optim.AdamW(p, lr=0.01, rate_adaptation="norm"),
}


def forbidden(*args, **kwargs):
    raise AssertionError("a private part of torch")


def of_nobody(model):
    assert not fullyshard.is_fully_sharded(model) or publicly.is_public(model)
    return []


def train(rank, optimizer, is_public):
    """A run through two growths of two processes."""
    mesh = init_device_mesh("cpu", (2,))

    def shard(model):
        return sharded(model, mesh)

    plan = planned()
    model = shard(plan.build_seed())
    model.norm.eval()
    stepper = OPTIMIZERS[optimizer](model.parameters())
    options = {"shard": shard} if is_public else {}
    draw = torch.Generator().manual_seed(5)
    grower = gr.Grower(model, plan, stepper, fade=0.5, generator=draw, noise=0.1, **options)
    changes = []
    for step in range(STEPS):
        stepper.zero_grad()
        grower.model(data(step)[rank::2]).square().mean().backward()
        stepper.step()
        report = grower.step()
        if report.growth:
            changes.append(report.growth.change.relative)
    return grower, stepper, changes


def both_ways(rank):
    told = []
    for optimizer in OPTIMIZERS:
        grower, _, changes = train(rank, optimizer, False)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("_check_parts", "_refit", "_forget_whole"):
                patch.setattr(fullyshard, name, forbidden)
            patch.setattr(fullyshard, "states_of", of_nobody)
            patch.setattr(restore, "set_shard", forbidden)
            fresh, other, measured = train(rank, optimizer, True)
        assert fresh.is_complete and grower.is_complete
        one, two = whole(grower.model), whole(fresh.model)
        assert one.keys() == two.keys()
        assert all(torch.equal(t, two[n]) for n, t in one.items())
        assert changes == measured
        held = {id(p) for group in other.param_groups for p in group["params"]}
        assert held == {id(p) for p in fresh.model.parameters()}
    return told


def test_a_run_is_that_of_growing_in_place_bit_for_bit():
    on_ranks(both_ways)
