"""Growing under fully_shard through public functions alone: each growth makes a new model, the same bit for bit."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import growthring as gr
import growthring.growing.fresh as fresh_module
import growthring.growing.outcome as outcome_module
import growthring.growing.stage as stage_module
import growthring.growing.streaming as streaming
import growthring.growing.subjects as subjects_module
from growthring.distributed import fullyshard, publicly
from growthring.distributed.digests import digest_of
from growthring.errors import GrowthError
from growthring.graph import restore
from growthring.zoo import GPT
from tests.distributed.test_fsdp import (
    STEPS,
    Held,
    Net,
    all_say_who_failed,
    data,
    everything,
    failing_later,
    planned,
    sharded,
    step_on,
    whole,
)
from tests.distributed_helpers import on_ranks

OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rings": lambda p: gr.optim.AdamW(p, lr=0.01, rate_adaptation="norm"),
}


def begun(optimizer="AdamW", is_public=True):
    """A seed in shards, and what trains and grows it."""
    mesh = init_device_mesh("cpu", (2,))

    def shard(model):
        return sharded(model, mesh)

    plan = planned()
    model = shard(plan.build_seed())
    model.norm.eval()
    stepper = OPTIMIZERS[optimizer](model.parameters())
    draw = torch.Generator().manual_seed(5)
    given = {"shard": shard} if is_public else {}
    return stepper, gr.Grower(model, plan, stepper, fade=0.5, generator=draw, noise=0.1, **given)


def train(rank, stepper, grower, steps=range(STEPS)):
    """Steps of two processes; the changes that growths measured."""
    changes = []
    for step in steps:
        stepper.zero_grad()
        grower.model(data(step)[rank::2]).square().mean().backward()
        stepper.step()
        report = grower.step()
        if report.growth:
            changes.append(report.growth.change.relative)
    return changes


def forbidden(*args, **kwargs):
    raise AssertionError("a private part of torch")


def of_nobody(model):
    assert not fullyshard.is_fully_sharded(model) or publicly.is_public(model)
    return []


def both_ways(rank, optimizer):
    stepper, grower = begun(optimizer, is_public=False)
    changes = train(rank, stepper, grower)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_check_parts", "_refit", "_forget_whole"):
            patch.setattr(fullyshard, name, forbidden)
        patch.setattr(fullyshard, "states_of", of_nobody)
        patch.setattr(restore, "set_shard", forbidden)
        other, fresh = begun(optimizer)
        fresh.model.gain *= 1.0
        fresh.model.note = "kept"
        assert train(rank, other, fresh) == changes
    assert fresh.is_complete and grower.is_complete and fresh.model.note == "kept"
    one, two = whole(grower.model), whole(fresh.model)
    assert one.keys() == two.keys()
    assert all(torch.equal(t, two[n]) for n, t in one.items())
    assert list(fresh.model.state_dict()) == list(grower.model.state_dict())
    held = [id(p) for group in other.param_groups for p in group["params"]]
    assert held == [id(p) for p in fresh.model.parameters()]


@pytest.mark.parametrize("optimizer", ["rings", pytest.param("AdamW", marks=pytest.mark.slow)])
def test_a_run_is_that_of_growing_in_place_bit_for_bit(optimizer):
    """Which is that of a single process (test_fsdp.py); and nothing reaches into FSDP's own objects."""
    on_ranks(both_ways, optimizer)


def failing_growth(rank, culprit):
    """A growth that fails on one rank, in several places; then one that does not; what is left of the old model."""
    stepper, grower = begun("rings")
    model = grower.model
    step_on(rank, model, stepper)
    objects, told = {name: id(p) for name, p in model.named_parameters()}, []
    places = ((stage_module, "replay_of"), (streaming, "shard_like"), (fresh_module, "_blank"),
              (fresh_module, "_cut"), (fresh_module, "check_kinds"), (fresh_module, "move_parameters"),
              (stage_module, "grow_optimizers"), (subjects_module, "tell_rings"),
              (outcome_module, "run"))  # fmt: skip
    for place, name in places:
        before = everything(model, stepper)
        with pytest.MonkeyPatch.context() as patch:
            if rank == culprit:
                calls = 3 if place is streaming else 0
                patch.setattr(place, name, failing_later(getattr(place, name), calls))
            with pytest.raises(GrowthError) as failed:
                grower.grow()
        told.append(str(failed.value))
        after = everything(model, stepper)
        assert grower.model is model and grower.stage == 0
        assert objects == {name: id(p) for name, p in model.named_parameters()}
        assert after.keys() == before.keys()
        assert all(torch.equal(after[n], before[n]) for n in after)
        step_on(rank, model, stepper)
    loss = model(data(0)).square().mean()
    grower.grow()
    new = grower.model
    uses = (
        loss.backward,
        lambda: model(data(0)),
        lambda: model.parameters(),
        lambda: model.state_dict(),
        lambda: model.train(),
    )
    for use in uses:
        with pytest.raises(
            GrowthError, match=r"has grown into a new one .* model = grower\.model\."
        ):
            use()
    step_on(rank, new, stepper)
    assert repr(model) == "Outgrown()"
    return told


