"""A loop of Accelerate's own kind grows: prepared before or after, accumulated, resumed, on two processes."""

import copy
import itertools
import os
import shutil

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.errors import GrowthError, InputError, UnsupportedModelError
from tests.discovered import discovered_once as discovered_once
from tests.distributed_helpers import on_ranks
from tests.integrations.nets import ByHand, data, net

accelerate = pytest.importorskip("accelerate")
prepare = pytest.importorskip("growthring.integrations.accelerate").prepare

STEPS, CROSS = 24, nn.CrossEntropyLoss()
OPTIMIZERS = {
    "gr.AdamW": lambda ps: gr.optim.AdamW(ps, lr=1e-2),
    "gr.SGD": lambda ps: gr.optim.SGD(ps, lr=1e-2, momentum=0.9),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-2),
    "fused AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-2, fused=True),
    "RMSprop": lambda ps: gr.optim.with_rings(torch.optim.RMSprop(ps, lr=1e-3), rate_adaptation="norm"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_state():
    """Accelerate keeps its settings for a whole process."""
    accelerate.state.AcceleratorState._reset_state(True)
    yield
    accelerate.state.AcceleratorState._reset_state(True)


def planned(dtype=torch.float32, **options):
    inputs = torch.randn(2, 4, dtype=dtype)
    return gr.plan(net().to(dtype), inputs, **{"total_steps": STEPS, "stages": 3, **options})


class Run:
    """A training script as the documents of Accelerate have it."""

    def __init__(self, plan, make="gr.AdamW", order="before", accumulate=1, per=1, **settings):
        torch.manual_seed(3)
        self.accelerator = accelerate.Accelerator(
            cpu=True, gradient_accumulation_steps=accumulate, **settings
        )
        model = plan.build_seed()
        optimizer = OPTIMIZERS[make](model.parameters())
        # per: processes of the run that this one, alone, does the work of
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 - n * per / (2 * STEPS))
        rows = data(dtype=next(model.parameters()).dtype)
        batch = torch.utils.data.DataLoader(rows, batch_size=8 * per)
        options = {"generator": torch.Generator().manual_seed(5), "fade": 0.9}
        if order == "grower first":
            grower = gr.Grower(model, plan, optimizer, **options)
        prepared = self.accelerator.prepare(model, optimizer, rate, batch)
        self.model, self.optimizer, self.scheduler, self.batches = prepared
        if order == "before":
            grower = gr.Grower(self.model, plan, self.optimizer, **options)
        elif order == "inner":
            grower = gr.Grower(self.model, plan, self.optimizer.optimizer, **options)
        self.grower = grower
        self.growth = prepare(self.accelerator, grower)
        self.reports = []

    def train(self, first, last):
        """The micro-batches from `first` up to `last`."""
        endless = itertools.chain.from_iterable(itertools.repeat(self.batches))
        for x, y in itertools.islice(endless, first, last):
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(CROSS(self.model(x), y))
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
                self.reports.append(self.growth.step())
        return self

    @property
    def weights(self):
        return {k: v.clone() for k, v in self.grower.model.state_dict().items()}


def same(one, other):
    a, b = one.weights, other.weights
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different
    states = [copy.deepcopy(run.grower.optimizers[0].state_dict()) for run in (one, other)]
    for p, state in states[0]["state"].items():
        for key, value in state.items():
            there = states[1]["state"][p][key]
            assert torch.equal(value, there) if isinstance(value, torch.Tensor) else value == there
    assert states[0]["param_groups"] == states[1]["param_groups"]


def test_a_prepared_loop_grows_and_resumes_bit_for_bit_in_a_stage_and_in_a_fade(tmp_path):
    plan = planned()
    whole = Run(plan).train(0, STEPS)
    assert whole.grower.is_complete
    assert [bool(r.growth) for r in whole.reports].count(True) == 2
    cut = plan.stage_steps[0] + 2
    first = Run(plan).train(0, cut)
    assert first.grower.fading_norms
    first.accelerator.save_state(tmp_path)
    again = Run(plan)
    assert again.grower.stage == 0
    again.accelerator.load_state(tmp_path)
    assert again.grower.stage == 1
    same(again.train(cut, STEPS), whole)


