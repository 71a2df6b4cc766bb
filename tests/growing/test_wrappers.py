"""What spreads a model over processes, or wraps its optimizer: refused by name, or stopped when it is stale."""

import copy

import pytest
import torch
from torch import distributed as dist, nn

import growthring as gr
from growthring.errors import InputError, UnsupportedModelError
from growthring.optim.firststate import first_state_of
from tests.discovered import discovered_once as discovered_once

X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture
def one_process(tmp_path):
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# Sharded models.


def test_a_plan_is_made_before_fully_shard(one_process):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    plan = gr.plan(net(), X, stages=2, start=0.5)
    model = plan.build_seed()
    grower = gr.Grower(model, plan)
    fully_shard(model, mesh=mesh)
    with pytest.raises(
        UnsupportedModelError, match=r"the model is sharded by fully_shard\. Plan the"
    ):
        gr.plan(model, X)
    text = (
        r"was cut by fully_shard after the Grower was made.*First fully_shard, then the optimizer"
    )
    with pytest.raises(UnsupportedModelError, match=text):
        grower.grow()


def test_replicate_is_refused(one_process):
    """Its DistributedDataParallel is reached by hooks, so it could not refuse to run when it is stale."""
    from torch.distributed._composable.replicate import replicate

    plan = gr.plan(net(), X, stages=2, start=0.5)
    model = plan.build_seed()
    grower = gr.Grower(model, plan)
    replicate(model[0])
    model(X)
    text = (
        r"'0' is replicated by torch\.distributed's replicate\(\).*DistributedDataParallel instead"
    )
    for act in (grower.grow, lambda: gr.Grower(model, plan), lambda: gr.plan(model, X)):
        with pytest.raises(UnsupportedModelError, match=text):
            act()


def test_distributed_tensors_are_refused(one_process):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    plan = gr.plan(net(), X, stages=2, start=0.5)
    model = plan.build_seed()
    grower = gr.Grower(model, plan)
    model[0].weight = nn.Parameter(distribute_tensor(model[0].weight.detach(), mesh))
    text = r"parameter '0.weight' is a DTensor, a tensor made of others.*Grow the plain module"
    for act in (grower.grow, lambda: gr.Grower(model, plan), lambda: gr.plan(model, X)):
        with pytest.raises(UnsupportedModelError, match=text):
            act()


@pytest.mark.parametrize("keeps_parameters", [True, False])
@pytest.mark.each(2)
def test_fsdp_is_refused(one_process, keeps_parameters):
    from torch.distributed.fsdp import FullyShardedDataParallel

    plan = gr.plan(net(), X, stages=2, start=0.5)
    model = plan.build_seed()
    grower = gr.Grower(model, plan)
    wrapped = FullyShardedDataParallel(
        model, use_orig_params=keeps_parameters, device_id=torch.device("cpu")
    )
    with pytest.raises(
        UnsupportedModelError, match=r"the model is sharded by FullyShardedDataParallel"
    ):
        gr.plan(wrapped, X)
    text = (
        r"the model is held by a FullyShardedDataParallel, which shards it\. Grow the plain module"
    )
    for act in (lambda: gr.Grower(model, plan), grower.grow):
        with pytest.raises(gr.GrowthError, match=text):
            act()


def test_deepspeed_is_refused():
    model = net()
    model[0].weight.ds_id = 3
    with pytest.raises(
        UnsupportedModelError, match=r"parameter '0.weight' is sharded by DeepSpeed"
    ):
        gr.plan(model, X)


# Optimizers that wrap others.


class Wrapping(torch.optim.Optimizer):
    """As Accelerate's: everything is that of the optimizer inside."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def state(self):
        return self.optimizer.state

    @state.setter
    def state(self, state):
        self.optimizer.state = state

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups):
        self.optimizer.param_groups = groups

    @property
    def defaults(self):
        return self.optimizer.defaults

    def step(self, closure=None):
        return self.optimizer.step(closure)


class Hidden(Wrapping):
    """Wraps without an attribute that shows it."""

    def __init__(self, optimizer):
        self.held = [optimizer]

    optimizer = property(lambda self: self.held[0])


class DeepSpeedOptimizerWrapper(Wrapping):
    """By the name of Accelerate's, which needs DeepSpeed."""


class MegatronLMOptimizerWrapper(Wrapping):
    pass


WRAPPERS = {
    "accelerated": (Wrapping, r"Wrapping has no 'param_groups' of its own: it stands for another optimizer"),
    "hidden": (Hidden, r"Hidden has no 'param_groups' of its own: it stands for another optimizer. Pass that one"),
    "deepspeed": (DeepSpeedOptimizerWrapper, r"DeepSpeedOptimizerWrapper stands for DeepSpeed's engine"),
    "megatron": (MegatronLMOptimizerWrapper, r"MegatronLMOptimizerWrapper stands for Megatron-LM's"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPPERS)
def test_an_optimizer_that_wraps_another_is_refused_and_nothing_of_it_changes(name):
    make, text = WRAPPERS[name]
    plan = gr.plan(net(), X, stages=2, start=0.5)
    model = plan.build_seed()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wrapping = make(inner)
    groups, held = inner.param_groups, [list(g["params"]) for g in inner.param_groups]
    for act in (lambda: gr.Grower(model, plan, wrapping), lambda: gr.optim.with_rings(wrapping)):
        with pytest.raises(InputError, match=text):
            act()
    assert inner.param_groups is groups
    assert all(
        a is b
        for g, ps in zip(groups, held, strict=True)
        for a, b in zip(g["params"], ps, strict=True)
    )
    grower = gr.Grower(model, plan, inner)  # the way out
    grower.grow()
    model(X).sum().backward()
    before = copy.deepcopy(model.state_dict())
    inner.step()
    assert not torch.equal(before["0.weight"], model[0].weight)


def test_zero_redundancy_is_refused(one_process):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    plan = gr.plan(net(), X, stages=2, start=0.5)
    model = plan.build_seed()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    for act in (lambda: gr.Grower(model, plan, optimizer), lambda: gr.optim.with_rings(optimizer)):
        with pytest.raises(
            InputError, match=r"ZeroRedundancyOptimizer spreads its state over processes"
        ):
            act()


# The question what a new parameter gets is put to a copy that shares nothing.


class Own(torch.optim.SGD):
    """Keeps parameters, settings and counts outside of groups and state, and changes all of them in `step`."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.mine = [p for g in self.param_groups for p in g["params"]]
        self.count, self.table, self.buffer = [0], {"steps": {"n": 0}}, torch.zeros(2)

    def step(self, closure=None):
        self.count[0] += 1
        self.table["steps"]["n"] += 1
        self.buffer += 1
        self.defaults["seen"] = True
        for group in self.param_groups:
            group["nested"]["n"] += 1
        with torch.no_grad():
            for p in self.mine:
                p.add_(1.0)
        return super().step(closure)


def test_asking_for_the_state_of_a_new_parameter_touches_nothing():
    model = net()
    optimizer = Own(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.param_groups[0]["nested"] = {"n": 0}
    model(X).sum().backward()
    before = copy.deepcopy(model.state_dict())
    found = first_state_of(optimizer, optimizer.param_groups[0], model[0].weight)
    assert found["momentum_buffer"].degree in (0, 1)
    assert (optimizer.count, optimizer.table, optimizer.buffer.tolist()) == (
        [0],
        {"steps": {"n": 0}},
        [0, 0],
    )
    assert optimizer.param_groups[0]["nested"] == {"n": 0} and "seen" not in optimizer.defaults
    assert not optimizer.state
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
