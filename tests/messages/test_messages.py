"""Every error that a user can cause: a GrowthError that says where, what, why and what to do."""

import copy
import tempfile

import pytest
import torch
import torch.distributed as dist
from torch import nn

import growthring as gr
from tests.growth_contract import Net, make_plan, randn

X = torch.zeros(2, 4)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def says(call, *parts, error=gr.GrowthError):
    """Calls, and asserts that a GrowthError with all these parts comes out."""
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    assert isinstance(caught.value, (ValueError, RuntimeError))
    for part in parts:
        assert part in text, f"'{part}' is missing in: {text}"
    assert text.rstrip().endswith((".", ")", "]")) or "\n" in text, text
    return text


# The model.


@pytest.mark.parametrize("model", [None, "net", nn.Linear, lambda x: x, torch.zeros(2)])
def test_not_a_module(model):
    says(lambda: gr.plan(model, X), "not an nn.Module")
    says(lambda: gr.discover_width_groups(model, X), "not an nn.Module")


def test_compiled():
    compiled = torch.compile(mlp())
    says(
        lambda: gr.plan(compiled, X),
        "already compiled",
        "model._orig_mod",
        "gr.Grower takes the compiled one",
    )
    plan = gr.plan(mlp(), X, stages=2)
    seed = plan.build_seed()
    assert gr.Grower(torch.compile(seed), plan).model is seed


def test_compiled_part_of_a_model():
    net = nn.Sequential(nn.Linear(4, 8), torch.compile(nn.Sequential(nn.ReLU(), nn.Linear(8, 3))))
    says(lambda: gr.plan(net, X), "compiled", "'1'")


def test_compiled_in_place_is_no_obstacle():
    net = mlp()
    net.compile()
    plan = gr.plan(net, X, stages=2)
    assert plan.widths("0") == [4, 8]
    assert gr.Grower(plan.build_seed(), plan).grow().change.relative < 1e-5


def test_a_module_that_raises_something_else_than_attribute_error():
    class Open(nn.Module):
        def __getattr__(self, name):
            return self.__dict__["_parameters"][name]

    net = nn.Sequential(nn.Linear(4, 3), Open())
    says(lambda: gr.plan(net, X), "'1' (Open) raises KeyError", "raise AttributeError")


def test_data_parallel():
    wrapped = nn.DataParallel(mlp())
    advice = ("wrapped in DataParallel", "model.module", "DistributedDataParallel")
    says(lambda: gr.plan(wrapped, X), *advice)
    plan = gr.plan(mlp(), X, stages=2)
    says(lambda: gr.Grower(nn.DataParallel(plan.build_seed()), plan), *advice)


def test_distributed_data_parallel():
    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("gloo", init_method=f"file://{file.name}.ddp", rank=0, world_size=1)
        try:
            net = mlp()
            wrapped = nn.parallel.DistributedDataParallel(net)
            says(lambda: gr.plan(wrapped, X), "wrapped in DistributedDataParallel", "model.module")
            plan = gr.plan(net, X, stages=2)
            seed = nn.parallel.DistributedDataParallel(plan.build_seed())
            assert gr.Grower(seed, plan).model is seed.module
            inner = nn.Sequential(nn.Linear(4, 4), nn.parallel.DistributedDataParallel(mlp()))
            says(lambda: gr.plan(inner, X), "wrapped in DistributedDataParallel", "'1'")
        finally:
            dist.destroy_process_group()


def test_scripted_and_traced():
    says(lambda: gr.plan(torch.jit.script(mlp()), X), "scripted", "Grow the Python module")
    says(lambda: gr.plan(torch.jit.trace(mlp(), X), X), "scripted code is fixed")


def test_scripted_part_of_a_model():
    net = nn.Sequential(
        nn.Linear(4, 8), torch.jit.script(nn.Sequential(nn.ReLU(), nn.Linear(8, 3)))
    )
    says(lambda: gr.plan(net, X), "'1'", "script")


def test_quantised():
    quantised = torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear}, dtype=torch.qint8)
    says(lambda: gr.plan(quantised, X), "'0' is a quantised Linear", "Grow the float model")


def test_integer_parameters():
    net = mlp()
    net[0].weight = nn.Parameter(torch.ones(8, 4, dtype=torch.int8), requires_grad=False)
    says(lambda: gr.plan(net, X), "'0.weight'", "torch.int8", "quantise")


