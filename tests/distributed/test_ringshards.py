"""Rates for each ring on parameters that fully_shard has cut: two processes are one, with one reduction a step."""

import contextlib

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.growing.matching import parameter_rings
from growthring.optim.base import RingOptimizer
from growthring.optim.wrap import ring_rates_of
from tests.distributed_helpers import on_ranks

STEPS, BATCH = 5, 8
RINGS = {"rate_adaptation": "norm", "new_ring_rate": 1.5, "new_ring_warmup": 3, "output_rate": True}
OPTIMIZERS = {
    "SGD": (gr.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": (gr.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "Adam": (gr.optim.Adam, {"lr": 0.01, "amsgrad": True, "ages": "ring"}),
    "AdamW": (gr.optim.AdamW, {"lr": 0.01, "ages": "ring"}),
    "AvaGrad": (gr.optim.AvaGrad, {"lr": 0.05, "ages": "ring", "weight_decay": 0.01}),
    "LARS": (gr.optim.LARS, {"lr": 0.5, "trust_coefficient": 0.1}),
    "with_rings": (torch.optim.RMSprop, {"lr": 0.01}),
}


class Unused(nn.Module):
    """A vector of three and a weight without gradients, beside a network."""

    def __init__(self, net):
        super().__init__()
        self.net, self.scale = net, nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.idle = nn.Linear(4, 5).double()

    def forward(self, x):
        return self.net(x) * self.scale


def mlp():
    """Widths that two do not divide, and an output of one row: empty shards."""
    layers = [nn.Linear(6, 13), nn.GELU(), nn.Linear(13, 11), nn.Tanh(), nn.Linear(11, 1)]
    return Unused(nn.Sequential(*layers).double()), torch.ones(2, 6, dtype=torch.float64)


def gpt():
    config = gr.train.recipes  # imported with the package
    del config
    from growthring.zoo import gpt as zoo

    net = zoo.GPT(vocabulary=11, length=6, width=16, layers=1, heads=2)
    return net.double(), torch.zeros(2, 6, dtype=torch.int64)


def grown(make, stage=2):
    """A model that has grown to a stage, its plan and rings: before it is cut."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, inputs = make()
        plan = gr.plan(net, inputs, stages=4, start=0.4)
        model = plan.build_seed()
        grower = gr.Grower(model, plan, generator=torch.Generator().manual_seed(1))
        for _ in range(stage):
            grower.grow(measure=False)
        grower.finish()
    return model, plan, grower.rings


def optimizer_of(kind, model, plan, rings, **options):
    """An optimizer that was told the rings of the model as it is now."""
    make, settings = OPTIMIZERS[kind]
    if issubclass(make, RingOptimizer):
        optimizer = make(model.parameters(), **settings, **options)
        optimizer.bind_rings(parameter_rings(model, plan, rings))
    else:
        options.pop("foreach", None)
        optimizer = gr.optim.with_rings(make(model.parameters(), **settings), **options)
        ring_rates_of(optimizer).bind(parameter_rings(model, plan, rings))
    return optimizer


@contextlib.contextmanager
def counting():
    """The reductions inside, by their length."""
    sent, plain = [], torch.distributed.all_reduce

    def counted(tensor, *args, **kwargs):
        sent.append(tensor.numel())
        return plain(tensor, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "all_reduce", counted)
        yield sent


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)


def train(rank, size, kind, options=RINGS, steps=STEPS):
    """What a run ends with: weights, what its optimizer says of the rings, and the reductions of each step."""
    model, plan, rings = grown(mlp)
    if size > 1:
        from torch.distributed.fsdp import fully_shard

        for layer in (*model.net, model.idle):
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(model)
    optimizer = optimizer_of(kind, model, plan, rings, **options)
    sent = []
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step)[rank::size]).square().mean().backward()
        with counting() as now:
            optimizer.step()
        sent.append(len(now))
    rates = ring_rates_of(optimizer)
    told = [rates.rate_factors(), rates.weight_norms(), rates.gradient_norms()]
    full = {
        name: (p.full_tensor() if size > 1 else p).detach().clone()
        for name, p in model.named_parameters()
    }
    return full, told, sent


def several(rank, cases):
    return [train(rank, 2, *case) for case in cases]


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-10, atol=1e-10, msg=name)


def test_two_processes_are_one_with_one_reduction_a_step():
    cases = [(kind, RINGS) for kind in OPTIMIZERS] + [("SGD", {**RINGS, "foreach": False})]
    ended = on_ranks(several, cases)
    for number, case in enumerate(cases):
        one, told, _ = train(0, 1, *case)
        for each in ended:
            full, said, sent = each[number]
            assert_close(full, one)
            for ours, theirs in zip(said, told, strict=True):
                assert_close(ours, theirs)
            assert sent == [1] * STEPS, case[0]