@pytest.mark.parametrize("order", ["grower first", "before", "inner"])
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_every_order_of_preparing_gives_the_same_run(make, order):
    plan = planned()
    run = Run(plan, make, order).train(0, STEPS)
    torch.manual_seed(3)
    model = plan.build_seed()
    optimizer = OPTIMIZERS[make](model.parameters())
    draw = torch.Generator().manual_seed(5)
    grower = gr.Grower(model, plan, optimizer, generator=draw, fade=0.9)
    x, y = data().tensors
    for step in range(STEPS):
        part = slice(step * 8 % 64, step * 8 % 64 + 8)
        for group in optimizer.param_groups:
            group["lr"] = run_rate(make) * (1 - step / (2 * STEPS))
        CROSS(model(x[part]), y[part]).backward()
        optimizer.step()
        optimizer.zero_grad()
        grower.step()
    plain = model.state_dict()
    for name, value in run.weights.items():
        torch.testing.assert_close(value, plain[name], rtol=1e-5, atol=1e-6)
    assert run.grower.is_complete


def run_rate(make):
    return OPTIMIZERS[make]([nn.Parameter(torch.ones(1))]).defaults["lr"]


def test_micro_batches_are_no_steps():
    """Three micro-batches a step, the last of an epoch has two; the scheduler and the Grower count steps alike."""
    plan = planned(total_steps=9)
    run = Run(plan, accumulate=3).train(0, 24)
    stepped = [report is not None for report in run.reports]
    assert stepped[:8] == [False, False, True, False, False, True, False, True]
    assert run.reports[-1].step == 9 == run.scheduler.scheduler.last_epoch
    assert run.grower.is_complete


def test_a_step_that_the_scaler_skips_is_none():
    plan = planned()
    run = Run(plan)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    wrapped = type(run.optimizer)(run.optimizer.optimizer, scaler=scaler)
    run.accelerator._optimizers[:] = [wrapped]
    for number in range(plan.stage_steps[0] + 1):
        loss = CROSS(run.model(data().tensors[0]), data().tensors[1])
        scaler.scale(loss * (torch.inf if number == 1 else 1.0)).backward()
        wrapped.step()
        wrapped.zero_grad()
        report = run.growth.step()
        assert (report is None) == (number == 1)
    assert report.growth and run.grower.stage == 1
    state = wrapped.state[run.model.first.weight]
    assert state["exp_avg"].shape == run.model.first.weight.shape


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("cut", [0, 1, 3, 4, 9, 17, 23])
@pytest.mark.slow
def test_any_optimizer_resumes_bit_for_bit_anywhere(make, cut, tmp_path):
    plan = planned()
    whole = Run(plan, make).train(0, STEPS)
    Run(plan, make).train(0, cut).accelerator.save_state(tmp_path)
    again = Run(plan, make)
    again.accelerator.load_state(tmp_path)
    same(again.train(cut, STEPS), whole)


def test_bf16_grows_and_resumes(tmp_path):
    plan = planned()
    whole = Run(plan, mixed_precision="bf16").train(0, STEPS)
    assert whole.grower.is_complete
    assert whole.model(torch.randn(2, 4)).dtype == torch.float32
    Run(plan, mixed_precision="bf16").train(0, 7).accelerator.save_state(tmp_path)
    again = Run(plan, mixed_precision="bf16")
    again.accelerator.load_state(tmp_path)
    same(again.train(7, STEPS), whole)
    plain = again.accelerator.unwrap_model(again.model, keep_fp32_wrapper=False)
    assert plain is again.grower.model
    assert plain(torch.randn(2, 4)).dtype == torch.float32


@pytest.mark.slow
def test_a_compiled_model_grows():
    plan = planned()
    run = Run(plan, dynamo_backend="eager").train(0, STEPS)
    torch.compiler.reset()
    assert run.grower.is_complete
    assert type(run.model).__name__ == "OptimizedModule"
    same(run, Run(plan, order="before").train(0, STEPS))