def test_lazy():
    net = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3))
    says(lambda: gr.plan(net, X), "'0.weight' is lazy", "Run the model once")


def test_meta_device():
    with torch.device("meta"):
        net = mlp()
    x = torch.zeros(2, 4, device="meta")
    says(lambda: gr.plan(net, x), "'0.weight'", "meta device", "to_empty")
    groups = gr.discover_width_groups(net, x)
    assert [g.name for g in groups.growable] == ["0"], "discovery needs no values"


def test_meta_device_of_the_seed():
    plan = gr.plan(mlp(), X, stages=2)
    seed = plan.build_seed().to("meta")
    says(lambda: gr.Grower(seed, plan).grow(), "meta device")


def test_sparse():
    net = mlp()
    net[0].weight = nn.Parameter(net[0].weight.detach().to_sparse())
    says(lambda: gr.plan(net, X), "'0.weight'", "sparse")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite(value):
    net = mlp()
    with torch.no_grad():
        net[2].weight[0, 0] = value
    says(lambda: gr.plan(net, X), "'2.weight'", "not finite", "Restore")
    fine = gr.plan(mlp(), X, stages=2)
    seed = fine.build_seed()
    with torch.no_grad():
        seed[0].bias[0] = value
    says(lambda: gr.Grower(seed, fine).grow(), "'0.bias'", "not finite")


def test_a_buffer_that_is_minus_infinity_by_design_is_no_divergence():
    # causal masks are kept as buffers of -inf
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(4, 8) for _ in range(4))
            self.o = nn.Linear(8, 3)
            self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))

        def forward(self, x):
            weights = (self.q(x) @ self.k(x).mT + self.mask).softmax(-1)
            return self.o(weights @ self.v(x))

    plan = gr.plan(Masked(), torch.zeros(2, 3, 4), stages=2)
    assert gr.Grower(plan.build_seed(), plan).grow().change.relative < 1e-5


def test_frozen_parameters_grow_and_stay_frozen():
    net = mlp().requires_grad_(False)
    plan = gr.plan(net, X, stages=2)
    seed = plan.build_seed()
    gr.Grower(seed, plan).grow()
    assert not any(p.requires_grad for p in seed.parameters())


def test_shared_parameters_grow_and_stay_shared():
    net = nn.Sequential(
        nn.Linear(4, 8),
        nn.ReLU(),
        nn.Linear(8, 8),
        nn.ReLU(),
        nn.Linear(8, 8),
        nn.ReLU(),
        nn.Linear(8, 3),
    )
    net[4].weight = net[2].weight
    plan = make_plan(net, randn(2, 4), stages=3)
    seed = plan.build_seed()
    gr.Grower(seed, plan, variance_transfer="off").grow()
    assert seed[4].weight is seed[2].weight
    seed = plan.build_seed()
    gr.Grower(seed, plan).grow()


def test_a_shared_module():
    layer = nn.Linear(8, 8)
    net = nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(), layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(8, 3)
    )
    plan = make_plan(net, randn(2, 4), stages=3)
    seed = plan.build_seed()
    assert seed[2] is seed[4]
    gr.Grower(seed, plan).grow()
    assert seed[2] is seed[4]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_works(dtype):
    plan = gr.plan(mlp().to(dtype), X.to(dtype), stages=2)
    seed = plan.build_seed()
    gr.Grower(seed, plan).grow()
    assert seed[0].weight.dtype is dtype


def test_a_model_without_parameters():
    says(lambda: gr.plan(nn.ReLU(), X), "nothing in ReLU can grow", "no parameters")


def test_a_model_with_nothing_to_grow():
    text = says(lambda: gr.plan(nn.Linear(4, 3), X), "nothing in Linear can grow")
    assert "model input" in text and "model output" in text


def test_reasons_never_promise_what_does_not_happen():
    def forward(self, x):
        h = self.a(x)
        return self.b((h.mT @ h).flatten(1))

    text = says(
        lambda: gr.plan(Net(forward, a=nn.Linear(4, 6), b=nn.Linear(36, 3)), torch.zeros(2, 5, 4)),
        "a (6)",
    )
    assert "grows instead" not in text


