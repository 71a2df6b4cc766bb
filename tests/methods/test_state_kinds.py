"""Every kind of optimizer state under every growth method.

What is made of gradients follows the gradients; what is made of the weights takes the very step of the
weights: a copy that equals them before a growth equals them after it.
"""

import copy
import functools
from itertools import product

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

import growthring as gr
from tests.growth_contract import call, in_dtype
from tests.methods.nets import (
    marked,
    mlp as make_mlp,
    parents,
    plan_of as plan_of_net,
    planned,
    seed_of,
    split_by_hand,
    tensors_of,
)
from tests.methods.test_contract import BATCHES, MADE, grower_of, plan_of, train
from tests.optim.nets import assert_same, is_finite, is_old
from tests.optim.test_state import ALL as KNOWN
from tests.optim.test_state_odd import Listed, sparse_net

T = torch.optim


class Lookahead(T.SGD):
    """Slow weights that every second step moves half the way; the fast ones go on from there."""

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        for p in params:
            if "slow" not in self.state[p]:
                self.state[p] |= {"slow": p.detach().clone(), "count": 0}
        super().step(closure)
        for p in params:
            self.state[p]["count"] += 1
            if self.state[p]["count"] % 2 == 0:
                p.copy_(self.state[p]["slow"].lerp_(p, 0.5))


class Averaging(T.AdamW):
    """Keeps a moving average of the weights."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
            self.state[p].setdefault("ema", p.detach().clone()).lerp_(p, 0.1)


class Anchored(T.SGD):
    """Pulled back to where it began, which it keeps as a flat vector."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
            anchor = self.state[p].setdefault("anchor", p.detach().flatten().clone())
            p.grad += 0.01 * (p - anchor.view_as(p))
        return super().step(closure)


class Master(T.Optimizer):
    """Weights in half precision, each with a master copy in another type."""

    def __init__(self, params, lr=0.05, dtype=torch.float32):
        super().__init__(params, {"lr": lr, "dtype": dtype})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                master = self.state[p].setdefault("master", p.detach().to(group["dtype"]))
                master -= group["lr"] * p.grad.to(master)
                p.copy_(master)


COPIES = {
    "Lookahead": (lambda p: Lookahead(p, lr=0.01, momentum=0.9), {"slow": None}),
    "EMA in AdamW": (lambda p: Averaging(p, lr=0.01, amsgrad=True), {"ema": None}),
    "flat anchor": (lambda p: Anchored(p, lr=0.01), {"anchor": None}),
} | {name: kind for name, kind in KNOWN.items() if None in kind[1].values()}
OTHERS = {
    "SGD nesterov": (lambda p: T.SGD(p, lr=0.01, momentum=0.9, nesterov=True), {}),
    "AdamW amsgrad": (lambda p: T.AdamW(p, amsgrad=True), {}),
    "Adafactor": (lambda p: T.Adafactor(p, lr=0.01), {}),
    "with_rings SGD": (lambda p: gr.optim.with_rings(T.SGD(p, lr=0.01, momentum=0.9)), {}),
    "gr.AdamW": (lambda p: gr.optim.AdamW(p, lr=0.01, state_at_growth="rescale"), {}),
    "gr.SGD reset": (lambda p: gr.optim.SGD(p, lr=0.01, momentum=0.9), {}),
} | {name: kind for name, kind in KNOWN.items() if None not in kind[1].values()}
KINDS = COPIES | OTHERS
PAIRED = [gr.methods.Paired(mode) for mode in ("preserving", "paper", "constraint", "off")]
STEPS = {f"paired {p.mode}": p for p in PAIRED} | {n: m for n, m in MADE.items() if n != "paired"}


def cast_batches(dtype):
    return [(x.to(dtype), y) for x, y in BATCHES]


@functools.cache
def typed_plan(dtype):
    return plan_of() if dtype == torch.float64 else in_dtype(plan_of(), dtype)


def copy_keys(kind):
    return [key for key, fill in KINDS[kind][1].items() if fill is None]


def started(method, kind, dtype=torch.float64, memory=torch.contiguous_format, **options):
    """A model that has trained for two steps."""
    plan = typed_plan(dtype)
    options = {"batches": cast_batches(dtype)} | options
    model = seed_of(plan).to(dtype=dtype, memory_format=memory)
    optimizer = KINDS[kind][0](list(model.parameters()))
    grower = grower_of(model, plan, STEPS.get(method, method), optimizer=optimizer, **options)
    train(model, optimizer, dtype=dtype)
    return plan, model, optimizer, grower


def set_copies(model, optimizer, keys):
    """Makes every copy what the weights are."""
    for p in model.parameters():
        for key in keys:
            value = optimizer.state[p][key]
            value.copy_(p.detach().reshape(value.shape))


