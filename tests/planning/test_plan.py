"""Plans: widths per stage, and the seed that is cut out of the model."""

import copy
import json
import math

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.errors import PlanError
from tests.growth_contract import Net, attributes, check_contract, make_plan, randn


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)
    )


def convnet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 96, 3), nn.BatchNorm2d(96), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(384, 10),
    )  # fmt: skip


X = torch.zeros(1, 4)
IMAGE = torch.zeros(1, 3, 8, 8)


def snapshot(model: nn.Module):
    """Everything a caller could notice of a model."""
    tensors = {
        n: t.detach().clone() for n, t in [*model.named_parameters(), *model.named_buffers()]
    }
    ids = {n: id(t) for n, t in [*model.named_parameters(), *model.named_buffers()]}
    modules = {n: (type(m), m.training, set(vars(m))) for n, m in model.named_modules()}
    return tensors, ids, modules, attributes(model), torch.get_rng_state()


def assert_same(before, after):
    for name, tensor in before[0].items():
        assert torch.equal(tensor, after[0][name]), name
    assert before[1:4] == after[1:4]
    assert torch.equal(before[4], after[4])


# Widths.


def test_paper_schedule():
    plan = gr.plan(mlp(), X, preset="paper")
    assert plan.num_stages == 9
    assert plan.widths("0") == [4, 4, 6, 6, 8, 10, 12, 14, 16]
    assert plan.widths("2") == [4, 4, 4, 6, 6, 8, 8, 10, 12]


def test_even_growth_and_rounding():
    plan = gr.plan(mlp(), X, stages=3, growth=None, round_to=1)
    assert plan.widths("0") == [4, 8, 16] and plan.widths("2") == [3, 6, 12]
    plan = gr.plan(mlp(), X, stages=3, growth=None, round_to=5)
    assert plan.widths("0") == [5, 10, 16], "the last stage is the model, rounded or not"


def test_one_stage_is_the_model():
    plan = gr.plan(mlp(), X, stages=1)
    assert plan.widths("0") == [16]
    seed = plan.build_seed()
    assert {n: t.shape for n, t in seed.state_dict().items()} == {
        n: t.shape for n, t in mlp().state_dict().items()
    }


def test_explicit_widths():
    plan = gr.plan(mlp(), X, stages=3, widths={"0": [3, 9, 16]})
    assert plan.widths("0") == [3, 9, 16]
    assert plan.widths("2")[-1] == 12
    check_contract(make_plan(mlp(), randn(5, 4), stages=3, widths={"0": [3, 9, 16]}))


def test_explicit_widths_by_glob():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    plan = gr.plan(net, X, stages=3, widths={"*[02]": [2, 5, 8]})
    assert plan.widths("0") == plan.widths("2") == [2, 5, 8]
    plan = gr.plan(net, X, stages=3, widths=[("0", [1, 1, 8])])
    assert plan.widths("0") == [1, 1, 8]


def test_explicit_widths_of_width_one_grow():
    plan = make_plan(mlp(), randn(5, 4), stages=3, widths={"0": [1, 2, 16], "2": [1, 1, 12]})
    check_contract(plan)


def test_a_frozen_group_may_be_named_with_its_own_width():
    plan = gr.plan(mlp(), X, stages=2, widths={"4": [3, 3]})
    assert plan.widths("4") == [3, 3]


@pytest.mark.parametrize(
    ("widths", "text"),
    [
        ({"0": [4, 8]}, "2 widths for 3 stages"),
        ({"0": [4, 8, 12]}, "must end at the full width 16"),
        ({"0": [8, 4, 16]}, "shrinks from 8 to 4 at stage 1"),
        ({"0": [0, 4, 16]}, "at least 1"),
        ({"0": [2.5, 4, 16]}, "whole numbers"),
        ({"4": [1, 2, 3]}, "frozen .*keeps its width 3"),
        ({"0": [4, 8, 16], "*": [4, 8, 16]}, "twice"),
        ([("0", [4, 8, 16]), ("0", [2, 8, 16])], "names the group '0' twice"),
        ({"nothing": [4, 8, 16]}, "no width group 'nothing'. Growable groups: 0, 2"),
        ({"0": [17, 17, 16]}, "shrinks from 17 to 16"),
    ],
)
def test_wrong_explicit_widths(widths, text):
    with pytest.raises(gr.GrowthError, match=text):
        gr.plan(mlp(), X, stages=3, widths=widths)


def test_explicit_widths_that_the_code_cannot_follow():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 12), nn.Linear(12, 12), nn.Linear(12, 3)

        def forward(self, x):
            h = self.a(x)
            return self.c(self.b(h).view(h.shape))

    plan = gr.plan(Tied(), X, stages=2)
    names = list(plan.named_widths(0))
    if len(names) == 1:
        pytest.skip("one group")
    with pytest.raises(PlanError, match="does not run at the explicit widths"):
        gr.plan(Tied(), X, stages=2, widths={names[0]: [2, 12], names[1]: [8, 12]})