def test_a_model_that_cannot_be_copied():
    import threading

    net = mlp()
    net.lock = threading.Lock()
    says(lambda: gr.plan(net, X).build_seed(), "cannot be copied", "lock", "build=")


def test_a_branch_on_data():
    def forward(self, x):
        h = self.a(x)
        if h.sum() > 0:
            h = h.relu()
        return self.b(h)

    net = Net(forward, a=nn.Linear(4, 8), b=nn.Linear(8, 3))
    says(lambda: gr.plan(net, X), "branches on the values of tensors", "torch.where")


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (
            lambda self, x: self.b(self.a(x).relu()) * float(x.sum()),
            "branches on the values of tensors",
        ),
        (
            lambda self, x: self.b(torch.from_numpy(self.a(x).detach().numpy())),
            "torch.export cannot trace Net",
        ),
    ],
    ids=["float", "numpy"],
)
def test_a_forward_that_cannot_be_traced(forward, reason):
    net = Net(forward, a=nn.Linear(4, 8), b=nn.Linear(8, 3))
    says(lambda: gr.plan(net, torch.ones(2, 4), stages=2), reason)


def test_rows_chosen_by_a_mask_are_no_obstacle():
    def forward(self, x):
        return self.b(self.a(x)[self.a(x).sum(-1) > 0])

    plan = gr.plan(Net(forward, a=nn.Linear(4, 8), b=nn.Linear(8, 3)), torch.ones(2, 4), stages=2)
    grower = gr.Grower(plan.build_seed(), plan)
    grower.grow()
    assert plan.widths("a") == [4, 8] and grower.is_full


# The example inputs.


@pytest.mark.parametrize("inputs", [3, "x", None, 1.5, object()])
def test_inputs_of_the_wrong_type(inputs):
    says(lambda: gr.plan(mlp(), inputs), "example_inputs", "tensor", "tuple", "dict")


@pytest.mark.parametrize("inputs", [(), {}, [1, 2], {"x": 3}])
def test_inputs_without_a_tensor(inputs):
    says(lambda: gr.plan(mlp(), inputs), "example_inputs holds no tensor", "pass")


def test_inputs_of_the_wrong_shape():
    says(
        lambda: gr.plan(mlp(), torch.zeros(2, 5)),
        "the model's own forward pass fails on the example inputs", "shape, type and device",
    )  # fmt: skip


def test_inputs_of_the_wrong_number_type():
    says(
        lambda: gr.plan(mlp(), torch.zeros(2, 4, dtype=torch.int64)), "fails on the example inputs"
    )
    says(lambda: gr.plan(mlp().double(), X), "fails on the example inputs")


def test_inputs_on_another_device():
    says(
        lambda: gr.plan(mlp(), torch.zeros(2, 4, device="meta")),
        "on meta",
        "model on cpu",
        "Move one of them",
    )


def test_inputs_with_a_wrong_name():
    says(lambda: gr.plan(mlp(), {"nonsense": X}), "fails on the example inputs", "nonsense")


def test_too_many_inputs():
    says(lambda: gr.plan(mlp(), (X, X)), "fails on the example inputs")


def test_named_outputs():
    says(lambda: gr.plan(mlp(), X, outputs=["logits"]), "outputs=['logits']", "'logits'")


# Options of plan.


def test_freeze_that_matches_nothing():
    says(
        lambda: gr.plan(mlp(), X, freeze=["layer7"]), "freeze='layer7' matches no module", "inspect"
    )
    says(lambda: gr.plan(mlp(), X, freeze=[7]), "freeze takes names and globs", "int")


def test_heads_that_do_not_exist():
    says(lambda: gr.plan(mlp(), X, heads="all"), "heads='all'", "auto", "size", "count", "both")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"stages": 0}, "stages=0"), ({"stages": "3"}, "stages='3'"),
        ({"start": 0}, "start=0"), ({"start": 2}, "start=2"), ({"start": float("nan")}, "start=nan"),
        ({"growth": -0.5}, "growth=-0.5"), ({"growth": float("nan")}, "growth=nan"),
        ({"round_to": 0}, "round_to=0"), ({"round_to": 2.0}, "round_to=2.0"),
    ],
)  # fmt: skip
def test_wrong_numbers(options, part):
    says(lambda: gr.plan(mlp(), X, **options), part)