def assert_copies(model, optimizer, keys):
    for name, p in model.named_parameters():
        for key in keys:
            value = optimizer.state[p][key]
            assert torch.equal(value.reshape(p.shape), p.detach()), (name, key)


# Copies of the weights.


@pytest.mark.each(18)
@pytest.mark.parametrize(("noise", "kind"), [*product([0.0, 0.01], COPIES)])
@pytest.mark.parametrize("method", marked(STEPS, {"paired preserving", "net2net", "splitting"}))
def test_a_copy_that_equals_the_weights_equals_them_after_a_growth(method, kind, noise):
    _, model, optimizer, grower = started(method, kind, noise=noise)
    keys = copy_keys(kind)
    for seed in (1, 2):
        set_copies(model, optimizer, keys)
        grower.grow()
        assert_copies(model, optimizer, keys)
        train(model, optimizer, seed=seed)
    assert is_finite(model) and grower.is_full


@pytest.mark.parametrize("method", STEPS)
@pytest.mark.each(2)
def test_a_copy_takes_the_step_that_an_average_takes(method):
    """Also where it differs from the weights."""
    plan = plan_of()
    model = seed_of(plan)
    average = copy.deepcopy(model)
    optimizer = Averaging(model.parameters(), lr=0.05)
    options = {"optimizer": optimizer, "averages": average, "noise": 0.01}
    grower = grower_of(model, plan, STEPS[method], **options)
    train(model, optimizer, steps=3)
    kept = dict(zip(average.parameters(), model.parameters(), strict=True))
    with torch.no_grad():
        for a, p in kept.items():
            a.copy_(optimizer.state[p]["ema"])
    grower.grow()
    for a, p in kept.items():
        assert torch.equal(optimizer.state[p]["ema"], a.detach())
        assert not torch.equal(a.detach(), p.detach())


def test_copies_under_net2net_by_hand():
    """Units of the copy are copied and divided as those of the weights are."""
    plan = planned(make_mlp)
    model = seed_of(plan)
    optimizer = Lookahead(model.parameters(), lr=0.1)
    grower = grower_of(model, plan, "net2net", optimizer=optimizer, noise=0.0, batches=None)
    x = plan.example_inputs
    for _ in range(3):
        model.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    before, slow = tensors_of(model), copy.deepcopy(model)
    with torch.no_grad():
        for s, p in zip(slow.parameters(), model.parameters(), strict=True):
            s.copy_(optimizer.state[p]["slow"])
    outputs = slow(x).detach()
    grower.grow()
    biases = {
        g.key: m.tensor for g in plan.groups.growable for m in g.members if "bias" in m.tensor
    }
    sources = {
        key: parents(before[name][:, None], model.state_dict()[name][:, None])
        for key, name in biases.items()
    }
    expected = split_by_hand(plan, slow, sources)
    for (name, p), e in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(optimizer.state[p]["slow"], e.detach(), rtol=1e-14, atol=0)
        assert not torch.equal(e.detach(), p.detach()), name
    torch.testing.assert_close(expected(x).detach(), outputs, rtol=1e-12, atol=1e-13)


@pytest.mark.each(6)
@pytest.mark.parametrize(
    ("method", "memory"), [*product(STEPS, [torch.contiguous_format, torch.channels_last])]
)
def test_copies_in_other_memory_formats_and_in_float32(method, memory):
    """The noise goes by a norm, and sums depend on the order that numbers lie in memory."""
    _, model, optimizer, grower = started(method, "Lookahead", torch.float32, memory, noise=0.01)
    for p in model.parameters():  # a copy of its own format
        optimizer.state[p]["slow"] = p.detach().clone(memory_format=torch.contiguous_format)
    grower.grow()
    assert_copies(model, optimizer, ["slow"])


TYPES = [
    (torch.bfloat16, torch.float32, 2**-7),
    (torch.float32, torch.float64, 2**-22),
    (torch.float64, torch.float32, 2**-22),
]


@pytest.mark.each(4)
@pytest.mark.parametrize(("method", "types"), [*product(STEPS, TYPES)])
def test_copies_in_another_type_get_the_same_new_entries(method, types):
    weights, master, tolerance = types
    plan = typed_plan(weights)
    model = seed_of(plan)
    optimizer = Master(model.parameters(), dtype=master)
    batches = cast_batches(weights)
    grower = grower_of(model, plan, STEPS[method], optimizer=optimizer, noise=0.01, batches=batches)
    train(model, optimizer, dtype=weights)
    grower.grow(measure=False)
    for name, p in model.named_parameters():
        kept = optimizer.state[p]["master"]
        assert kept.dtype == master
        torch.testing.assert_close(
            p.detach().double(), kept.double(), rtol=tolerance, atol=tolerance * float(p.abs().max()),
            msg=name,
        )  # fmt: skip