@pytest.mark.parametrize("culprit", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_growth_that_fails_on_one_leaves_nothing_on_any(culprit):
    all_say_who_failed(on_ranks(failing_growth, culprit), culprit)


def refused(rank):
    told = {}

    def note(what, act):
        with pytest.raises(GrowthError) as failed:
            act()
        told[what] = str(failed.value)

    plan, mesh = planned(), init_device_mesh("cpu", (2,))
    seed = sharded(plan.build_seed(), mesh)
    note("no function", lambda: gr.Grower(seed, plan, shard=mesh))
    note("not cut", lambda: gr.Grower(plan.build_seed(), plan, shard=fully_shard))
    compiled = torch.compile(seed, backend="eager")
    note("wrapped", lambda: gr.Grower(compiled, plan, shard=fully_shard))
    average = sharded(plan.build_seed(), mesh)
    note("averages", lambda: gr.Grower(seed, plan, shard=fully_shard, averages=average))

    def growing(shard, done=lambda model, optimizer: None):
        """A growth of a model to which `shard` is done, after it was begun with another function."""
        model = sharded(plan.build_seed(), mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        grower = gr.Grower(model, plan, optimizer, shard=shard)
        done(model, optimizer)
        return grower.grow

    def apart(model, optimizer):
        model.set_requires_gradient_sync(False)
        model(data(0)).square().mean().backward()

    def usual(model):
        sharded(model, mesh)

    def last_alone(model):
        fully_shard(model.last, mesh=mesh)

    def hook(*_):
        return None

    class Holder:
        def __init__(self, model):
            self.model = model

    note("another", growing(lambda model: nn.Sequential(sharded(model, mesh))))
    note("elsewhere", growing(last_alone))
    note("modules", growing(lambda model: setattr(model, "more", nn.ReLU())))
    note("apart", growing(usual, apart))
    note("hooks", growing(usual, lambda m, o: m.blocks[1].register_forward_hook(hook)))
    note("hooked", growing(usual, lambda m, o: m.last.bias.register_hook(hook)))
    note("compiled", growing(usual, lambda m, o: m.last.compile(backend="eager")))
    note("unit", growing(lambda model: fully_shard(model, mesh=mesh)))
    note("held", growing(usual, lambda m, o: setattr(m.norm, "holder", Holder(m))))
    note("tensors", growing(usual, lambda m, o: m.register_buffer("extra", torch.ones(1))))
    note("hidden", growing(usual, lambda m, o: setattr(o, "mine", [m.last.bias])))
    growing(usual)()
    return told


def test_what_cannot_grow_is_refused():
    texts = {
        "no function": r"shard is a DeviceMesh; pass the function that cuts a plain model",
        "not cut": r"shard= is given, and the model is not cut by fully_shard: .* it was called on\.",
        "wrapped": r"shard= is given, and the model is wrapped: ",
        "averages": r"an average of the model is cut by fully_shard, and with shard= .* or average at the end\.",
        "another": r"shard returned another Sequential than it was given: it has to change that one in place",
        "elsewhere": r"shard spread 'first\.weight' of the new model in another way than it is spread now: whole, ",
        "modules": r"shard gave the model other modules \('more'\), .* modules in place\.",
        "apart": r"'[a-z0-9.]+' holds a gradient that was not reduced yet \(set_requires_gradient_sync\(False\)\)",
        "hooks": r"'blocks\.1' has hooks: a growth with shard= makes a new model, .* Do it there\.",
        "hooked": r"'last' has parameters with hooks: ",
        "compiled": r"'last' was compiled: ",
        "unit": r"'blocks.0' is a FSDPBlock, and shard makes a Block of a new one: ",
        "held": r"'holder' of 'norm' holds a Holder that refers to the model, and .* in another way\.",
        "tensors": r"the model has other tensors than a new one of its plan \('extra'\): .* before gr\.plan\.",
        "hidden": r"SGD\.mine holds parameters of the model, .* look them up in param_groups\.",
    }
    for told in on_ranks(refused):
        assert told.keys() == texts.keys()
        for what, text in texts.items():
            assert re.search(text, told[what]), told[what]


def held(rank):
    """Bytes: the peak of a growth, all weights before and after, the largest one, what digests always need."""
    net = Net(width=192, inner=(192,) * 6).double()
    plan = gr.plan(net, torch.ones(2, 6, dtype=torch.float64), stages=2, start=0.25, total_steps=4)
    mesh = init_device_mesh("cpu", (2,))

    def shard(model):
        return sharded(model, mesh)

    stepper = OPTIMIZERS["AdamW"]((model := shard(plan.build_seed())).parameters())
    grower = gr.Grower(model, plan, stepper, shard=shard)
    step_on(rank, model, stepper)
    stepper.zero_grad()
    digest_of(torch.zeros(1 << 18))
    before = sum(p.numel() * 8 for p in model.parameters())
    with Held() as counted:
        grower.grow()
        left = counted.count()
    sizes = [p.numel() * 8 for p in grower.model.parameters()]
    return counted.peak, left, before, sum(sizes), max(sizes), 2 * 8 * (1 << 16)


@pytest.mark.slow
def test_no_process_holds_a_whole_model():
    """The same bound as in place; and nothing is left of the old model, though its name lives on."""
    for peak, left, before, after, largest, digests in on_ranks(held):
        own = 3 * (before + after) / 2  # weights and the two moments, before and after
        assert own < peak - digests < own + 6 * largest
        assert peak - digests < 0.8 * 3 * after  # the whole model and its optimizer's state
        assert left - digests < 3 * after / 2 + largest


def resumed(rank):
    """A run that goes on in new objects from what was saved of the old ones, and one that just goes on."""
    stepper, grower = begun("rings")
    train(rank, stepper, grower, range(4))
    saved = copy.deepcopy([each.state_dict() for each in (grower, grower.model, stepper)])
    assert grower.fading_norms
    other, again = begun("rings")
    again.load_state_dict(saved[0])
    again.model.load_state_dict(saved[1])
    other.load_state_dict(saved[2])
    assert again.fading_norms == grower.fading_norms
    for steps, growing in ((stepper, grower), (other, again)):
        train(rank, steps, growing, range(4, STEPS))
    first, second = whole(grower.model), whole(again.model)
    return all(torch.equal(t, second[n]) for n, t in first.items())


def in_mid_accumulation(rank, is_public):
    stepper, grower = begun("AdamW", is_public)
    for step in range(3):
        stepper.zero_grad()
        grower.model(data(step)[rank::2]).square().mean().backward()
        if step:
            grower.grow()
        grower.model(data(100 + step)[rank::2]).square().mean().backward()
        stepper.step()
    return whole(grower.model)


def language(rank, is_public):
    """A GPT from a factory whose output layer shares its weight with the embedding."""
    mesh = init_device_mesh("cpu", (2,))

    def shard(model):
        return sharded(model, mesh)

    def build(width):
        return GPT(11, 6, 2, 2, width, generator=torch.Generator().manual_seed(0)).double()

    words = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(1))
    plan = gr.plan(build(16), words[:1], stages=3, start=0.3, total_steps=6)
    model = shard(plan.build_seed())
    stepper = OPTIMIZERS["AdamW"](model.parameters())
    draw = torch.Generator().manual_seed(5)
    options = {"shard": shard} if is_public else {}
    grower = gr.Grower(model, plan, stepper, generator=draw, **options)
    for _ in range(6):
        stepper.zero_grad()
        grower.model(words[rank::2]).square().mean().backward()
        stepper.step()
        grower.step()
    assert grower.is_full
    return whole(grower.model)


def in_low_precision(rank):
    net, mesh = Net(), init_device_mesh("cpu", (2,))
    net.norm = nn.Identity()
    plan = gr.plan(net, torch.ones(2, 6), stages=2, start=0.3, total_steps=6)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def shard(model):
        return sharded(model, mesh, mp_policy=policy)

    grower = gr.Grower(shard(plan.build_seed()), plan, shard=shard)
    report = grower.grow()
    assert report.change is None
    assert all(p.dtype == torch.float32 for p in grower.model.parameters())
    assert grower.model(data(0).float()).dtype == torch.bfloat16
    return list(report.notes)


def more_ways(rank):
    assert resumed(rank)
    for run in (in_mid_accumulation, language):
        one, two = run(rank, False), run(rank, True)
        assert one.keys() == two.keys()
        assert all(torch.equal(t, two[n]) for n, t in one.items()), run
    return in_low_precision(rank)


@pytest.mark.slow
def test_more_ways():
    """Saved runs, halves of a batch, tied weights, and a policy of mixed precision."""
    for notes in on_ranks(more_ways):
        assert any(
            "outputs were not compared: the model computes in torch.bfloat16" in n for n in notes
        )