def on_two(rank, folder):
    """Two processes: prepared before and after the Grower, accumulated, saved, resumed."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # asked for, not used
    accelerate.state.AcceleratorState._reset_state(True)
    plan = planned(torch.float64, total_steps=12)
    whole = Run(plan, "AdamW", accumulate=2)
    assert whole.accelerator.num_processes == 2
    assert type(whole.model).__name__ == "DistributedDataParallel"
    whole.train(0, 24)
    assert whole.grower.is_complete
    assert whole.scheduler.scheduler.last_epoch == 24  # Accelerate's steps once for each process
    cut = 2 * (plan.stage_steps[0] + 1)
    first = Run(plan, "AdamW", "grower first", accumulate=2).train(0, cut)
    first.accelerator.save_state(folder)
    first.accelerator.wait_for_everyone()
    again = Run(plan, "AdamW", "grower first", accumulate=2)
    again.accelerator.load_state(folder)
    same(again.train(cut, 24), whole)
    elsewhere = f"{folder}/{rank}"  # a disk of its own, on which one has no growth
    os.makedirs(elsewhere)
    if rank == 0:
        shutil.copy(f"{folder}/growthring.safetensors", elsewhere)
    lost = Run(plan, "AdamW", accumulate=2)
    with pytest.raises(GrowthError) as refusal:
        lost.accelerator.load_state(elsewhere)
    assert lost.grower.stage == 0
    return whole.weights, str(refusal.value)


def test_two_processes_grow_one_model_and_resume(tmp_path):
    (one, told), (other, own) = on_ranks(on_two, str(tmp_path))
    assert "lacks 'growthring.safetensors'" in own
    assert "rank 1" in told and own in told
    assert all(torch.equal(one[name], other[name]) for name in one)
    plan = planned(torch.float64, total_steps=12)
    alone = Run(plan, "AdamW", accumulate=2, per=2).train(0, 24)
    for name, value in alone.weights.items():
        torch.testing.assert_close(value, one[name], rtol=0, atol=1e-10)
    again = Run(plan, "AdamW")
    again.accelerator.load_state(tmp_path)  # what two have saved
    assert again.grower.stage == 1
    assert again.grower.num_steps == plan.stage_steps[0] + 1


@pytest.mark.parametrize("order", ["grower first", "before"])
def test_a_model_whose_own_forward_fades_is_wrapped_and_unwrapped(order):
    torch.manual_seed(0)
    plan = gr.plan(ByHand(), torch.randn(2, 4), total_steps=STEPS, stages=3)
    run = Run(plan, order=order, mixed_precision="bf16").train(0, STEPS)
    assert run.grower.is_complete
    again = Run(plan, order=order, mixed_precision="bf16").train(0, 7)
    assert again.grower.fading_norms
    again.accelerator.unwrap_model(again.model, keep_fp32_wrapper=False)
    with pytest.raises(GrowthError, match=r"'' \(ByHand\) got the forward of its class back"):
        again.train(7, 8)


def test_rings_and_their_record_are_those_of_the_optimizer_inside():
    plan = planned()
    model = plan.build_seed()
    accelerator = accelerate.Accelerator(cpu=True)
    model, prepared = accelerator.prepare(model, torch.optim.RMSprop(model.parameters(), lr=1e-3))
    assert gr.optim.with_rings(prepared, rate_adaptation="norm") is prepared
    with pytest.raises(InputError, match=r"this RMSprop has rings already"):
        gr.optim.with_rings(prepared.optimizer)
    grower = gr.Grower(model, plan, prepared)
    with pytest.raises(InputError, match=r"the same RMSprop is given twice"):
        gr.Grower(model, plan, [prepared, prepared.optimizer])
    record = gr.optim.RingRecorder(prepared, names=["second.weight"])
    grower.grow()
    accelerator.backward(model(torch.randn(4, 4)).sum())
    prepared.step()
    assert len(next(record.rows())["rate_factor"]) == 2


def test_an_average_of_the_model_is_resumed_with_it(tmp_path):
    """Accelerate saves it, if asked to; its shapes come from the growth."""

    def start():
        run = Run(planned())
        run.average = torch.optim.swa_utils.AveragedModel(run.model)
        options = {"averages": run.average, "generator": torch.Generator().manual_seed(5)}
        run.grower = gr.Grower(run.model, run.grower.plan, run.optimizer, **options)
        run.accelerator._save_model_state_pre_hook.clear()
        run.accelerator._load_model_state_pre_hook.clear()
        run.growth = prepare(run.accelerator, run.grower)
        run.accelerator.register_for_checkpointing(run.average)
        return run

    run, again = start(), start()
    run.train(0, 6)
    run.average.update_parameters(run.model)
    run.accelerator.save_state(tmp_path)
    again.accelerator.load_state(tmp_path)
    assert again.grower.stage == 1
    there = again.average.state_dict()
    assert all(torch.equal(value, there[name]) for name, value in run.average.state_dict().items())


# Refusals.


def test_what_was_not_prepared_is_refused():
    accelerator = accelerate.Accelerator(cpu=True)
    plan = planned()
    model = plan.build_seed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grower = gr.Grower(model, plan, optimizer)
    with pytest.raises(
        InputError, match=r"has not prepared the model that grows: call accelerator\.prepare"
    ):
        prepare(accelerator, grower)
    model = accelerator.prepare(model)
    with pytest.raises(
        InputError, match=r"has not prepared the Grower's SGD: it would step at every batch"
    ):
        prepare(accelerator, grower)
    accelerator.prepare(optimizer)
    with pytest.raises(
        InputError, match=r"the SGD that the accelerator prepared is not the Grower's"
    ):
        prepare(accelerator, gr.Grower(model, plan))
    with pytest.raises(InputError, match=r"accelerator is a Grower, not an Accelerator"):
        prepare(grower, accelerator)
    with pytest.raises(InputError, match=r"grower is a Net; pass gr\.Grower"):
        prepare(accelerator, model)
    assert not accelerator._save_model_state_pre_hook
    prepare(accelerator, grower)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FSDP", "trains with FSDP, whose models"),
        ("DEEPSPEED", "trains with DEEPSPEED, whose models"),
        ("MEGATRON_LM", "trains with MEGATRON_LM, whose models"),
    ],
)
def test_models_in_pieces_are_refused(name, text):
    run = Run(planned())
    run.accelerator.state.distributed_type = accelerate.DistributedType[name]
    with pytest.raises(UnsupportedModelError, match=text):
        prepare(run.accelerator, run.grower)


def test_fp8_is_refused():
    run = Run(planned())
    run.accelerator.state._mixed_precision = "fp8"
    with pytest.raises(
        UnsupportedModelError, match=r"trains in fp8, with layers of another library"
    ):
        prepare(run.accelerator, run.grower)


def test_states_that_do_not_fit_are_refused_and_change_nothing(tmp_path):
    plan = planned()
    run = Run(plan)
    run.train(0, 6).accelerator.save_state(tmp_path / "early")
    run.train(6, STEPS)
    before = run.weights
    with pytest.raises(
        GrowthError, match=r"the model is at stage 2, the saved growth at stage 1; start from plan"
    ):
        run.accelerator.load_state(tmp_path / "early")
    other = Run(planned(stages=2))
    with pytest.raises(InputError, match=r"follows another plan: it has 3 stages, this plan has 2"):
        other.accelerator.load_state(tmp_path / "early")
    file = tmp_path / "early" / "growthring.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    fresh = Run(plan)
    with pytest.raises(
        GrowthError, match=r"cannot read .*growthring\.safetensors.*not a safetensors file"
    ):
        fresh.accelerator.load_state(tmp_path / "early")
    file.unlink()
    with pytest.raises(
        GrowthError, match=r"lacks 'growthring\.safetensors': it was saved without the growth"
    ):
        fresh.accelerator.load_state(tmp_path / "early")
    assert all(torch.equal(value, run.weights[name]) for name, value in before.items())
    assert fresh.grower.stage == 0