@pytest.mark.parametrize(
    ("widths", "parts"),
    [
        ({"0": [2, 4, 6]}, ("widths['0'] = [2, 4, 6]", "must end at the full width 8")),
        ({"0": [4, 2, 8]}, ("shrinks from 4 to 2", "only gains width")),
        ({"0": [2, 8]}, ("2 widths for 3 stages",)),
        ({"0": [2, -4, 8]}, ("at least 1",)),
        ({"0": 8}, ("widths['0']",)),
        ({"0": ["2", "4", "8"]}, ("whole numbers",)),
        ([2, 4, 8], ("widths",)),
        ({"9": [2, 4, 8]}, ("no width group '9'", "Growable groups: 0")),
        ({"0": [2, 4, 8], "?": [2, 4, 8]}, ("'0' twice",)),
        ({"2": [1, 2, 3]}, ("widths['2']", "frozen", "model output")),
    ],
)
@pytest.mark.each(2)
def test_wrong_widths(widths, parts):
    says(lambda: gr.plan(mlp(), X, stages=3, widths=widths), *parts)


def test_odd_widths_work():
    plan = make_plan(
        nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3)),
        randn(2, 4),
        stages=3,
        widths={"0": [1, 4, 9]},
    )
    grower = gr.Grower(plan.build_seed(), plan, noise=0.0)
    assert grower.grow().change.relative < 1e-12 and grower.grow().change.relative < 1e-12


def test_unknown_groups():
    groups = gr.discover_width_groups(mlp(), X)
    says(lambda: groups["nope"], "no width group 'nope'", "Growable groups: 0")
    says(lambda: gr.plan(mlp(), X, stages=2).widths("nope"), "no width group 'nope'")


# Grower.


@pytest.fixture
def plan():
    return gr.plan(mlp(), X, stages=3)


def test_unknown_method_mode_and_noise(plan):
    seed = plan.build_seed()
    says(lambda: gr.Grower(seed, plan, method="net2net?"), "method='net2net?'", "paired")
    says(
        lambda: gr.Grower(seed, plan, variance_transfer="magic"),
        "variance_transfer='magic'",
        "preserving, paper, constraint, off",
    )
    for noise in (-1, 1.5, float("nan")):
        says(lambda noise=noise: gr.Grower(seed, plan, noise=noise), "noise=")


def test_a_plan_that_is_none_of_ours(plan):
    says(lambda: gr.Grower(plan.build_seed(), {"0": [2, 4, 8]}), "plan")


def test_an_optimizer_of_another_model(plan):
    other = torch.optim.SGD(mlp().parameters(), lr=0.1)
    says(lambda: gr.Grower(plan.build_seed(), plan, optimizer=other), "optimizer", "parameters")


def test_a_number_instead_of_a_generator(plan):
    says(lambda: gr.Grower(plan.build_seed(), plan, generator=7), "generator")


def test_growing_past_the_end(plan):
    grower = gr.Grower(plan.build_seed(), plan)
    grower.grow()
    grower.grow()
    says(grower.grow, "stage 2, the last of 3", "full size")


def test_a_model_of_no_stage(plan):
    says(
        lambda: gr.Grower(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), plan),
        "no stage", "'0.weight' is (5, 4)", "plan.build_seed()",
    )  # fmt: skip
    says(lambda: gr.Grower(nn.Linear(4, 8), plan), "lacks '0.weight'", "plan.build_seed()")


def test_a_model_changed_behind_the_growers_back(plan):
    seed = plan.build_seed()
    grower = gr.Grower(seed, plan)
    seed[0] = nn.Linear(4, 5)
    says(grower.grow, "'0.weight' is (5, 4)", "outside the grower")


def test_the_full_model_itself_is_at_the_last_stage(plan):
    says(gr.Grower(copy.deepcopy(plan.model), plan).grow, "full size")


def test_state_of_something_else(plan):
    grower = gr.Grower(plan.build_seed(), plan)
    for state in ({}, {"stage": 1}, mlp().state_dict()):
        says(lambda state=state: grower.load_state_dict(state), "state")


# build=.


def test_build_of_another_model():
    says(
        lambda: gr.plan(mlp(), X, stages=2, build=lambda widths: nn.Linear(4, 3)).build_seed(),
        "build(widths)",
    )
    says(
        lambda: gr.plan(mlp(), X, stages=2, build=lambda widths: mlp()).build_seed(),
        "build(widths)",
    )