def test_a_copy_without_values_draws_as_many_numbers():
    """Of zeros too: what comes after it must not get other noise."""
    _, model, optimizer, grower = started("net2net", "Lookahead", noise=0.01)
    set_copies(model, optimizer, ["slow"])
    optimizer.state[model.stem.weight]["slow"].zero_()
    grower.grow()
    del optimizer.state[model.stem.weight]["slow"]
    for name, p in model.named_parameters():
        if name != "stem.weight":
            assert torch.equal(optimizer.state[p]["slow"], p.detach()), name


@pytest.mark.each(6)
@pytest.mark.parametrize(("method", "noise"), [*product(STEPS, [0.0, 0.01])])
def test_an_average_that_equals_the_model_equals_it_after_a_growth(method, noise):
    plan = plan_of()
    model = seed_of(plan)
    averages = [AveragedModel(model), AveragedModel(model, use_buffers=True), copy.deepcopy(model)]
    grower = grower_of(model, plan, STEPS[method], averages=averages, noise=noise)
    while not grower.is_full:
        grower.grow()
        for average in averages:
            module = average.module if isinstance(average, AveragedModel) else average
            assert_same(tensors_of(model), tensors_of(module))


@pytest.mark.parametrize("method", STEPS)
def test_an_average_in_another_type_gets_the_same_new_entries(method):
    plan = typed_plan(torch.float32)
    model = seed_of(plan)
    average = copy.deepcopy(model).double()
    options = {"averages": average, "noise": 0.01, "batches": cast_batches(torch.float32)}
    grower = grower_of(model, plan, STEPS[method], **options)
    grower.grow(measure=False)
    for name, t in tensors_of(model).items():
        torch.testing.assert_close(average.state_dict()[name], t.to(average.state_dict()[name]),
                                   rtol=1e-5, atol=1e-6, msg=name)  # fmt: skip


# Everything else.


