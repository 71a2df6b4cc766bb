"""Growing under fully_shard (FSDP2): shards grow in place, and two processes are one."""

import copy
import re
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import growthring as gr
import growthring.growing.outcome as outcome_module
import growthring.growing.stage as stage_module
import growthring.growing.streaming as streaming
import growthring.growing.subjects as subjects_module
import growthring.methods.paired as paired_module
from growthring.distributed import fullyshard
from growthring.distributed.digests import digest_of
from growthring.distributed.shards import gathered, local_of, shard_like
from growthring.errors import GrowthError
from growthring.methods import Paired
from growthring.zoo import GPT
from tests.distributed_helpers import on_ranks

STEPS, BATCH = 12, 8
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "gr.SGD": lambda p: gr.optim.SGD(p, lr=0.05, momentum=0.9, rate_adaptation="norm"),
    "gr.AdamW": lambda p: gr.optim.AdamW(p, lr=0.01, rate_adaptation="norm", ages="ring"),
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
    def __init__(self, width=10, inner=(14, 7)):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first = nn.Linear(6, width)
            self.blocks = nn.ModuleList(Block(width, n) for n in inner)
            self.norm = nn.BatchNorm1d(width)
            self.last = nn.Linear(width, 3)
        self.register_buffer("gain", torch.ones(6), persistent=False)

    def forward(self, x):
        x = self.first(x * self.gain.to(x.dtype))
        for block in self.blocks:
            x = block(x)
        return self.last(self.norm(x))


def data(step):
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)


def planned():
    example = torch.ones(2, 6, dtype=torch.float64)
    return gr.plan(Net().double(), example, stages=3, start=0.3, round_to=1, total_steps=STEPS)


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


def train(rank, size, optimizer="SGD", until=STEPS, mesh=None, **options):
    """A run through two growths; `rank` of `size` processes, which share each batch."""
    plan = planned()
    model = plan.build_seed()
    model.norm.eval()
    if size > 1:
        sharded(model, mesh or init_device_mesh("cpu", (size,)), **options)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    draw = torch.Generator().manual_seed(5)
    grower = gr.Grower(model, plan, stepper, fade=0.5, generator=draw)
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


KEPT = {"reshard_after_forward": False}
slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [("AdamW", {}), *map(slow, ("SGD", "gr.SGD", "gr.AdamW"), [{}] * 3), slow("AdamW", KEPT)],
    ids=str,
)
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
            p.grad = shard_like(p, torch.randn(p.shape, generator=make, dtype=p.dtype))
    stepper.step()
    stepper.step()
    report = grower.grow()
    parts = whole(model)
    for name, p in model.named_parameters():
        parts[f"gradient of {name}"] = gathered(p.grad)
        for key, value in stepper.state[p].items():
            parts[f"{key} of {name}"] = gathered(value) if torch.is_tensor(value) else value
    return parts, report.change.relative, grower.generator.get_state()


@pytest.mark.parametrize(("optimizer", "noise"), [("AdamW", 0.1), slow("SGD", 0.0)])
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


def all_say_who_failed(everyone, culprit):
    for rank, told in enumerate(everyone):
        for text in told:
            if rank == culprit:
                assert "ZeroDivisionError: division by zero" in text
            else:
                assert text.startswith(
                    f"rank {culprit} failed, so nothing was changed on any: Zero"
                )


@pytest.mark.parametrize("culprit", [1, slow(0)])
def test_a_growth_that_fails_on_one_leaves_nothing_on_any(culprit):
    all_say_who_failed(on_ranks(failing_growth, culprit), culprit)


# How much of a model one process holds meanwhile.


class Held(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive, after every operation."""

    def __init__(self):
        super().__init__()
        self.live, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((result, args)):
            local = local_of(tensor) if torch.is_tensor(tensor) else None
            if type(local) in (torch.Tensor, nn.Parameter) and local.device.type != "meta":
                storage = local.untyped_storage()
                self.live.setdefault(storage._cdata, StorageWeakRef(storage))
        self.peak = max(self.peak, self.count())
        return result

    def count(self):
        total = 0
        for key, weak in list(self.live.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(weak.cdata)
            if storage is None:
                del self.live[key]
            else:
                total += storage.nbytes()
        return total


def held(rank):
    """Bytes: the peak of a growth, all weights before and after, the largest one, what digests always need."""
    net = Net(width=192, inner=(192,) * 6).double()
    plan = gr.plan(net, torch.ones(2, 6, dtype=torch.float64), stages=2, start=0.25, total_steps=4)
    model = sharded(plan.build_seed(), init_device_mesh("cpu", (2,)))
    stepper = OPTIMIZERS["AdamW"](model.parameters())
    grower = gr.Grower(model, plan, stepper)
    step_on(rank, model, stepper)
    stepper.zero_grad()
    digest_of(torch.zeros(1 << 18))
    before = sum(p.numel() * 8 for p in model.parameters())
    with Held() as counted:
        grower.grow()
    sizes = [p.numel() * 8 for p in model.parameters()]
    return counted.peak, before, sum(sizes), max(sizes), 2 * 8 * (1 << 16)


@pytest.mark.slow
def test_no_process_holds_a_whole_model():
    """Two processes: half of all before and after, and a few tensors; the whole would be four times a weight's."""
    for peak, before, after, largest, digests in on_ranks(held):
        own = 3 * (before + after) / 2  # weights and the two moments, before and after
        assert own < peak - digests < own + 6 * largest
        assert peak - digests < 0.8 * 3 * after  # the whole model and its optimizer's state


# What else fully_shard can be asked for.


def over_axes(rank):
    """Hybrid sharding: replicated over one axis of the mesh, cut along the other."""
    results = []
    for shape in ((1, 2), (2, 1)):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "parts"))
        results.append(whole(train(rank, 2, "AdamW", mesh=mesh)[0]))
    return results


