"""Rates for each ring on parameters that fully_shard has cut: two processes are one, with one reduction a step."""

import contextlib
import copy
import functools

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.growing.matching import parameter_rings
from growthring.optim.base import RingOptimizer
from growthring.optim.geometry import ParameterRings
from growthring.optim.wrap import ring_rates_of
from growthring.zoo.gpt import GPT
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
    """A tied output layer, heads, and rings that lie scattered over the rows of q, k and v."""
    net = GPT(vocab_size=11, block_size=6, num_layers=2, num_heads=2, width=16)
    return net.double(), torch.zeros(2, 6, dtype=torch.int64)


NETS = {"mlp": mlp, "gpt": gpt}


@functools.cache
def grown(net, stage=2):
    """A model that has grown to a stage, its plan and rings: before it is cut."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        full, inputs = NETS[net]()
        plan = gr.plan(full, inputs, stages=4, start=0.4)
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
        optimizer = make(model.parameters(), **{**settings, **options})
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


def batch(net, step):
    generator = torch.Generator().manual_seed(step)
    if net == "gpt":
        return torch.randint(0, 11, (BATCH, 6), generator=generator)
    return torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)


def cut(model):
    """As FSDP2 cuts a model: some modules on their own, and the rest together."""
    from torch.distributed.fsdp import fully_shard

    kinds = (nn.Linear,) if isinstance(model, Unused) else (type(model.blocks[0]),)
    for module in [m for m in model.modules() if isinstance(m, kinds)]:
        fully_shard(module)
    return fully_shard(model)


def train(rank, size, kind, options=RINGS, net="mlp"):
    """What a run ends with: weights, what its optimizer says of the rings, and the reductions of each step."""
    model, plan, rings = grown(net)
    model = copy.deepcopy(model)
    if size > 1:
        cut(model)
    optimizer = optimizer_of(kind, model, plan, rings, **options)
    sent = []
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(net, step)[rank::size]).square().mean().backward()
        with counting() as now:
            optimizer.step()
        sent.append(len(now))
        for state in optimizer.state.values():
            if "births" in state:
                state["births"] = (0, 0, 1)  # as if the last ring had been born just now
    if not options:
        return whole(model), [], sent
    rates = ring_rates_of(optimizer)
    told = [rates.rate_factors(), rates.weight_norms(), rates.gradient_norms()]
    return whole(model), told, sent


def whole(model):
    return {
        name: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone()
        for name, p in model.named_parameters()
    }


def several(rank, cases):
    return [train(rank, 2, *case) for case in cases]


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-10, atol=1e-10, msg=name)


def check(cases, reductions):
    ended = on_ranks(several, cases)
    for number, case in enumerate(cases):
        one, told, none_sent = train(0, 1, *case)
        assert none_sent == [0] * STEPS
        for each in ended:
            full, said, sent = each[number]
            assert_close(full, one)
            for ours, theirs in zip(said, told, strict=True):
                assert_close(ours, theirs)
            assert sent == [reductions] * STEPS, case


def test_two_processes_are_one_with_one_reduction_a_step():
    check([(kind, RINGS) for kind in ("SGD", "AdamW", "AvaGrad", "LARS", "with_rings")], 1)


@pytest.mark.slow
def test_whatever_the_options():
    check([("SGD", {**RINGS, "foreach": False}), ("nesterov", RINGS), ("Adam", RINGS)], 1)
    fused = {**RINGS, "ages": "shared", "fused": True}
    check([("SGD", {**RINGS, "fused": True}), ("AdamW", fused)], 1)
    rule = {**RINGS, "rate_adaptation": "max", "ring_schedule": "own", "total_steps": 9}
    check([("AdamW", rule), ("AvaGrad", {"ages": "ring"}), ("LARS", {})], 1)
    check([(kind, RINGS, "gpt") for kind in ("SGD", "AdamW", "AvaGrad", "LARS")], 1)


def test_without_rate_adaptation_nothing_is_sent():
    rings = {"new_ring_rate": 1.5, "new_ring_warmup": 3, "output_rate": True}
    check([("SGD", rings), ("AdamW", rings), ("AdamW", {}), ("with_rings", rings)], 0)


def odd(rank):
    """A gradient that one process lacks, and a way to cut that nobody knows here."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh = init_device_mesh("cpu", (2,))
    sent = {}
    rings = ParameterRings("w", (torch.tensor([0, 0, 1]), torch.tensor([0, 1])), 2, adapts=True)
    for name in ("SGD", "AvaGrad", "LARS"):
        weights = [distribute_tensor(torch.ones(3, 2), mesh, [Shard(d)]) for d in (0, 1)]
        params = [nn.Parameter(w) for w in weights]
        make, settings = OPTIMIZERS[name]
        optimizer = make(params, **settings, rate_adaptation="norm")
        optimizer.bind_rings(dict.fromkeys(params, rings))
        for _ in range(2):
            for p in params[rank:]:
                p.grad = torch.ones_like(p)
            with counting() as now:
                optimizer.step()
            sent.setdefault(name, []).append(now)
    strided = DTensor.from_local(torch.ones(2, 2), mesh, [_StridedShard(0, split_factor=2)])
    optimizer = gr.optim.SGD([nn.Parameter(strided)], rate_adaptation="norm")
    optimizer.bind_rings(dict.fromkeys(optimizer.param_groups[0]["params"], rings))
    with pytest.raises(gr.GrowthError) as failed:
        optimizer.weight_norms()
    return sent, str(failed.value)


def test_a_gradient_that_one_process_lacks_keeps_nobody_waiting():
    (first, told), (second, _) = on_ranks(odd)
    assert first == second
    assert first == {"SGD": [[4]] * 2, "AvaGrad": [[8]] * 2, "LARS": [[8]] * 2}
    assert "'w' is spread over processes as _StridedShard(" in told.replace("_S(", "_StridedShard(")
    assert "so gr.optim does not know who holds what. Cut models by fully_shard alone" in told
