"""State in fewer bits: the 8-bit optimizers of bitsandbytes and torchao grow, or are refused by name."""

import io

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.errors import InputError
from growthring.optim.packed import Packing
from tests.optim.nets import assert_same, is_finite, snapshot

FULL, SEED = 256, 128  # the full width is also the length of bitsandbytes' code books


def optimizer_of(kind, params, **options):
    """Of torchao or bitsandbytes, if it is installed."""
    library, name = kind.split(".")
    module = pytest.importorskip(f"{library}.optim")
    needs_momentum = name in ("SGD8bit", "LARS8bit")
    momentum = {"momentum": 0.9} if needs_momentum else {}
    return getattr(module, name)(params, lr=1e-3, **momentum, **options)


def started(kind, width=FULL, **options):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    )
    plan = gr.plan(net, torch.randn(4, 64), stages=2)
    model = plan.build_seed()
    optimizer = optimizer_of(kind, model.parameters())
    grower = gr.Grower(model, plan, optimizer, **options)
    train(model, optimizer)
    return plan, model, optimizer, grower


@torch.compiler.set_stance("force_eager")  # torchao compiles its step
def train(model, optimizer, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()


def numbers(optimizer, p):
    return Packing(optimizer).unpacked(optimizer.state[p])


KINDS = {  # the share of a tensor's norm that is lost at most
    "torchao.AdamW8bit": 0.01,
    "torchao.Adam8bit": 0.01,
    "torchao.AdamW4bit": 0.1,
    "torchao.AdamWFp8": 0.02,
    "bitsandbytes.AdamW8bit": 0.01,
    "bitsandbytes.SGD8bit": 0.01,
    "bitsandbytes.Lion8bit": 0.01,
    "bitsandbytes.PagedAdamW8bit": 0.01,
    "bitsandbytes.LAMB8bit": 0.01,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.each(2)
def test_packed_state_grows(kind):
    _, model, optimizer, grower = started(kind)
    weight = model.get_parameter("2.weight")
    before = numbers(optimizer, weight)
    kinds = {key: type(value) for key, value in optimizer.state[weight].items()}
    report = grower.grow()
    assert weight.shape == (FULL, FULL)
    after, old = numbers(optimizer, weight), ~grower.rings.mask("2.weight", 1)
    moments = [k for k, v in before.items() if isinstance(v, torch.Tensor) and v.numel() > 1]
    assert moments
    for key in moments:
        kept = after[key][old]
        lost = (kept - before[key].flatten()).norm() / kept.norm()
        assert float(kept.norm()) > 0 and float(lost) <= KINDS[kind], key
        least = (
            0.1 * after[key].abs().max() if "4bit" in kind else 0.0
        )  # 4 bits have no 0 without a sign
        assert bool((after[key][~old].abs() <= least).all()), key
    assert {key: type(value) for key, value in optimizer.state[weight].items()} == kinds
    assert optimizer.state[weight]["step"] == 2
    (note,) = report.notes
    assert note.startswith(kind.split(".")[1]) and "was packed again, in other blocks" in note
    train(model, optimizer)
    assert is_finite(model)


@pytest.mark.parametrize("kind", ["torchao.AdamW8bit", "bitsandbytes.AdamW8bit"])
def test_state_is_packed_when_its_parameter_is_large_enough(kind):
    _, model, optimizer, grower = started(kind, width=64)
    weight, key = (
        model.get_parameter("2.weight"),
        "exp_avg" if kind.startswith("torchao") else "state1",
    )
    before = optimizer.state[weight][key]
    assert type(before) is torch.Tensor and before.dtype == torch.float32  # 32 × 32
    grower.grow()
    after = optimizer.state[weight][key]
    assert type(after) is not torch.Tensor or after.dtype == torch.uint8  # 64 × 64
    kept = numbers(optimizer, weight)[key][~grower.rings.mask("2.weight", 1)]
    torch.testing.assert_close(
        kept, before.flatten(), rtol=0.1, atol=float(before.abs().max()) / 99
    )


def test_what_a_user_keeps_in_32_bits_stays_there():
    manager = pytest.importorskip("bitsandbytes").optim.GlobalOptimManager.get_instance()
    _, model, optimizer, grower = started("bitsandbytes.AdamW8bit")
    weight = model.get_parameter("2.weight")
    try:
        manager.override_config(weight, "optim_bits", 32)
        optimizer.state[weight].clear()
        train(model, optimizer)
        before = optimizer.state[weight]["state1"].clone()
        grower.grow()
        after = optimizer.state[weight]["state1"]
        assert torch.equal(after[~grower.rings.mask("2.weight", 1)], before.flatten())
        train(model, optimizer)
    finally:
        manager.initialize()


def test_ademamix_is_refused_by_name_then_reset():
    _, model, optimizer, grower = started("bitsandbytes.AdEMAMix8bit")
    before = snapshot(model, optimizer, grower)
    with pytest.raises(
        gr.GrowthError, match=r"of '0\.weight' in AdEMAMix8bit .*unknown_state='reset'"
    ):
        grower.grow()
    assert_same(before, snapshot(model, optimizer, grower))
    grower = gr.Grower(model, grower.plan, optimizer, unknown_state="reset")
    report = grower.grow()
    assert any("state of 5 parameters reset" in note for note in report.notes)
    train(model, optimizer)
    assert is_finite(model)


@pytest.mark.parametrize("kind", ["torchao.AdamW8bit", "bitsandbytes.AdamW8bit"])
def test_packed_state_is_saved_and_loaded(kind):
    plan, model, optimizer, grower = started(kind)
    grower.grow()
    file = io.BytesIO()
    torch.save([grower.state_dict(), model.state_dict(), optimizer.state_dict()], file)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    twin = plan.build_seed()
    other = optimizer_of(kind, twin.parameters())
    later = gr.Grower(twin, plan, other)
    later.load_state_dict(saved[0])
    twin.load_state_dict(saved[1])
    other.load_state_dict(saved[2])
    for net, one in ((model, optimizer), (twin, other)):
        torch.manual_seed(1)
        train(net, one)
    assert_same(dict(model.state_dict()), dict(twin.state_dict()))


def test_rings_for_a_packed_optimizer():
    _, model, optimizer, grower = started("bitsandbytes.AdamW8bit")
    gr.optim.with_rings(optimizer, rate_adaptation="norm")
    grower = gr.Grower(model, grower.plan, optimizer)
    grower.grow()
    train(model, optimizer)
    assert len(optimizer.rate_factors()["2.weight"]) == 2 and is_finite(model)


def test_rings_of_an_optimizer_that_calls_no_hooks_are_loaded():
    """bitsandbytes has a `load_state_dict` of its own, which says nothing to torch's hooks."""

    def ringed(params):
        optimizer = optimizer_of("bitsandbytes.AdamW8bit", params)
        return gr.optim.with_rings(optimizer, new_ring_rate=1.5, new_ring_warmup=8)

    plan, model, _, _ = started("bitsandbytes.AdamW8bit")
    optimizer = ringed(model.parameters())
    grower = gr.Grower(model, plan, optimizer)
    train(model, optimizer)
    grower.grow()
    train(model, optimizer)
    twin = plan.build_seed()
    other = ringed(twin.parameters())
    later = gr.Grower(twin, plan, other)
    with pytest.raises(InputError, match="the saved optimizer knows 2 rings, the model has 1"):
        other.load_state_dict(optimizer.state_dict())
    later.load_state_dict(grower.state_dict())
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    for net, one in ((model, optimizer), (twin, other)):
        torch.manual_seed(1)
        train(net, one)
    assert_same(dict(model.state_dict()), dict(twin.state_dict()))
    assert optimizer.state_dict()["param_groups"] == other.state_dict()["param_groups"]


class Strange(torch.Tensor):
    """A tensor of its own kind, which knows next to no operator."""

    @staticmethod
    def __new__(cls, shape):
        return torch.Tensor._make_wrapper_subclass(cls, shape)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(f"unimplemented operator: {func}")


class WithStrange(torch.optim.SGD):
    """Keeps its momentum in such a tensor."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("strange", Strange(p.shape))
        return super().step(closure)


def test_a_tensor_of_an_unknown_kind_is_refused_by_name_then_reset():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    plan = gr.plan(net, torch.ones(1, 4), stages=2)
    model = plan.build_seed()
    optimizer = WithStrange(model.parameters(), lr=0.1)
    grower = gr.Grower(model, plan, optimizer)
    optimizer.step()
    with pytest.raises(
        gr.GrowthError, match=r"state 'strange' of '0\.weight' in WithStrange is a Strange"
    ):
        grower.grow()
    gr.Grower(model, plan, optimizer, unknown_state="reset").grow()
    assert model[0].out_features == 8