@pytest.mark.slow
def test_hybrid_sharding():
    one = whole(train(0, 1, "AdamW")[0])
    for results in on_ranks(over_axes):
        for both in results:
            for name, tensor in both.items():
                torch.testing.assert_close(tensor, one[name], rtol=1e-10, atol=1e-10)


def in_low_precision(rank):
    net = Net()
    net.norm = nn.Identity()
    plan = gr.plan(net, torch.ones(2, 6), stages=3, start=0.3, total_steps=6)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(plan.build_seed(), init_device_mesh("cpu", (2,)), mp_policy=policy)
    stepper = torch.optim.AdamW(model.parameters(), lr=0.01)
    grower, changes = gr.Grower(model, plan, stepper), []
    for step in range(6):
        y = model(data(step)[rank::2].float())
        assert y.dtype == torch.bfloat16
        y.float().square().mean().backward()
        stepper.step()
        stepper.zero_grad()
        report = grower.step()
        if report.growth:
            changes.append(report.growth.change.relative)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    return changes


@pytest.mark.slow
def test_a_policy_of_mixed_precision_is_kept():
    """And a growth is measured in the precision of the weights: in bfloat16 it would show by 1e-2."""
    for changes in on_ranks(in_low_precision):
        assert len(changes) == 2 and max(changes) < 1e-5


def by_methods(rank, size):
    results = {}
    for method in ("net2net", "random", Paired("constraint")):
        model = planned().build_seed()
        if size > 1:
            sharded(model, init_device_mesh("cpu", (size,)))
        draw = torch.Generator().manual_seed(3)
        grower = gr.Grower(model, planned(), method=method, generator=draw, noise=0.05)
        grower.grow()
        grower.grow()
        results[str(method)] = whole(model)
    return results


@pytest.mark.slow
def test_methods_grow_shards_as_they_grow_whole_tensors():
    one = by_methods(0, 1)
    for both in on_ranks(by_methods, 2):
        for method, tensors in both.items():
            assert all(torch.equal(t, one[method][n]) for n, t in tensors.items()), method


def in_mid_accumulation(rank, size):
    model = planned().build_seed()
    model.norm.eval()
    if size > 1:
        sharded(model, init_device_mesh("cpu", (size,)))
    stepper = OPTIMIZERS["SGD"](model.parameters())
    grower = gr.Grower(
        model, planned(), stepper, generator=torch.Generator().manual_seed(5), noise=0
    )
    for step in range(3):
        stepper.zero_grad()
        model(data(step)[rank::size]).square().mean().backward()
        if step:
            grower.grow()
        model(data(100 + step)[rank::size]).square().mean().backward()
        stepper.step()
    return whole(model)


@pytest.mark.slow
def test_a_growth_between_two_halves_of_a_batch():
    one = in_mid_accumulation(0, 1)
    for both in on_ranks(in_mid_accumulation, 2):
        for name, tensor in both.items():
            torch.testing.assert_close(tensor, one[name], rtol=1e-10, atol=1e-10)


def language(rank, size):
    """A GPT whose output layer shares its weight with the embedding."""

    def build(width):
        return GPT(11, 6, 2, 2, width, generator=torch.Generator().manual_seed(0)).double()

    words = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(1))
    plan = gr.plan(build(16), words[:1], stages=3, start=0.3, total_steps=6)
    model = plan.build_seed()
    if size > 1:
        sharded(model, init_device_mesh("cpu", (size,)))
    stepper = OPTIMIZERS["AdamW"](model.parameters())
    draw = torch.Generator().manual_seed(5)
    grower = gr.Grower(model, plan, stepper, generator=draw)
    for _ in range(6):
        stepper.zero_grad()
        model(words[rank::size]).square().mean().backward()
        stepper.step()
        grower.step()
    assert grower.is_full
    return whole(model)


@pytest.mark.slow
def test_a_language_model_with_tied_weights():
    one = language(0, 1)
    for both in on_ranks(language, 2):
        for name, tensor in both.items():
            torch.testing.assert_close(tensor, one[name], rtol=1e-10, atol=1e-10)


