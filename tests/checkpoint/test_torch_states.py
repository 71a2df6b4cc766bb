"""States of optimizers, schedulers and the grower: to disk, back, and on as if nothing had happened."""

import copy
import inspect
import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import growthring as gr
from growthring.checkpoint import CheckpointError, encode, read_checkpoint, write_checkpoint
from tests.checkpoint.same import assert_same

LR = lr_scheduler


def from_disk(state, run):
    write_checkpoint(run, state, step=0)
    return read_checkpoint(run).state


class Net(nn.Module):
    def __init__(self, sparse=False, bias=True):
        super().__init__()
        self.table = nn.Embedding(7, 6, sparse=sparse)
        self.head = nn.Linear(6, 3, bias=bias)

    def forward(self, x):
        return self.head(self.table(x))


def train(model, optimizer, steps, generator, scheduler=None):
    for _ in range(steps):
        x = torch.randint(7, (5,), generator=generator)

        def closure(x=x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        if scheduler is not None:
            scheduler.step()


OPTIONS = {
    "Adam": {"amsgrad": True},
    "AdamW": {"lr": torch.tensor(0.01)},
    "RMSprop": {"centered": True, "momentum": 0.9},
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "LBFGS": {"lr": 0.1, "max_iter": 3},
    "Muon": {"lr": 0.01},
    "LARS": {"lr": 0.1, "momentum": 0.9},
    "gr.SGD": {"lr": 0.1, "momentum": 0.9},
}
OPTIMIZERS = {
    name: cls
    for name, cls in inspect.getmembers(torch.optim, inspect.isclass)
    if issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
} | {f"gr.{name}": getattr(gr.optim, name) for name in ("SGD", "Adam", "AdamW", "AvaGrad", "LARS")}


def make(name):
    torch.manual_seed(1)
    model = Net(sparse=name == "SparseAdam", bias=name != "Muon")
    parameters = list(model.table.parameters()) if name == "SparseAdam" else model.parameters()
    return model, OPTIMIZERS[name](parameters, **OPTIONS.get(name, OPTIONS.get(name[3:], {})))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.each(2)
def test_optimizers_go_on_bit_for_bit(name, tmp_path):
    generator = torch.Generator().manual_seed(0)
    model, optimizer = make(name)
    train(model, optimizer, 3, generator)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generator": generator.get_state(),
    }
    saved = from_disk(state, tmp_path)
    assert_same(state, saved)

    other, again = make(name)
    other.load_state_dict(saved["model"])
    again.load_state_dict(saved["optimizer"])
    train(other, again, 3, torch.Generator().set_state(saved["generator"]))
    train(model, optimizer, 3, generator)
    assert_same(dict(model.state_dict()), dict(other.state_dict()))
    assert_same(optimizer.state_dict(), again.state_dict(), ordered=False)


SCHEDULERS = {
    "StepLR": lambda o: LR.StepLR(o, 2),
    "MultiStepLR": lambda o: LR.MultiStepLR(o, [2, 4, 4]),
    "ConstantLR": lambda o: LR.ConstantLR(o),
    "LinearLR": lambda o: LR.LinearLR(o),
    "ExponentialLR": lambda o: LR.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: LR.PolynomialLR(o, 8),
    "CosineAnnealingLR": lambda o: LR.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: LR.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: LR.CyclicLR(o, 0.01, 0.1, 3),
    "OneCycleLR": lambda o: LR.OneCycleLR(o, 0.1, 20),
    "LambdaLR": lambda o: LR.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: LR.MultiplicativeLR(o, lambda step: 0.9),
    "SequentialLR": lambda o: LR.SequentialLR(
        o, [LR.LinearLR(o, total_iters=2), LR.CosineAnnealingLR(o, 8)], [2]
    ),
    "ChainedScheduler": lambda o: LR.ChainedScheduler([LR.ConstantLR(o), LR.StepLR(o, 2)]),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_go_on_bit_for_bit(name, tmp_path):
    def make_both():
        torch.manual_seed(1)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model, optimizer, SCHEDULERS[name](optimizer)

    model, optimizer, scheduler = make_both()
    generator = torch.Generator().manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(model, optimizer, 3, generator, scheduler)
        state = {"scheduler": scheduler.state_dict(), "optimizer": optimizer.state_dict()}
        saved = from_disk(copy.copy(state), tmp_path)
        assert_same(state, saved)
        _, optimizer_again, again = make_both()
        again.load_state_dict(saved["scheduler"])
        optimizer_again.load_state_dict(saved["optimizer"])
        for _ in range(5):
            scheduler.step()
            again.step()
            assert optimizer.param_groups[0]["lr"] == optimizer_again.param_groups[0]["lr"]
    assert_same(scheduler.state_dict(), again.state_dict())


def test_reduce_on_plateau(tmp_path):
    optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)
    scheduler = LR.ReduceLROnPlateau(optimizer)
    scheduler.step(1.0)
    assert_same(scheduler.state_dict(), from_disk(scheduler.state_dict(), tmp_path))


def test_code_in_a_scheduler_is_named():
    class Rule:
        def __init__(self):
            self.inner = lambda step: 1.0

        def __call__(self, step):
            return self.inner(step)

    scheduler = LR.LambdaLR(torch.optim.SGD(Net().parameters(), lr=0.1), Rule())
    with pytest.raises(CheckpointError, match=r"'scheduler\.lr_lambdas\[0\]\.inner': the function"):
        encode({"scheduler": scheduler.state_dict()})


def growing(variant):
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
    plan = gr.plan(net, torch.randn(5, 4), stages=3)
    model = plan.build_seed()
    if variant == "torch":
        optimizer = gr.optim.with_rings(torch.optim.RMSprop(model.parameters(), lr=0.01))
    else:
        optimizer = getattr(gr.optim, variant)(model.parameters(), lr=0.01)
    return model, optimizer, gr.Grower(model, plan, optimizer)


def fit(model, optimizer, grower, steps, generator):
    for i in range(steps):
        grower.advance(i / steps)
        optimizer.zero_grad()
        model(torch.randn(5, 4, generator=generator)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("variant", ["SGD", "Adam", "AdamW", "AvaGrad", "torch"])
@pytest.mark.each(4)
def test_a_growing_run_goes_on_bit_for_bit(variant, tmp_path):
    generator = torch.Generator().manual_seed(0)
    model, optimizer, grower = growing(variant)
    fit(model, optimizer, grower, 3, generator)
    grower.grow()
    fit(model, optimizer, grower, 3, generator)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "grower": grower.state_dict(),
        "generator": generator.get_state(),
    }
    saved = from_disk(state, tmp_path)
    assert_same(state, saved)

    other, optimizer_again, again = growing(variant)
    again.load_state_dict(saved["grower"])
    other.load_state_dict(saved["model"])
    optimizer_again.load_state_dict(saved["optimizer"])
    source = torch.Generator().set_state(saved["generator"])
    for a, b, c, g in [
        (model, optimizer, grower, generator),
        (other, optimizer_again, again, source),
    ]:
        c.grow()
        fit(a, b, c, 3, g)
    assert_same(dict(model.state_dict()), dict(other.state_dict()))
    assert_same(optimizer.state_dict(), optimizer_again.state_dict(), ordered=False)
