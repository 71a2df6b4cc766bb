"""Growing under DistributedDataParallel: two processes are one, or neither has grown."""

import contextlib
import copy
import os
import re

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import growthring as gr
import growthring.distributed.wrapping as wrapping_module
import growthring.growing.stage as stage_module
import growthring.growing.subjects as subjects_module
from growthring.errors import GrowthError
from tests.distributed_helpers import Processes, on_ranks

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


def orthogonal(rank, size, bucket_views):
    """A run with dynamic OSGD; its weights, and the last old gradient."""
    plan = planned()
    model = plan.build_seed()
    options = {"gradient_as_bucket_view": bucket_views}
    trained = DistributedDataParallel(model, **options) if size > 1 else model
    stepper = OPTIMIZERS["SGD"](model.parameters())
    batches = [(data(step)[rank::size], None) for step in (50, 51)]
    osgd = gr.DynamicOSGD(trained, stepper, lambda out, _: out.square().mean(), batches)
    generator = torch.Generator().manual_seed(5)
    grower = gr.Grower(trained, plan, stepper, generator=generator, osgd=osgd)
    for step in range(STEPS):
        stepper.zero_grad()
        trained(data(step)[rank::size]).square().mean().backward()
        stepper.step()
        grower.step()
    return weights(model), osgd.old_gradient


def orthogonal_on_two(rank, bucket_views):
    return orthogonal(rank, 2, bucket_views)


@pytest.mark.parametrize("bucket_views", [False, True])
def test_dynamic_osgd_on_two_processes_is_that_of_one(bucket_views):
    one = orthogonal(0, 1, False)
    for both in on_ranks(orthogonal_on_two, bucket_views):
        for found, expected in zip(both, one, strict=True):
            assert found.keys() == expected.keys()
            for name, tensor in found.items():
                torch.testing.assert_close(tensor, expected[name], rtol=1e-10, atol=1e-10)


# Whatever happens, the processes stay one, and the wrapped object goes on averaging.


def same_everywhere(model):
    flat = torch.cat([t.detach().double().flatten() for t in model.state_dict().values()])
    everyone = [torch.empty_like(flat) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(everyone, flat)
    return all(torch.equal(flat, other) for other in everyone)


def one_step(rank, trained, stepper, seed=0, like=None):
    """A step on data that no other rank has."""
    generator = torch.Generator().manual_seed(77 * rank + seed)
    stepper.zero_grad()
    x = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    trained(x if like is None else x.to(like)).square().mean().backward()
    stepper.step()


def failing_once(function):
    """The function, which the first time raises; what undoes a growth may need it afterwards."""
    calls = []

    def failing(*args):
        calls.append(1)
        return function(*args) if len(calls) > 1 else 1 / 0

    return failing


def failing_growth(rank, culprits):
    """A growth that fails on some ranks, in several places; then one that does not."""
    trained, model, stepper, grower = train(rank, 2, until=1)
    kept, told = weights(model), []
    places = ((stage_module, "replay_of"), (stage_module, "grow_optimizers"))
    more = ((subjects_module, "tell_rings"), (wrapping_module, "renew"))
    for place, name in (*places, *more):
        with pytest.MonkeyPatch.context() as patch:
            if rank in culprits:
                patch.setattr(place, name, failing_once(getattr(place, name)))
            with pytest.raises(GrowthError) as failed:
                grower.grow()
        told.append(str(failed.value))
        assert all(torch.equal(t, kept[n]) for n, t in model.state_dict().items())
        one_step(rank, trained, stepper)  # averages: it would part the processes if it did not
        assert same_everywhere(model)
        kept = weights(model)
    assert grower.stage == 0
    grower.grow()
    one_step(rank, trained, stepper)
    assert same_everywhere(model)
    return told


@pytest.mark.parametrize("culprits", [(1,), (0,), (0, 1)])
def test_a_growth_that_fails_on_one_fails_on_all(culprits):
    for rank, told in enumerate(on_ranks(failing_growth, culprits)):
        who = "ranks 0 and 1" if len(culprits) == 2 else f"rank {culprits[0]}"
        for text in told:
            if rank in culprits:
                assert "ZeroDivisionError: division by zero" in text
            else:
                assert text.startswith(
                    f"{who} failed, so nothing was changed on any: ZeroDivisionError"
                )


def seeded_apart(rank):
    """A seed for each rank, as many scripts have: models, plans and generators begin different."""
    plan = planned(seed=rank)
    model = plan.build_seed()
    trained = DistributedDataParallel(model)
    stepper = OPTIMIZERS["AdamW"](model.parameters())
    torch.manual_seed(rank)
    grower = gr.Grower(trained, plan, stepper)
    for step in range(STEPS):
        one_step(rank, trained, stepper, seed=step)
        grower.step()
    return grower.is_full and same_everywhere(model)


def test_a_seed_for_each_rank_does_no_harm():
    assert on_ranks(seeded_apart) == [True, True]


def differing(rank, what):
    """What the Grower says where the second rank has something else."""
    options = {
        "widths": {"widths": {"0": [3, 9 - 3 * rank, 12]}},
        "stages": {"widths": {"0": [3, 12] if rank else [3, 6, 12]}, "stages": 3 - rank},
        "steps": {"total_steps": STEPS + 4 * rank},
    }
    plan = planned(**options.get(what, {}))
    model = plan.build_seed()
    if what == "class" and rank:
        model = type("Other", (nn.Sequential,), {})(*model)
    trained = DistributedDataParallel(model)
    stepper = OPTIMIZERS["AdamW" if what == "optimizer" and rank else "SGD"](model.parameters())
    if what == "weights" and rank:
        with torch.no_grad():
            model[3].weight[0, 0] += 1e-6
    generator = torch.Generator().manual_seed(rank) if what == "seed" else None
    try:
        gr.Grower(
            trained, plan if what != "nothing" or rank else None, stepper, generator=generator
        )
    except GrowthError as error:
        return str(error)
    return "made"


ON_BOTH = "{} on rank 0; {} on rank 1"


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("widths", f"differ in the widths of '0': {ON_BOTH}".format([3, 9, 12], [3, 6, 12])),
        ("stages", f"differ in the plan's stages: {ON_BOTH}".format(3, 2)),
        ("steps", f"differ in the plan's steps: {ON_BOTH}".format("(2, 6, 4)", "(3, 8, 5)")),
        ("class", "differ in the model's class: 'torch.nn.modules.container.Sequential' on rank 0"),
        ("optimizer", f"differ in the optimizers: {ON_BOTH}".format(["SGD"], ["AdamW"])),
        ("seed", f"differ in the generator's seed: {ON_BOTH}".format(0, 1)),
        (
            "weights",
            "when the Grower is made, rank 1 differs from rank 0 in '3.weight': the processes",
        ),
    ],
)
def test_processes_that_differ_are_named_on_every_rank(what, text):
    for told in on_ranks(differing, what):
        assert text in told, told