def as_saved(grower, model, optimizer):
    return copy.deepcopy(
        {"grower": grower.state_dict(), "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    )  # fmt: skip


@pytest.mark.each(12)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", marked(MADE, {"paired", "net2net"}))
def test_shapes_fit_training_goes_on_and_resumes_bit_for_bit(method, kind):
    """In float32: torch itself casts ASGD's and NAdam's scalars to the parameter's type as it loads them."""
    plan, model, optimizer, grower = started(method, kind, torch.float32)
    before = {p: copy.deepcopy(dict(optimizer.state[p])) for p in model.parameters()}
    shapes = {p: p.shape for p in model.parameters()}
    grower.grow()
    for name, p in model.named_parameters():
        for key, old in before[p].items():
            now = optimizer.state[p].get(key) if p in optimizer.state else None
            if isinstance(now, torch.Tensor) and old.shape == shapes[p] and old.dim():
                assert now.shape == p.shape, (name, key)
    saved = as_saved(grower, model, optimizer)
    train(model, optimizer, seed=5, dtype=torch.float32)
    assert is_finite(model)

    twin = plan.build_seed()
    other = KINDS[kind][0](list(twin.parameters()))
    later = grower_of(twin, plan, MADE[method], optimizer=other)
    later.load_state_dict(saved["grower"])
    twin.load_state_dict(saved["model"])
    other.load_state_dict(saved["optimizer"])
    train(twin, other, seed=5, dtype=torch.float32)
    assert_same(as_saved(grower, model, optimizer), as_saved(later, twin, other))


KEPT = ["Lookahead", "EMA in AdamW", "SGD nesterov", "gr.AdamW", "with_rings"]


@pytest.mark.each(6)
@pytest.mark.parametrize(("method", "kind"), [*product(MADE, KEPT)])
def test_a_failure_after_the_state_grew_takes_it_back(method, kind):
    plan = plan_of()
    model = seed_of(plan)
    params = list(model.parameters())
    optimizer, second = KINDS[kind][0](params[:-2]), Listed(params[-2:], lr=0.01)
    grower = grower_of(model, plan, MADE[method], optimizer=[optimizer, second], noise=0.01)
    for one in (optimizer, second):
        train(model, one)
    before, state = as_saved(grower, model, optimizer), {
        p: dict(optimizer.state[p]) for p in params[:-2]
    }  # fmt: skip
    with pytest.raises(gr.GrowthError, match="'last'"):
        grower.grow()
    assert_same(before, as_saved(grower, model, optimizer))
    for p, values in state.items():
        assert all(optimizer.state[p][key] is value for key, value in values.items())


@pytest.mark.parametrize("method", MADE)
@pytest.mark.each(3)
def test_lbfgs_is_refused_under_every_method(method):
    plan = plan_of()
    model = seed_of(plan)
    optimizer = T.LBFGS(model.parameters(), max_iter=2)
    grower = grower_of(model, plan, MADE[method], optimizer=optimizer)

    def closure():
        model.zero_grad()
        loss = model(plan.example_inputs).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    before = as_saved(grower, model, optimizer)
    with pytest.raises(gr.GrowthError, match=r"LBFGS.*unknown_state='reset'"):
        grower.grow()
    assert_same(before, as_saved(grower, model, optimizer))
    grower = grower_of(model, plan, MADE[method], optimizer=optimizer, unknown_state="reset")
    grower.grow()
    optimizer.step(closure)
    assert is_finite(model)


@pytest.mark.parametrize("method", ["paired", "net2net", "random"])
def test_sparse_adam_under_the_methods_that_grow_tables(method):
    plan = sparse_net()
    model = plan.build_seed()
    optimizer = T.SparseAdam([model.table.weight], lr=0.01)
    grower = gr.Grower(model, plan, optimizer=optimizer, method=method)
    for _ in range(2):
        model.zero_grad()
        model(plan.example_inputs).square().mean().backward()
        optimizer.step()
        grower.grow()
        for key in ("exp_avg", "exp_avg_sq"):
            value = optimizer.state[model.table.weight][key]
            assert value.shape == model.table.weight.shape
            assert not bool(value[~is_old(grower, "table.weight")].any())
    optimizer.step()
    assert is_finite(model)


# What is made of gradients.

NETS = ["mlp", "conv_bn", "wrn", "dense", "inception", "conv_flatten", "mobilenet", "grouped",
        "more_groups", "multiplier", "transposed", "layer_norm", "gpt", "multihead", "encoder_pre",
        "shared"]  # fmt: skip


def gradients(model, plan):
    """The gradient of a loss in eval mode, by autograd."""
    model.eval().zero_grad()
    outputs = call(model, plan.example_inputs)
    sum((o - 0.3).square().mean() for o in outputs).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.each(27)
@pytest.mark.parametrize(
    ("method", "net"),
    [(m, n) for m in ("paired", "net2net") for n in NETS]
    + [(MADE["gradmax"], n) for n in ("mlp", "conv_bn", "wrn", "dense", "mobilenet")],
)
def test_gradients_and_moments_are_those_of_the_grown_function(method, net):
    """Where the function stays, what is kept of a gradient stays the gradient of that function."""
    plan = plan_of_net(net)
    if method == "net2net" and plan.groups.statistics:
        pytest.skip("statistics that fade in take their share of the gradient from originals alone")
    model = seed_of(plan)
    options = {"method": method, "noise": 0.0, "generator": torch.Generator().manual_seed(3)}
    options |= {"batches": [(plan.example_inputs, None)], "loss": lambda out, _: out.square().sum()}
    rescaling = {"lr": 0.0, "state_at_growth": "rescale"}
    optimizers = [
        gr.optim.SGD(model.parameters(), momentum=0.9, **rescaling),
        gr.optim.AdamW(model.parameters(), **rescaling),
    ]
    grower = gr.Grower(model, plan, optimizer=optimizers, **options)
    gradients(model, plan)
    for optimizer in optimizers:
        optimizer.step()
    grower.grow()
    kept = {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    true = gradients(model, plan)
    scale = max(float(g.abs().max()) for g in true.values())
    for name, p in model.named_parameters():
        if name not in true:
            continue
        old = is_old(grower, name) if name in plan.groups.specs else torch.ones_like(p, dtype=bool)
        found = {
            "gradient": kept[name],
            "momentum": optimizers[0].state[p]["momentum_buffer"],
            "mean": optimizers[1].state[p]["exp_avg"] / 0.1,
            "mean square": (optimizers[1].state[p]["exp_avg_sq"] / 0.001).sqrt(),
        }
        for what, value in found.items():
            expected = true[name].abs() if what == "mean square" else true[name]
            error = float((value - expected)[old].abs().max()) / scale
            assert error <= 1e-9, (name, what, error)
            assert not bool(value[~old].any()), (name, what)


@pytest.mark.parametrize("method", ["splitting", "firefly-split", "firefly"])
def test_split_units_share_their_gradient(method):
    """As under net2net: each kept moment is divided by a number of copies, and by no other number."""
    _, model, optimizer, grower = started(method, "gr.AdamW", noise=0.0)
    before = {n: optimizer.state[p]["exp_avg"].clone() for n, p in model.named_parameters()}
    grower.grow()
    numbers = set()
    for name, p in model.named_parameters():
        ratio = before[name].flatten() / optimizer.state[p]["exp_avg"][is_old(grower, name)]
        ratio = ratio[torch.isfinite(ratio)]
        torch.testing.assert_close(ratio, ratio.round(), rtol=1e-9, atol=0)
        numbers |= set(ratio.round().int().tolist())
    assert 1 in numbers and max(numbers) > 1