def resumed(rank):
    """A run that goes on in new objects from what was saved of the old ones, and one that just goes on."""
    model, stepper, grower = train(rank, 2, "AdamW", until=4)
    saved = copy.deepcopy([each.state_dict() for each in (grower, model, stepper)])
    fresh = planned().build_seed()
    fresh.norm.eval()
    sharded(fresh, init_device_mesh("cpu", (2,)))
    other = OPTIMIZERS["AdamW"](fresh.parameters())
    again = gr.Grower(fresh, planned(), other, fade=0.5)
    for each, state in zip((again, fresh, other), saved, strict=True):
        each.load_state_dict(state)
    assert again.fading_norms == grower.fading_norms and again.fading_norms
    for one, steps, growing in ((model, stepper, grower), (fresh, other, again)):
        for step in range(4, STEPS):
            steps.zero_grad()
            one(data(step)[rank::2]).square().mean().backward()
            steps.step()
            growing.step()
    first, second = whole(model), whole(fresh)
    return all(torch.equal(t, second[n]) for n, t in first.items())


@pytest.mark.slow
def test_a_run_goes_on_from_what_was_saved():
    assert on_ranks(resumed) == [True, True]


def with_averages(rank):
    """Averages of a sharded model, one in shards and one whole, take the same steps; blocks may be compiled."""
    plan = planned()
    model, spread, plain = (plan.build_seed() for _ in range(3))
    for block in model.blocks:
        block.compile(backend="eager")
    mesh = init_device_mesh("cpu", (2,))
    sharded(model, mesh)
    sharded(spread, mesh)
    stepper = OPTIMIZERS["SGD"](model.parameters())
    grower = gr.Grower(model, plan, stepper, averages=[spread, plain])
    grower.grow()
    grower.grow()
    step_on(rank, spread, torch.optim.SGD(spread.parameters(), lr=0.0))
    step_on(rank, model, torch.optim.SGD(model.parameters(), lr=0.0))
    parts = [
        {n: t for n, t in whole(m).items() if "norm.running" not in n}
        for m in (model, spread, plain)
    ]
    return all(
        torch.equal(t, other[n]) for other in parts for n, t in parts[0].items() if "num_b" not in n
    )


@pytest.mark.slow
def test_averages_take_the_same_steps():
    assert on_ranks(with_averages) == [True, True]


# Refused.


def refused(rank):
    mesh, told = init_device_mesh("cpu", (2,)), {}

    def note(what, act):
        with pytest.raises(GrowthError) as failed:
            act()
        told[what] = str(failed.value)

    plan = planned()
    model, _, grower = train(rank, 2, until=1)
    loss = model(data(0)).square().mean()
    note("a loss is open", grower.grow)
    loss.backward()
    model.set_requires_gradient_sync(False)
    model(data(0)).square().mean().backward()
    note("gradients are apart", grower.grow)
    model.set_requires_gradient_sync(True)
    model(data(0)).square().mean().backward()
    with torch.no_grad():
        model(data(0))  # an evaluation leaves the root gathered
    grower.grow()

    def seed(**options):
        return sharded(plan.build_seed(), mesh, **options)

    model = plan.build_seed()
    early = OPTIMIZERS["SGD"](model.parameters())
    sharded(model, mesh)
    note("an optimizer from before", lambda: gr.Grower(model, plan, early))
    offload = seed(offload_policy=CPUOffloadPolicy(pin_memory=False))
    note("offload", lambda: gr.Grower(offload, plan))
    by_columns = seed(shard_placement_fn=lambda p: Shard(1) if p.shape[1:] == (2,) else None)
    note("uneven", lambda: gr.Grower(by_columns, plan))
    note("searching", lambda: gr.Grower(seed(), plan, method="firefly", batches=[1], loss=len))
    changed = seed()
    states = fullyshard.states_of(changed)
    del states[0]._fsdp_param_groups[0].fsdp_params[0].padded_sharded_param_size
    note("another torch", lambda: gr.Grower(changed, plan))
    spread = plan.build_seed()
    parallelize_module(spread.last, mesh, ColwiseParallel())
    note("tensor parallel", lambda: gr.Grower(spread, plan))
    fully_shard(spread.blocks[0], mesh=mesh)
    note("both", lambda: gr.Grower(spread, plan))
    return told


def test_what_cannot_grow_is_refused():
    texts = {
        "a loss is open": r"a backward pass that is still to come holds 'norm.weight' as a whole.* Grow after",
        "gradients are apart": r"'first.weight' holds a gradient that was not reduced yet \(set_requires_grad",
        "an optimizer from before": r"SGD holds parameters that the model has not: .* after fully_shard: Opt",
        "offload": r"'first.weight' is offloaded to the CPU.* leave CPUOffloadPolicy out\.",
        "uneven": r"' is cut along axis 1 \(shard_placement_fn\), which has \d entries at stage \d: .*round_to=2",
        "searching": r"method 'firefly' searches on copies of the model.*Use 'paired', 'net2net' or 'random'\.",
        "another torch": r"fully_shard of torch 2.* has no FSDPParam.padded_sharded_param_size: .* in place\.",
        "tensor parallel": r"parameter 'last.weight' is a DTensor, a tensor made of others",
        "both": r"parameter 'last.weight' is a DTensor that fully_shard does not own .* by fully_shard alone\.",
    }
    for told in on_ranks(refused):
        assert told.keys() == texts.keys()
        for what, text in texts.items():
            assert re.search(text, told[what]), told[what]
