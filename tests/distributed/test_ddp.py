"""Growing under DistributedDataParallel: two processes are one, or neither has grown."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import growthring as gr
from tests.distributed_helpers import on_ranks

STEPS, BATCH = 12, 8
OPTIMIZERS = {
    "SGD": lambda p: gr.optim.SGD(p, lr=0.05, momentum=0.9, rate_adaptation="norm"),
    "AdamW": lambda p: gr.optim.AdamW(p, lr=0.01, rate_adaptation="norm", ages="ring"),
    "torch.AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def net(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(6, 12),
            nn.LayerNorm(12),
            nn.GELU(),
            nn.Linear(12, 12),
            nn.Tanh(),
            nn.Linear(12, 3),
        ).double()


def data(step):
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)


def planned(seed=0, **options):
    options = {"stages": 3, "start": 0.25, "total_steps": STEPS, **options}
    return gr.plan(net(seed), torch.ones(2, 6, dtype=torch.float64), **options)


def train(rank, size, optimizer="SGD", wrap=DistributedDataParallel, until=STEPS, **kept):
    """A run through two growths; `rank` of `size` processes, which share each batch."""
    plan = planned()
    model = plan.build_seed()
    trained = wrap(model) if size > 1 else model
    stepper = OPTIMIZERS[optimizer](model.parameters())
    grower = gr.Grower(trained, plan, stepper, generator=torch.Generator().manual_seed(5))
    for step in range(until):
        stepper.zero_grad()
        trained(data(step)[rank::size]).square().mean().backward()
        stepper.step()
        grower.step()
    return trained, model, stepper, grower


def weights(model):
    return {n: t.detach().clone() for n, t in model.state_dict().items()}


def trained_weights(rank, optimizer):
    return weights(train(rank, 2, optimizer)[1])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_processes_are_one(optimizer):
    one = weights(train(0, 1, optimizer)[1])
    for both in on_ranks(trained_weights, optimizer):
        assert both.keys() == one.keys()
        for name, tensor in both.items():
            assert tensor.shape == one[name].shape
            torch.testing.assert_close(tensor, one[name], rtol=1e-10, atol=1e-10)