def test_a_grower_that_cannot_be_made_on_one_rank_is_made_on_none():
    first, second = on_ranks(differing, "nothing")
    assert "plan" in first
    assert second.startswith("rank 0 failed, so nothing was changed on any: ")


def test_drift_before_a_growth_is_named():
    for told in on_ranks(drifting):
        assert "before the growth, rank 1 differs from rank 0 in '0.weight'" in told


def drifting(rank):
    trained, _, stepper, grower = train(rank, 2, until=1)
    with trained.no_sync():
        one_step(rank, trained, stepper)
    with pytest.raises(GrowthError) as failed:
        grower.grow()
    assert grower.stage == 0
    return str(failed.value)


# What a DistributedDataParallel was asked for stays.


class Averaged:
    """Counts the buckets that a communication hook averages."""

    def __init__(self):
        self.count = 0


def averaging_hook(state, bucket):
    state.count += 1
    work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0] / 2)


def options_kept(rank, options, hooked, compiled):
    kept = []

    def wrap(model):
        kept.append(DistributedDataParallel(model, **options))
        if hooked:
            kept.append(Averaged())
            kept[0].register_comm_hook(kept[1], averaging_hook)
        return torch.compile(kept[0], backend="aot_eager") if compiled else kept[0]

    model = train(rank, 2, "SGD", wrap)[1]
    counts = [kept[1].count] if hooked else []
    return weights(model), kept[0].static_graph, kept[0].find_unused_parameters, *counts


@pytest.mark.parametrize(
    ("options", "hooked", "compiled"),
    [
        ({"gradient_as_bucket_view": True, "bucket_cap_mb": 1e-4}, False, False),
        ({"static_graph": True}, False, False),
        ({"find_unused_parameters": True}, True, False),
        pytest.param({}, False, True, marks=pytest.mark.slow),
    ],
)
def test_options_of_the_wrapper_outlive_a_growth(options, hooked, compiled):
    one = weights(train(0, 1, "SGD")[1])
    for both, is_static, finds_unused, *count in on_ranks(options_kept, options, hooked, compiled):
        for name, tensor in both.items():
            torch.testing.assert_close(tensor, one[name], rtol=1e-10, atol=1e-10)
        assert is_static is options.get("static_graph", False)
        assert finds_unused is options.get("find_unused_parameters", False)
        assert not hooked or count[0] >= STEPS