@pytest.mark.parametrize("round_to", [0, -2, 1.5, "2"])
def test_wrong_rounding(round_to):
    with pytest.raises(PlanError, match="round_to="):
        gr.plan(mlp(), X, round_to=round_to)


# Freezing.


def test_freeze_by_name_glob_and_group():
    for pattern in ("0", "0.weight", "0*"):
        plan = gr.plan(mlp(), X, stages=2, freeze=[pattern])
        assert plan.named_widths(0).keys() == {"2"}, pattern
        assert plan.widths("0") == [16, 16]
        assert "freeze=" in plan.groups["0"].frozen.text
    assert gr.plan(mlp(), X, stages=2, freeze="0").named_widths(0).keys() == {"2"}


def test_freeze_a_module_freezes_what_it_writes_not_what_it_reads():
    net = Net(lambda self, x: self.head(self.body(x)), body=mlp(), head=nn.Linear(3, 2))
    plan = gr.plan(net, X, stages=2, freeze=["body.2"])
    assert set(plan.named_widths(0)) == {"body.0", "body.4"}
    with pytest.raises(gr.GrowthError, match="freeze='body'"):
        gr.plan(net, X, stages=2, freeze=["body"])


def test_freezing_everything_is_refused():
    with pytest.raises(gr.GrowthError, match=r"(?s)nothing in Sequential can grow.*freeze='\*'"):
        gr.plan(mlp(), X, freeze=["*"])


# Notes.


def test_notes_tell_of_stages_without_a_step():
    plan = gr.plan(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)), X, stages=5)
    assert any("stage 1 has the widths of stage 0" in note for note in plan.notes)
    assert all(note in str(plan) for note in plan.notes)


def test_printing_and_json():
    plan = gr.plan(mlp(), X, stages=3)
    text = str(plan)
    assert "Sequential in 3 stages" in text and "parameters" in text
    found = json.loads(json.dumps(plan.as_dict()))
    assert found["stages"] == 3 and [w["0"] for w in found["widths"]] == plan.widths("0")
    assert found["parameters"] == [plan.num_parameters(t) for t in range(3)]
    assert plan.num_parameters(2) == sum(p.numel() for p in plan.model.parameters())
    assert plan.num_parameters(0) == sum(p.numel() for p in plan.build_seed().parameters())


# The seed.


@pytest.mark.parametrize("training", [True, False])
def test_planning_and_seeding_leave_the_model_untouched(training):
    model = convnet().train(training)
    model[1].eval()
    model[0].weight.requires_grad_(False)
    model[3].weight.grad = torch.ones_like(model[3].weight)
    before = snapshot(model)
    plan = gr.plan(model, IMAGE, stages=3)
    seed = plan.build_seed()
    assert_same(before, snapshot(model))
    assert torch.equal(model[3].weight.grad, torch.ones_like(model[3].weight))
    assert seed.training is training and seed[1].training is False
    assert seed[0].weight.requires_grad is False and seed[3].weight.requires_grad is True
    shared = {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in seed.parameters()}
    assert not shared


def test_the_seed_has_the_deviations_of_its_own_fan_in():
    model = convnet()
    plan = gr.plan(model, IMAGE, stages=3)
    seed = plan.build_seed()
    assert seed[0].out_channels == 16 and seed[3].in_channels == 16 and seed[8].in_features == 96
    for i, grown in ((0, 1.0), (3, 64 / 16), (8, 384 / 96)):
        ratio = float(seed[i].weight.detach().std() / model[i].weight.detach().std())
        assert ratio == pytest.approx(math.sqrt(grown), rel=0.1), i


def test_the_seed_of_a_grouped_transposed_convolution_follows_its_fan_in():
    model = nn.Sequential(
        nn.Conv2d(3, 64, 1), nn.ReLU(), nn.ConvTranspose2d(64, 64, 3, groups=2), nn.ReLU(), nn.Conv2d(64, 3, 1)
    )  # fmt: skip
    plan = gr.plan(model, IMAGE, stages=3)
    seed = plan.build_seed()
    # torch's own initialiser sees weight[:, 0], but what one output sums over is in/groups · kernel
    grown = (64 / 2) / (seed[2].in_channels / 2)
    ratio = float(seed[2].weight.detach().std() / model[2].weight.detach().std())
    assert ratio == pytest.approx(math.sqrt(grown), rel=0.1)


