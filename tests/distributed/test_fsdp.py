"""Growing under fully_shard (FSDP2): shards grow in place, and two processes are one."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import growthring as gr
import growthring.growing.outcome as outcome_module
import growthring.growing.stage as stage_module
import growthring.growing.streaming as streaming
import growthring.growing.subjects as subjects_module
import growthring.methods.paired as paired_module
from growthring.distributed.shards import gathered, shard_like
from growthring.errors import GrowthError
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


# One growth: what it gives, and what it leaves where one process fails.


def grown_once(rank, size, optimizer, noise):
    """The model and its optimizer's state after two steps on one batch and a growth; parameters' gradients kept."""
    plan = planned()
    model = plan.build_seed()
    if size > 1:
        sharded(model, init_device_mesh("cpu", (size,)))
    stepper = OPTIMIZERS[optimizer](model.parameters())
    grower = gr.Grower(
        model, plan, stepper, generator=torch.Generator().manual_seed(5), noise=noise
    )
    with torch.no_grad():  # the same everywhere, to the last bit
        for name, p in model.named_parameters():
            make = torch.Generator().manual_seed(len(name))
            p.grad = like(p, torch.randn(p.shape, generator=make, dtype=p.dtype))
    stepper.step()
    stepper.step()
    report = grower.grow()
    parts = whole(model)
    for name, p in model.named_parameters():
        parts[f"gradient of {name}"] = gathered(p.grad)
        for key, value in stepper.state[p].items():
            parts[f"{key} of {name}"] = gathered(value) if torch.is_tensor(value) else value
    return parts, report.change.relative, grower.generator.get_state()


def like(tensor, whole):
    return shard_like(tensor, whole)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_growth_is_that_of_one_process_bit_for_bit(optimizer, noise):
    one, change, state = grown_once(0, 1, optimizer, noise)
    for parts, there, drawn in on_ranks(grown_once, 2, optimizer, noise):
        assert parts.keys() == one.keys()
        for name, part in parts.items():
            assert torch.equal(torch.as_tensor(part), torch.as_tensor(one[name])), name
        assert torch.equal(drawn, state)
        assert there < 1e-12 and change < 1e-12


def failing_growth(rank, culprit):
    """A growth that fails on one rank, in several places; then one that does not."""
    model, stepper, grower = train(rank, 2, "AdamW", until=1)
    objects = {name: id(p) for name, p in model.named_parameters()}
    told = []
    places = ((stage_module, "replay_of"), (stage_module, "grow_optimizers"), (streaming, "shard_like"),
              (paired_module, "widen_paired"), (subjects_module, "tell_rings"),
              (outcome_module, "run"))  # fmt: skip
    for place, name in places:
        before = everything(model, stepper)
        with pytest.MonkeyPatch.context() as patch:
            if rank == culprit:
                patch.setattr(
                    place, name, failing_later(getattr(place, name), 3 if place is streaming else 0)
                )
            with pytest.raises(GrowthError) as failed:
                grower.grow()
        told.append(str(failed.value))
        after = everything(model, stepper)
        assert after.keys() == before.keys()
        assert all(torch.equal(after[n], before[n]) for n in after)
        assert grower.stage == 0
        step_on(rank, model, stepper)
    grower.grow()
    assert objects == {name: id(p) for name, p in model.named_parameters()}
    step_on(rank, model, stepper)
    return told


def failing_later(function, calls):
    """The function, which fails after some calls."""
    counted = []

    def failing(*args, **kwargs):
        counted.append(1)
        return function(*args, **kwargs) if len(counted) != calls + 1 else 1 / 0

    return failing


def everything(model, stepper):
    parts = whole(model)
    for name, p in model.named_parameters():
        parts |= {f"{k} of {name}": gathered(v) for k, v in stepper.state[p].items()}
    return {n: t.clone() for n, t in parts.items()}


def step_on(rank, model, stepper):
    stepper.zero_grad()
    model(data(77 + rank)).square().mean().backward()
    stepper.step()


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_growth_that_fails_on_one_leaves_nothing_on_any(culprit):
    for rank, told in enumerate(on_ranks(failing_growth, culprit)):
        for text in told:
            if rank == culprit:
                assert "ZeroDivisionError: division by zero" in text
            else:
                assert text.startswith(
                    f"rank {culprit} failed, so nothing was changed on any: Zero"
                )
