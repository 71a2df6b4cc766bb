"""Growing under fully_shard (FSDP2): shards grow in place, and two processes are one."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import growthring as gr
from tests.distributed_helpers import on_ranks

STEPS, BATCH = 12, 8
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
}


class Block(nn.Module):
    """Of a residual stream, normalised; its own width grows too."""

    def __init__(self, width, inner):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first = nn.Linear(6, 10)
            self.blocks = nn.ModuleList(Block(10, n) for n in (14, 7))
            self.norm = nn.BatchNorm1d(10)
            self.last = nn.Linear(10, 3)
        self.register_buffer("gain", torch.ones(10), persistent=False)

    def forward(self, x):
        x = self.first(x) * self.gain
        for block in self.blocks:
            x = block(x)
        return self.last(self.norm(x))


def data(step):
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)


def planned(seed=0, **options):
    options = {"stages": 3, "start": 0.3, "round_to": 1, "total_steps": STEPS, **options}
    return gr.plan(Net(seed).double(), torch.ones(2, 6, dtype=torch.float64), **options)


def sharded(model, mesh, **options):
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def whole(model):
    """The model's tensors by name, gathered."""
    return {
        n: (t.full_tensor() if hasattr(t, "full_tensor") else t).detach().clone()
        for n, t in [*model.named_parameters(), *model.named_buffers()]
    }


def train(rank, size, optimizer="SGD", until=STEPS, plan=None, **options):
    """A run through two growths; `rank` of `size` processes, which share each batch."""
    plan = plan or planned()
    model = plan.build_seed()
    model.norm.eval()
    if size > 1:
        sharded(model, init_device_mesh("cpu", (size,)), **options)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    grower = gr.Grower(model, plan, stepper, generator=torch.Generator().manual_seed(5))
    for step in range(until):
        stepper.zero_grad()
        model(data(step)[rank::size]).square().mean().backward()
        stepper.step()
        grower.step()
    return model, stepper, grower


def trained(rank, optimizer, options):
    model, stepper, grower = train(rank, 2, optimizer, **options)
    held = {id(p) for group in stepper.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}
    assert grower.model is model and grower.is_full
    return whole(model)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("options", [{}, {"reshard_after_forward": False}])
def test_two_processes_are_one(optimizer, options):
    one = whole(train(0, 1, optimizer)[0])
    for both in on_ranks(trained, optimizer, options):
        assert both.keys() == one.keys()
        for name, tensor in both.items():
            assert tensor.shape == one[name].shape
            torch.testing.assert_close(tensor, one[name], rtol=1e-10, atol=1e-10)
