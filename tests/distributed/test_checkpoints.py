"""Checkpoints of torch.distributed.checkpoint load on any number of processes, and the run goes on as it was."""

import copy

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict as torchs
from torch.nn.parallel import DistributedDataParallel

import growthring as gr
from growthring.checkpoint.onetensor import from_tensor, to_tensor
from growthring.errors import GrowthError
from growthring.growing.states import states_of
from tests.distributed.test_ddp import STEPS, data, planned, weights
from tests.distributed_helpers import on_ranks
from tests.optim.nets import assert_same

RINGS = {"rate_adaptation": "norm", "new_ring_warmup": 3}
OPTIMIZERS = {
    "SGD": lambda p: gr.optim.SGD(p, lr=0.05, rate_adaptation="norm"),
    "momentum": lambda p: gr.optim.SGD(
        p, lr=0.05, momentum=0.9, dampening=0.3, weight_decay=0.1, state_at_growth="reset", **RINGS
    ),
    "Adam": lambda p: gr.optim.Adam(p, lr=0.01, weight_decay=0.1, ages="ring", amsgrad=True),
    "AdamW": lambda p: gr.optim.AdamW(
        p, lr=0.01, ages="ring", rate_adaptation="norm", ring_schedule="own", total_steps=STEPS
    ),
    "AvaGrad": lambda p: gr.optim.AvaGrad(p, lr=0.01, weight_decay=0.1, ages="ring", **RINGS),
    "LARS": lambda p: gr.optim.LARS(p, lr=0.1, **RINGS),
    "with_rings": lambda p: gr.optim.with_rings(
        torch.optim.RMSprop(p, lr=0.01, momentum=0.9), **RINGS
    ),
    "torch": lambda p: torch.optim.AdamW(p, lr=0.01),
}


class Run:
    """A training run on some processes, with all that a checkpoint has to hold."""

    def __init__(self, rank, size, kind):
        self.plan, self.rank, self.size = planned(), rank, size
        self.model = self.plan.build_seed()
        self.trained = DistributedDataParallel(self.model) if size > 1 else self.model
        self.optimizer = OPTIMIZERS[kind](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.6, STEPS)
        torch.manual_seed(rank)  # no generator is given: the first one's seed counts
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.grower = gr.Grower(self.trained, self.plan, self.optimizer, averages=self.average)

    def go(self, start, end):
        for step in range(start, end):
            self.optimizer.zero_grad()
            self.trained(data(step)[self.rank :: self.size]).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()
            self.average.update_parameters(self.model)
            self.grower.step()
        return self

    def save(self, folder):
        own = {"scheduler": self.scheduler.state_dict(), "count": self.average.n_averaged}
        growth = {"growth": self.grower.state_tensor(), **own}
        dcp.save({**self.grower.states(), **growth}, checkpoint_id=folder)

    def load(self, folder):
        self.grower.load_state_dict(gr.read_growth(folder))
        own = {"scheduler": self.scheduler.state_dict(), "count": self.average.n_averaged}
        dcp.load({**self.grower.states(), **own}, checkpoint_id=folder)
        self.scheduler.load_state_dict(own["scheduler"])
        return self

    @property
    def end(self):
        return {**weights(self.model), **{f"a.{n}": t for n, t in weights(self.average).items()}}


def train_and_save(rank, size, kind, folder, moments):
    run, last = Run(rank, size, kind), 0
    for moment in moments:
        run.go(last, moment).save(folder / f"{kind}{size}-{moment}")
        last = moment
    return run.go(last, STEPS).end


def go_on(rank, size, kind, folder, saved_by, moment):
    return Run(rank, size, kind).load(folder / f"{kind}{saved_by}-{moment}").go(moment, STEPS).end


def several(rank, what, arguments):
    """Several things in one go: what takes time is telling processes what to do."""
    return [what(rank, 2, *each) for each in arguments]


def assert_close(ends, expected):
    for name, tensor in ends.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-12, atol=1e-12)


# Just after a growth, in the middle of a stage and of fades, before the first step.
MOMENTS = [0, 2, 5, 9]