def test_constants_are_kept():
    model = convnet()
    with torch.no_grad():
        model[1].weight.fill_(0.5)
        model[4].bias.fill_(0.25)
        model[8].bias.zero_()
    seed = gr.plan(model, IMAGE, stages=3).build_seed()
    assert bool((seed[1].weight == 0.5).all()) and bool((seed[4].bias == 0.25).all())
    assert bool((seed[8].bias == 0).all()) and bool((seed[1].running_var == 1).all())
    assert int(seed[1].num_batches_tracked) == 0


def test_a_zero_initialised_layer_stays_zero_through_growth():
    model = Net(
        lambda self, x: self.c(self.a(x) + self.b2(self.b1(self.a(x)).relu())),
        a=nn.Linear(4, 9), b1=nn.Linear(9, 8), b2=nn.Linear(8, 9), c=nn.Linear(9, 3),
    )  # fmt: skip
    nn.init.zeros_(model.b2.weight)
    plan = make_plan(model, randn(5, 4), stages=3)
    seed = plan.build_seed()
    assert bool((seed.b2.weight == 0).all())
    gr.Grower(seed, plan).grow()
    assert bool((seed.b2.weight == 0).all())


def test_a_padding_row_stays_zero_through_growth():
    model = Net(
        lambda self, x: self.b(self.e(x)), e=nn.Embedding(10, 9, padding_idx=2), b=nn.Linear(9, 3)
    )
    plan = make_plan(model, torch.arange(6)[None], stages=3)
    seed = plan.build_seed()
    assert bool((seed.e.weight[2] == 0).all()) and seed.e.padding_idx == 2
    grower = gr.Grower(seed, plan)
    grower.grow()
    grower.grow()
    assert bool((seed.e.weight[2] == 0).all()) and bool((seed.e.weight[1] != 0).all())


def test_tied_parameters_stay_tied():
    model = Net(
        lambda self, x: self.b(self.e(x).relu() + self.a(x)),
        e=nn.Embedding(10, 9),
        a=nn.Embedding(10, 9),
        b=nn.Linear(9, 10, bias=False),
    )
    model.b.weight = model.e.weight
    plan = make_plan(model, torch.arange(6)[None], stages=3)
    seed = plan.build_seed()
    assert seed.b.weight is seed.e.weight
    grower = gr.Grower(seed, plan)
    grower.grow()
    assert seed.b.weight is seed.e.weight


def test_two_seeds_are_equal_and_independent():
    plan = gr.plan(convnet(), IMAGE, stages=3)
    a, b = plan.build_seed(), plan.build_seed()
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    with torch.no_grad():
        a[0].weight.zero_()
    assert bool((b[0].weight != 0).any())


def test_hooks_and_subclasses_survive():
    class Mine(nn.Linear):
        pass

    model = nn.Sequential(Mine(4, 8), nn.ReLU(), nn.Linear(8, 3))
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    plan = gr.plan(model, X, stages=2)
    seed = plan.build_seed()
    assert type(seed[0]) is Mine
    calls.clear()
    seed(X)
    assert calls


# A model whose code computes shapes where no attribute can follow: build=.


def closure_model(width: int) -> nn.Module:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, width * 3), nn.Conv1d(width, 2, 1)

        def forward(self, x):
            return self.b(self.a(x).view(x.shape[0], width, 3))  # from the closure

    return Hidden()


def test_without_build_a_closure_is_refused():
    with pytest.raises(gr.GrowthError, match="does not follow another width"):
        gr.plan(closure_model(12), X)


def lambda_model(width: int) -> nn.Module:
    net = Net(
        lambda self, x: self.b(self.shape(self.a(x))),
        a=nn.Linear(4, width * 3),
        b=nn.Conv1d(width, 2, 1),
    )
    net.shape = lambda h: h.view(h.shape[0], width, 3)
    return net


@pytest.mark.parametrize("make", [closure_model, lambda_model])
def test_build_makes_it_grow(make):
    torch.manual_seed(0)
    model = make(12).double()

    def build(widths):
        (width,) = widths.values()
        return make(width).double()

    plan = gr.plan(model, randn(2, 4), stages=3, growth=None, round_to=1, build=build)
    assert len(plan.groups.growable) == 1
    seed = plan.build_seed()
    assert seed(randn(2, 4)).shape == (2, 2, 3)
    check_contract(plan)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda widths: None, "not an nn.Module"),
        (lambda widths: nn.Linear(4, 4), "."),
        (lambda widths: closure_model(12), "."),
    ],
)
def test_a_build_that_does_not_fit(build, text):
    with pytest.raises(gr.GrowthError, match=text):
        gr.plan(closure_model(12), X, build=build).build_seed()


def test_a_plan_can_be_used_twice_and_copied():
    plan = make_plan(mlp(), randn(5, 4), stages=3)
    for _ in range(2):
        check_contract(plan)
    copied = copy.deepcopy(plan)
    assert copied.stage_widths == plan.stage_widths
    check_contract(copied)
