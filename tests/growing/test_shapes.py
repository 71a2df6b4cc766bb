"""A model takes on the shapes of weights that it is about to load, forwards and backwards through the stages."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import growthring as gr
from growthring.errors import InputError
from growthring.graph.resize import named_tensors
from growthring.growing.matching import find_stage
from growthring.growing.shapes import (
    models_in,
    shapes_before_weights,
    stage_of,
    take_saved_shapes,
    take_shapes,
)


class Attention(nn.Module):
    """Heads, norms and a table: attributes that hold sizes in several ways."""

    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        x = self.embed(x)
        return self.out(self.norm(x + self.attention(x, x, x, need_weights=False)[0]))


class Sized(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.hidden = hidden
        self.a, self.b = nn.Linear(4, hidden), nn.Linear(hidden, 2)

    def forward(self, x):
        return self.b(self.a(x).view(-1, self.hidden))


def normalised():
    norm = torch.nn.utils.weight_norm
    return nn.Sequential(norm(nn.Linear(4, 16)), nn.ReLU(), norm(nn.Linear(16, 2)))


MODELS = {
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
        ),
        (2, 3, 4, 4),
        {},
    ),
    "attention": (lambda: Attention(32), (2, 6, 5), {}),
    "built": (Sized, (2, 4), {"build": lambda widths: Sized(widths["a"])}),
    "weight norm": (normalised, (2, 4), {}),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # the older weight_norm
@pytest.mark.parametrize("name", MODELS)
def test_a_model_takes_on_every_stage_from_every_other(name, generator):
    make, shape, options = MODELS[name]
    x = torch.randn(shape, generator=generator)
    plan = gr.plan(make(), x, stages=3, **options)
    assert len({plan.num_parameters(stage) for stage in range(3)}) == 3
    models = [plan.build_seed() for _ in range(3)]
    for model, stage in zip(models, range(3), strict=True):
        grower = gr.Grower(model, plan)
        for _ in range(stage):
            grower.grow()
        grower.finish()
    for model in models:
        for stage, source in [(0, models[0]), (2, models[2]), (1, models[1]), (0, models[0])]:
            moved = copy.deepcopy(model)
            take_shapes(moved, plan, stage)
            moved.load_state_dict(source.state_dict())
            assert find_stage(moved, plan) == stage  # its attributes, too
            assert torch.equal(moved.eval()(x), copy.deepcopy(source).eval()(x))


def test_no_fade_and_no_gradient_outlives_its_shapes(generator):
    net = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2))
    x = torch.randn(3, 4, generator=generator)
    plan = gr.plan(net, x, stages=2)
    model = plan.build_seed()
    parameters = list(model.parameters())
    model(x).sum().backward()
    grower = gr.Grower(model, plan)
    grower.grow()
    take_shapes(model, plan, 0)
    assert "forward" not in vars(model[1])
    assert [p.grad is None for p in model.parameters()] == [True, True, True, True, True, False]
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    take_shapes(model, plan, 1)
    assert "forward" not in vars(model[1])
    grower.state_dict()  # or it would warn of its fade


def test_an_interrupt_leaves_the_model_as_it_was(monkeypatch, generator):
    plan = gr.plan(Sized(), torch.ones(1, 4), stages=2)
    model = plan.build_seed()
    before = {name: tensor.clone() for name, tensor in named_tensors(model).items()}

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("growthring.growing.module.GrowingModule.follow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        take_shapes(model, plan, 1)
    assert all(torch.equal(before[n], t) for n, t in named_tensors(model).items())


@pytest.fixture
def plan():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return gr.plan(net, torch.ones(1, 4), stages=2)


def test_a_module_that_holds_models_loads_weights_of_any_stage_and_so_do_its_copies(plan):
    def holder(stage):
        net = plan.build_seed() if stage == 0 else copy.deepcopy(plan.model)
        return nn.ModuleDict({"net": net, "ema": AveragedModel(net), "head": nn.Linear(2, 2)})

    def find(root):
        return models_in(root, plan)

    first, last = holder(0), holder(1)
    handle = shapes_before_weights(first, plan, find)
    for module in (first, copy.deepcopy(first)):
        for source in (last, holder(0), last):
            module.load_state_dict(source.state_dict())
            assert module["net"][0].out_features == source["net"][0].out_features
            assert module["ema"].module[0].out_features == source["ema"].module[0].out_features
    handle.remove()
    with pytest.raises(RuntimeError, match="size mismatch"):
        first.load_state_dict(holder(0).state_dict())
    take_saved_shapes(first, plan, find, {"head.weight": torch.ones(2, 2)})  # says nothing of it
    assert stage_of(named_tensors(first), plan, "net.") == 1


def test_weights_of_another_plan_change_nothing(plan):
    holder = nn.ModuleDict({"net": plan.build_seed()})
    shapes_before_weights(holder, plan, lambda root: models_in(root, plan))
    weights = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 2)).state_dict(prefix="net.")
    with pytest.raises(InputError) as caught:
        holder.load_state_dict(weights)
    assert str(caught.value) == (
        "the weights have the shapes of no stage of the plan: 'net.0.weight' is (7, 4), in the plan it is (4, 4), "
        "(8, 4). Load them with the plan that they were saved with."
    )
    assert stage_of(named_tensors(holder), plan, "net.") == 0


def test_which_model_is_meant(plan):
    seed = plan.build_seed
    assert list(models_in(seed(), plan)) == [""]
    assert list(models_in(nn.ModuleDict({"a": nn.Sequential(seed())}), plan)) == ["a.0"]
    compiled = nn.ModuleDict({"net": torch.compile(seed(), backend="eager")})
    assert list(models_in(compiled, plan)) == ["net._orig_mod"]
    assert list(models_in(compiled, plan, "net")) == ["net._orig_mod"]
    two = nn.ModuleDict({"net": seed(), "teacher": seed(), "head": nn.Linear(2, 2)})
    assert list(models_in(two, plan, "teacher")) == ["teacher"]
    assert list(models_in(two, plan, averages=["teacher"])) == ["net", "teacher"]
    assert list(models_in(two, plan, "net", ["teacher"])) == ["net", "teacher"]
    refused = {
        (
            "nett",
            (),
        ): "'nett' of the ModuleDict is no module with the shapes of a stage of the plan. What does: "
        "'net', 'teacher'.",
        (
            None,
            (),
        ): "the plan fits 2 models in the ModuleDict: 'net', 'teacher'. Say which one grows "
        "(module='net'), and which are averages of it that grow along (averages=['teacher']).",
    }
    for (name, averages), text in refused.items():
        with pytest.raises(InputError) as caught:
            models_in(two, plan, name, averages)
        assert str(caught.value) == text
    with pytest.raises(InputError) as caught:
        models_in(nn.ModuleDict({"net": nn.Linear(4, 2)}), plan)
    assert str(caught.value) == (
        "nothing in the ModuleDict has the shapes of a stage of the plan. Build it around the seed: self.net = "
        "plan.build_seed()."
    )