@pytest.mark.parametrize("kind", ["AdamW", pytest.param("momentum", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_two_processes_save_and_one_or_two_go_on(tmp_path, kind):
    ((whole,), _) = on_ranks(several, train_and_save, [(kind, tmp_path, MOMENTS)])
    one = train_and_save(0, 1, kind, tmp_path, [5])
    cases = [(kind, tmp_path, 2, 2), (kind, tmp_path, 2, 9), (kind, tmp_path, 1, 5)]
    for early, late, single in on_ranks(several, go_on, cases):
        assert_same(early, whole)  # bit for bit
        assert_same(late, whole)
        assert_close(single, one)
    for case in cases[:2]:
        assert_close(go_on(0, 1, *case), whole)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.each(3)
def test_one_process_goes_on_bit_for_bit(tmp_path, kind):
    whole = Run(0, 1, kind).go(0, STEPS).end
    moments = [m for m in MOMENTS if m or kind != "torch"]  # torch counts the step that is none
    assert_same(train_and_save(0, 1, kind, tmp_path, moments), whole)  # saving leaves no trace
    for moment in moments:
        assert_same(go_on(0, 1, kind, tmp_path, 1, moment), whole)


# A model that fully_shard cuts, at the stage that it was saved in.


def sharded(folder):
    """Shapes before weights: the seed grows to them before it is cut; then optimizer and Grower, and all loads."""
    from torch.distributed.fsdp import fully_shard

    plan = planned()
    model, growth = plan.build_seed(), gr.read_growth(folder)
    gr.Grower(model, plan).load_state_dict(growth)
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer)
    fully_shard(model)
    optimizer = OPTIMIZERS["AdamW"](model.parameters())
    torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.6, STEPS)  # it writes into the groups
    grower = gr.Grower(model, plan, optimizer)
    grower.load_state_dict(growth)
    dcp.load(grower.states(), checkpoint_id=folder)
    return model, optimizer, grower


def steps_on_shards(rank, folder, moments, again):
    """Three steps of a model that one process saved, saved once more; weights as they are then."""
    ends = []
    for moment in moments:
        model, optimizer, grower = sharded(folder / f"AdamW1-{moment}")
        for step in range(moment, moment + 3):
            optimizer.zero_grad()
            model(data(step)[rank::2]).square().mean().backward()
            optimizer.step()
        saved = {**grower.states(), "growth": grower.state_tensor()}
        dcp.save(saved, checkpoint_id=again / str(moment))
        ends.append({n: p.full_tensor().detach() for n, p in model.named_parameters()})
    return ends


def steps(run, moment):
    """The same without growing or fading on."""
    for step in range(moment, moment + 3):
        run.optimizer.zero_grad()
        run.model(data(step)).square().mean().backward()
        run.optimizer.step()
    return run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_shards_load_what_one_process_saved_and_the_other_way_round(tmp_path):
    moments = [2, 6]  # in the first, statistics are fading in
    train_and_save(0, 1, "AdamW", tmp_path, moments)
    ended = on_ranks(steps_on_shards, tmp_path, moments, tmp_path)
    for i, moment in enumerate(moments):
        run = steps(Run(0, 1, "AdamW").load(tmp_path / f"AdamW1-{moment}"), moment)
        for each in ended:
            assert_close(each[i], weights(run.model))
        back = Run(0, 1, "AdamW")
        back.grower.load_state_dict(gr.read_growth(tmp_path / str(moment)))
        states = states_of(back.model, [], [back.optimizer], None)
        dcp.load(states, checkpoint_id=tmp_path / str(moment))
        assert_close(weights(back.model), weights(run.model))
        assert_same(*(r.optimizer.state_dict()["param_groups"][0]["rings"] for r in (back, run)))
        for one in (back, run):
            steps(one, moment + 3)
        assert_close(weights(back.model), weights(run.model))


# Torch's functions, whatever they are asked for.

OPTIONS = {
    "plain": {},
    "flat": {"flatten_optimizer_state_dict": True},
    "full": {"full_state_dict": True, "cpu_offload": True},
}


@pytest.mark.parametrize("how", OPTIONS)
@pytest.mark.parametrize("kind", ["AdamW", "momentum", "with_rings"])
@pytest.mark.filterwarnings("ignore:norms of this model are still fading in")
def test_torchs_functions_carry_all_that_an_optimizer_knows(how, kind):
    options = torchs.StateDictOptions(**OPTIONS[how])
    run, other = Run(0, 1, kind).go(0, 3), Run(0, 1, kind)
    other.grower.load_state_dict(run.grower.state_dict())
    both = torchs.get_state_dict(run.model, run.optimizer, options=options)
    model, state = copy.deepcopy(both)  # they are the very tensors of the run
    torchs.set_state_dict(
        other.model,
        other.optimizer,
        model_state_dict=model,
        optim_state_dict=state,
        options=options,
    )
    states = [each.optimizer.state_dict() for each in (other, run)]
    assert_same(*(state["state"] for state in states))
    assert_same(*(state["param_groups"][0]["rings"] for state in states))
    for each in (run, other):
        each.optimizer.zero_grad()
        each.trained(data(3)).square().mean().backward()
        each.optimizer.step()
    assert_same(other.end["0.weight"], run.end["0.weight"])


@pytest.mark.parametrize("kind", ["SGD", "Adam", "with_rings"])
def test_a_step_that_is_none_is_not_counted(kind):
    """Saving before the first step: the run goes on as if nobody had looked."""
    first, second = Run(0, 1, kind), Run(0, 1, kind)
    torchs.get_optimizer_state_dict(first.model, first.optimizer)
    assert bool(first.optimizer.state) is (kind != "SGD")
    for run in (first, second):
        run.go(0, 1)
    assert_same(first.optimizer.state_dict(), second.optimizer.state_dict())


def test_a_step_of_rate_0_that_learns_is_counted():
    """A warm-up begins with one: gradients tell."""
    run = Run(0, 1, "Adam")
    run.optimizer.param_groups[0]["lr"] = 0.0
    run.go(0, 1)
    assert {float(state["step"]) for state in run.optimizer.state.values()} == {1.0}
    assert run.optimizer.state_dict()["param_groups"][0]["rings"].startswith(
        '{"births": [0], "steps": 1'
    )


# What cannot be loaded is refused, and changes nothing.


def flipped(tensor):
    tensor[len(tensor) // 2] ^= 1
    return tensor


DAMAGED = {
    "flipped": (flipped, r"'growth' in .* is truncated or damaged: its checksum"),
    "cut": (lambda t: t[:-3], r"is truncated or damaged: its checksum is another one"),
    "short": (
        lambda t: t[:4].clone(),
        r"does not begin as it should: .* not made by Grower.state_tensor",
    ),
    "foreign": (lambda t: torch.zeros(50, dtype=torch.uint8), r"does not begin as it should"),
    "matrix": (lambda t: t[None], r"has no growth under 'growth'"),
    "newer": (lambda t: torch.cat([t[:11], t[11:12] + 1, t[12:]]), "of version 2 of the format"),
    "empty": (
        lambda t: from_tensor(t) and to_tensor({}),
        r"the state lacks 'stage': it is not whole",
    ),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_growth_that_is_not_whole_is_refused(tmp_path, how):
    run = Run(0, 1, "AdamW").go(0, 3)
    damage, message = DAMAGED[how]
    growth = damage(run.grower.state_tensor())
    dcp.save(
        {"growth": growth.clone().contiguous()}, checkpoint_id=tmp_path / "saved", no_dist=True
    )
    fresh = Run(0, 1, "AdamW")
    before = {**fresh.end, "growth": fresh.grower.state_tensor()}
    with pytest.raises(GrowthError, match=message):
        fresh.grower.load_state_dict(gr.read_growth(tmp_path / "saved"))
    assert_same({**fresh.end, "growth": fresh.grower.state_tensor()}, before)


def test_what_is_no_checkpoint_of_growth_is_said(tmp_path):
    with pytest.raises(
        GrowthError, match=r"is a torch.float32 of shape \(2,\): it was not made by"
    ):
        from_tensor(torch.ones(2))
    with pytest.raises(
        GrowthError, match=r"cannot be read \(.*Pass the folder that dcp\.save was given"
    ):
        gr.read_growth(tmp_path / "nowhere")
    dcp.save({"model": {"w": torch.ones(2)}}, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(
        GrowthError, match=r"no growth under 'growth'\. Save it beside the model: dcp"
    ):
        gr.read_growth(tmp_path)
    dcp.save({"growth": to_tensor({"stage": 1})}, checkpoint_id=tmp_path, no_dist=True)
    next(tmp_path.glob("*.distcp")).write_bytes(b"")
    with pytest.raises(
        GrowthError, match=r"the growth in .* cannot be read \(.*Take the checkpoint"
    ):
        gr.read_growth(tmp_path)


def test_a_growth_of_another_plan_is_refused(tmp_path):
    run = Run(0, 1, "AdamW").go(0, 3)
    dcp.save({"growth": run.grower.state_tensor()}, checkpoint_id=tmp_path, no_dist=True)
    plan = planned(stages=2)
    seed = plan.build_seed()
    grower, before = gr.Grower(seed, plan), weights(seed)
    with pytest.raises(GrowthError, match="the saved growth follows another plan: it has 3 stages"):
        grower.load_state_dict(gr.read_growth(tmp_path))
    assert_same(weights(seed), before)
    assert grower.stage == 0