class Held(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


def attached(rank, holds):
    """The Grower before the wrapper: refused until it is told, and then as ever."""
    plan = planned()
    model = plan.build_seed()
    stepper = OPTIMIZERS["SGD"](model.parameters())
    grower = gr.Grower(model, plan, stepper, generator=torch.Generator().manual_seed(5))
    trained = DistributedDataParallel(Held(model) if holds else model)
    told = []
    for refused in (grower.grow, lambda: gr.Grower(model, plan, stepper)):
        with pytest.raises(GrowthError) as failed:
            refused()
        told.append(str(failed.value))
    with pytest.raises(GrowthError) as failed:
        grower.attach(plan.build_seed())
    told.append(str(failed.value))
    grower.attach(trained)
    for step in range(STEPS):
        stepper.zero_grad()
        trained(data(step)[rank::2]).square().mean().backward()
        stepper.step()
        grower.step()
    return weights(model), told


def frozen_for_a_while(rank, size, since):
    """The first layer is frozen when the model grows, and thawed after its last growth."""
    plan = planned()
    model = plan.build_seed()
    options = {"find_unused_parameters": True}
    trained = DistributedDataParallel(model, **options) if size > 1 else model
    stepper = OPTIMIZERS["SGD"](model.parameters())
    model[0].requires_grad_(since > 0)
    grower = gr.Grower(trained, plan, stepper, generator=torch.Generator().manual_seed(5))
    for step in range(STEPS):
        model[0].requires_grad_(step < since or grower.is_full)
        stepper.zero_grad()
        trained(data(step)[rank::size]).square().mean().backward()
        stepper.step()
        grower.step()
    return weights(model)


@pytest.mark.parametrize("since", [0, 2])
def test_what_was_frozen_at_a_growth_is_averaged_when_it_is_thawed(since):
    one = frozen_for_a_while(0, 1, since)
    for both in on_ranks(frozen_for_a_while, 2, since):
        for name, tensor in both.items():
            torch.testing.assert_close(tensor, one[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("holds", [False, True])
def test_a_model_that_is_wrapped_later_is_attached(holds):
    one = weights(train(0, 1, "SGD")[1])
    for both, (unknown, bare, other) in on_ranks(attached, holds):
        assert "gr.Grower(ddp_model, ...)" in unknown
        assert "call grower.attach(ddp_model)" in bare
        assert "does not hold the model that grows" in other
        for name, tensor in both.items():
            torch.testing.assert_close(tensor, one[name], rtol=1e-10, atol=1e-10)


class Normed(nn.Module):
    """Statistics of each rank's own data, a narrow channel that never varies, and a number that counts calls."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


def local_statistics(rank, method):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        full = Normed().double()
    plan = gr.plan(full, torch.randn(8, 6, dtype=torch.float64), stages=3, start=0.5, total_steps=9)
    model = plan.build_seed()
    trained = DistributedDataParallel(model)
    stepper = gr.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, state_at_growth="rescale")
    batches = [(torch.randn(4, 6, dtype=torch.float64) * (1 + rank), torch.zeros(4, 3).double())]
    average = torch.optim.swa_utils.AveragedModel(model)
    searches = method != "paired"
    grower = gr.Grower(
        trained,
        plan,
        stepper,
        method=method,
        averages=average,
        **({"batches": batches, "loss": nn.functional.mse_loss} if searches else {}),
    )
    for step in range(9):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(9 * rank + step))
        stepper.zero_grad()
        trained(x.double() * (1 + rank)).square().mean().backward()
        stepper.step()
        average.update_parameters(model)
        grower.step()
    assert grower.is_full
    assert same_everywhere(nn.ModuleList(model.children())[::2])
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize(
    "method", ["paired", "net2net", "splitting", "firefly", "gradmax", "random"]
)
@pytest.mark.each(3)
def test_what_depends_on_local_data_is_decided_once(method):
    first, second = on_ranks(local_statistics, method)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


REFUSED = {
    "mixed precision": r"\(mixed_precision\) keeps second copies of the parameters; use torch.autocast",
    "powersgd": r"'powerSGD_hook' keeps errors of the present shapes \(PowerSGDState\)",
    "twice": "wrapped in DistributedDataParallel twice",
    "join": "cannot grow inside of torch's Join",
    "thawed": "6 parameters were trained when this .* was made, and 8 are now.*wrap the model anew",
}


def refused_wrapper(rank, what):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel.distributed import _MixedPrecision

    plan = planned()
    model = plan.build_seed()
    options = {"mixed_precision": _MixedPrecision(param_dtype=torch.float32)}
    trained = DistributedDataParallel(model, **(options if what == "mixed precision" else {}))
    if what == "powersgd":
        trained.register_comm_hook(power.PowerSGDState(None), power.powerSGD_hook)
    if what == "thawed":
        model[0].requires_grad_(False)
        trained = DistributedDataParallel(model)
        model.requires_grad_(True)
    if what == "twice":
        trained = DistributedDataParallel(trained)
    with pytest.raises(GrowthError) as failed:
        grower = gr.Grower(trained, plan)
        with Join([trained]):
            grower.grow()
    return str(failed.value)


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.each(2)
def test_what_a_new_reducer_would_not_know_is_refused(what):
    for told in on_ranks(refused_wrapper, what):
        assert re.search(REFUSED[what], told), told


# A process that is gone.


def dying(rank, folder):
    _, model, _, grower = train(rank, 2, until=1)
    kept = weights(model)
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(stage_module, "grow_optimizers", lambda *_: os._exit(7))
        with pytest.raises(GrowthError) as failed:
            grower.grow()
    assert grower.stage == 0
    assert all(torch.equal(t, kept[n]) for n, t in model.state_dict().items())
    (folder / "told").write_text(str(failed.value))


def test_a_process_that_dies_ends_the_others(tmp_path):
    processes = Processes(2)
    try:
        with pytest.raises(AssertionError, match=r"^rank 1:\nended with exit code 7$"):
            processes.run(dying, tmp_path)
    finally:
        processes.stop()
    told = (tmp_path / "told").read_text()
    assert told.startswith("rank 0 lost another process (")
    assert "all of them have to call grower.step() equally often" in told
    assert "go on from the last checkpoint, with any number of processes" in told


# What is sent.


def messages(rank, count):
    """The kinds and sizes of the messages of a growth."""
    _, _, _, grower = train(rank, count, until=1)
    sent = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "broadcast", "all_gather", "gather"):
            plain = getattr(torch.distributed, name)

            def counted(tensor, *args, _name=name, _plain=plain, **kwargs):
                sent.append((_name, tensor.numel() if torch.is_tensor(tensor) else len(tensor)))
                return _plain(tensor, *args, **kwargs)

            patch.setattr(torch.distributed, name, counted)
            patch.setattr(torch.distributed.distributed_c10d, name, counted)
        grower.grow()
    return sent


@pytest.mark.slow
def test_messages_are_as_many_and_as_long_for_any_number_of_processes():
    two, three = (on_ranks(messages, count, count=count)[0] for count in (2, 3))
    assert two == three
    assert {name for name, _ in two} == {"all_reduce", "broadcast"}
    assert all(size <= 2 for name, size in two if name == "all_reduce")


# Resuming, and growing between two halves of a batch.


def go_on(rank, size, states, frm):
    """Takes up a run where it was saved, on any number of processes."""
    plan = planned()
    model = plan.build_seed()
    trained = DistributedDataParallel(model) if size > 1 else model
    stepper = OPTIMIZERS["AdamW"](model.parameters())
    grower = gr.Grower(trained, plan, stepper, generator=torch.Generator().manual_seed(5))
    # of its own: what came through a pipe is memory that the ranks share
    for each, state in zip((grower, model, stepper), copy.deepcopy(states), strict=True):
        each.load_state_dict(state)
    for step in range(frm, STEPS):
        stepper.zero_grad()
        trained(data(step)[rank::size]).square().mean().backward()
        stepper.step()
        grower.step()
    return weights(model)


def saved(rank, until):
    _, model, stepper, grower = train(rank, 2, "AdamW", until=until)
    return copy.deepcopy([each.state_dict() for each in (grower, model, stepper)])


@pytest.mark.parametrize("until", [5, 9])
@pytest.mark.each(2)
def test_a_run_goes_on_with_as_many_processes_or_with_one(until):
    states = on_ranks(saved, until)[0]
    whole = on_ranks(trained_weights, "AdamW")[0]
    for both in on_ranks(go_on, 2, states, until):
        assert all(torch.equal(tensor, whole[name]) for name, tensor in both.items())
    for name, tensor in go_on(0, 1, states, until).items():
        torch.testing.assert_close(tensor, whole[name], rtol=1e-10, atol=1e-10)


def accumulated(rank, size, options):
    plan = planned()
    model = plan.build_seed()
    trained = DistributedDataParallel(model, **options) if size > 1 else model
    stepper = OPTIMIZERS["SGD"](model.parameters())
    grower = gr.Grower(trained, plan, stepper, generator=torch.Generator().manual_seed(5), noise=0)
    for step in range(3):
        stepper.zero_grad()
        with trained.no_sync() if size > 1 else contextlib.nullcontext():
            trained(data(step)[rank::size]).square().mean().backward()
        if step:
            grower.grow()
        trained(data(100 + step)[rank::size]).square().mean().backward()
        stepper.step()
    return weights(model)


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}], ids=str)
@pytest.mark.each(2)
def test_a_growth_in_mid_accumulation(options):
    one = accumulated(0, 1, options)
    for both in on_ranks(accumulated, 2, options):
        for name, tensor in both.items():
            torch.testing.assert_close(tensor, one[name], rtol=1e-10, atol=1e-10)
