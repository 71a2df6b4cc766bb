"""A model that was cast or moved, and the settings of the caller: growing works, and what it makes fits."""

import contextlib
import functools

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim.swa_utils import AveragedModel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

import growthring as gr
import growthring.growing.stage as stage_module
import growthring.optim.state as state_module
import growthring.optim.wrap as wrap_module
from growthring.errors import GrowthError, UnsupportedModelError
from growthring.graph.resize import named_tensors
from tests.discovered import discovered_once as discovered_once

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(),
        nn.Linear(16, 2),
    )  # fmt: skip


def train(model, optimizer, x):
    model.train()
    optimizer.zero_grad()
    model(x).float().square().mean().backward()
    optimizer.step()


# Other types of numbers.

CASTS = {
    "double": (torch.float64, 1e-12),
    "bfloat16": (torch.bfloat16, 0.05),
    "half": (torch.float16, 5e-3),
}


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.each(2)
def test_a_seed_that_was_cast_grows(name):
    dtype, limit = CASTS[name]
    plan = gr.plan(net(), X, stages=3, start=0.25)
    seed = getattr(plan.build_seed(), name)()
    average = AveragedModel(seed)
    optimizer = gr.optim.AdamW(seed.parameters(), lr=1e-3, eps=1e-3)
    grower = gr.Grower(seed, plan, optimizer, averages=average, noise=0.0, variance_transfer="off")
    for _ in range(2):
        train(seed, optimizer, X.to(dtype))
        assert grower.grow().change.relative <= limit
        grower.advance(0.5)
        train(seed, optimizer, X.to(dtype))
    assert {t.dtype for t in seed.state_dict().values() if t.is_floating_point()} == {dtype}
    moments = [v for s in optimizer.state.values() for k, v in s.items() if k.startswith("exp")]
    assert {v.dtype for v in moments} == {dtype}
    assert {t.dtype for t in average.module.parameters()} == {dtype}


def test_a_full_model_that_was_cast_after_planning():
    full = net()
    plan = gr.plan(full, X, stages=2, start=0.25)
    full.double()
    seed = plan.build_seed()
    assert seed[0].weight.dtype == torch.float64
    assert gr.Grower(seed, plan, noise=0.0).grow().change.relative < 1e-12


def test_inputs_of_another_type_than_the_parameters_are_left():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.e, self.a, self.b = nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, tokens, scale, mask):
            h = self.e(tokens) * scale.to(self.a.weight.dtype) * mask.unsqueeze(-1)
            assert (
                tokens.dtype == torch.long
                and scale.dtype == torch.float64
                and mask.dtype == torch.bool
            )
            return self.b(torch.relu(self.a(h)))

    inputs = (
        torch.arange(6).view(2, 3),
        torch.ones((), dtype=torch.float64),
        torch.ones(2, 3, dtype=torch.bool),
    )
    plan = gr.plan(Mixed(), inputs, stages=2, start=0.5)
    seed = plan.build_seed().bfloat16()
    gr.Grower(seed, plan, noise=0.0, variance_transfer="off").grow()
    mixed = plan.build_seed()
    mixed.b.double()  # parts of several types: the inputs follow those that had theirs
    assert plan.inputs_for(mixed)[1].dtype == torch.float64


@pytest.mark.parametrize("method", ["net2net", "splitting", "firefly", "gradmax"])
def test_methods_that_search_follow_too(method):
    full = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    plan = gr.plan(full, X, stages=2, start=0.5)
    seed = plan.build_seed().double()
    batches = [(X.double(), torch.zeros(6, dtype=torch.long))]
    gr.Grower(seed, plan, method=method, batches=batches, loss=nn.functional.cross_entropy).grow()
    assert {p.dtype for p in seed.parameters()} == {torch.float64}


# Another device. There is none here: a fake one, whose tensors refuse to be mixed with others, stands in.

ELSEWHERE = torch.device("lazy", 0)


class SecondDevice(TorchFunctionMode):
    """Calls that have to do with the second device run on fake tensors; all others as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs))
        is_there = any(
            isinstance(v, FakeTensor) or (isinstance(v, torch.device) and v == ELSEWHERE)
            for v in leaves
        )
        with self.fake if is_there else contextlib.nullcontext():
            return func(*args, **kwargs)


def test_inputs_go_to_the_model():
    plan = gr.plan(net(), {"input": X}, stages=2, start=0.25)
    seed = plan.build_seed().to("meta")
    assert plan.inputs_for(seed)["input"].device.type == "meta"
    assert plan.example_inputs["input"].device.type == "cpu"


OPTIMIZERS = {
    "AdamW": lambda p: gr.optim.AdamW(p, lr=1e-3),
    "own": lambda p: gr.optim.AdamW(p, lr=1e-3, ring_schedule="own", total_steps=9),
    "SGD": lambda p: gr.optim.SGD(p, lr=1e-3, momentum=0.9),
    "LARS": lambda p: gr.optim.LARS(p, lr=1e-3),
    "torch": lambda p: torch.optim.Adam(p, foreach=False),
    "wrapped": lambda p: gr.optim.with_rings(
        torch.optim.RMSprop(p, foreach=False), rate_adaptation="norm"
    ),
}


def _first_state_here(ask, optimizer, group, parameter):
    return ask(optimizer, group, torch.zeros([1] * parameter.dim()))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.each(10)
def test_nothing_is_mixed_with_what_is_on_another_device(name, monkeypatch):
    full = nn.Sequential(*net()[:4], nn.ReLU(), nn.Linear(16, 2))
    plan = gr.plan(full, X, stages=3, start=0.25)
    seed = plan.build_seed()
    # these two need values
    monkeypatch.setattr(stage_module, "check_finite", lambda model: None)
    for module in (state_module, wrap_module):
        patched = functools.partial(_first_state_here, module.first_state_of)
        monkeypatch.setattr(module, "first_state_of", patched)
    with SecondDevice() as mode:
        for module in seed.modules():
            for table in (module._parameters, module._buffers):
                for key, tensor in table.items():
                    with mode.fake:
                        fake = torch.empty(tensor.shape, dtype=tensor.dtype, device=ELSEWHERE)
                    table[key] = nn.Parameter(fake) if isinstance(tensor, nn.Parameter) else fake
        x = plan.inputs_for(seed)
        assert x.device.type == "lazy"
        optimizer = OPTIMIZERS[name](seed.parameters())
        grower = gr.Grower(seed, plan, optimizer)
        for _ in range(2):
            seed(x).sum().backward()
            optimizer.step()
            grower.grow(measure=False)
            grower.advance(0.5)
            assert all(p.grad.shape == p.shape for p in seed.parameters())
            seed(x).sum().backward()
            optimizer.step()
        assert {t.device.type for t in seed.state_dict().values()} == {"lazy"}


def test_costs_of_a_model_that_was_cast_or_moved_after_planning():
    full = net()
    plan = gr.plan(full, X, stages=2, start=0.25)
    wanted = [f.flops for f in plan.footprints]
    del plan.__dict__["footprints"]
    full.double()
    assert [f.flops for f in plan.footprints] == wanted
    assert plan.measure(1).seconds


# Settings of the caller.


def settings():
    return {
        "inference_mode": torch.inference_mode,
        "no_grad": torch.no_grad,
        "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "double by default": lambda: default_dtype(torch.float64),
        "half by default": lambda: default_dtype(torch.float16),
        "meta by default": lambda: torch.device("meta"),
        "deterministic": deterministic,
    }


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def grown(setting, method="paired"):
    full, x, y = net(), X.clone(), torch.zeros(6, dtype=torch.long)
    if method != "paired":
        full = nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)
        )
        for p in full.parameters():
            nn.init.normal_(p, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    with setting():
        plan = gr.plan(full, x, stages=3, start=0.25)
        str(plan)
        seed = plan.build_seed()
        optimizer = gr.optim.AdamW(seed.parameters(), lr=1e-3)
        grower = gr.Grower(
            seed, plan, optimizer, method=method, generator=generator, batches=[(x, y)],
            loss=nn.functional.cross_entropy,
        )  # fmt: skip
        report = grower.grow()
    train(seed, optimizer, x)
    with setting():
        state = grower.state_dict()
        grower.grow()
        grower.advance(0.5)
        other = plan.build_seed()
        gr.Grower(other, plan).load_state_dict(state)
    train(seed, optimizer, x)
    return report, seed


@pytest.mark.parametrize(
    "method",
    [
        "paired",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("net2net", "gradmax", "firefly")),
    ],
)
@pytest.mark.parametrize("name", settings())
@pytest.mark.each(8)
def test_settings_of_the_caller_change_nothing(name, method):
    if method == "firefly" and name not in ("inference_mode", "no_grad", "meta by default"):
        pytest.skip("the same code as the other methods that search")
    _, wanted = grown(contextlib.nullcontext, method)
    report, found = grown(settings()[name], method)
    if method == "paired":
        assert report.change.relative < 1e-5
    for (key, value), (_, other) in zip(
        found.state_dict().items(), wanted.state_dict().items(), strict=True
    ):
        assert value.device.type == "cpu" and not value.is_inference(), key
        assert torch.equal(value, other), key


def test_growing_between_two_passes_under_autocast():
    plan = gr.plan(net(), X, stages=2, start=0.25)
    seed = plan.build_seed()
    optimizer = torch.optim.SGD(seed.parameters(), lr=0.01)
    grower = gr.Grower(seed, plan, optimizer, noise=0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = seed(X)  # fills autocast's cache of weights
        assert grower.grow().change.relative < 1e-5
        after = seed(X)
        after.sum().backward()
    assert after.dtype == torch.bfloat16
    assert before.shape == after.shape
    assert all(p.grad.shape == p.shape for p in seed.parameters())


def test_validating_in_inference_mode_while_a_norm_fades():
    plan = gr.plan(net(), X, stages=2, start=0.25)
    seed = plan.build_seed()
    grower = gr.Grower(seed, plan)
    grower.grow()
    for progress in (0.0, 0.5):
        grower.advance(progress)
        with torch.inference_mode():
            seed.eval()(X)
        seed.zero_grad()
        seed.train()(X).sum().backward()
        assert all(p.grad is not None for p in seed.parameters())


def test_the_default_device_of_the_caller_reaches_the_model():
    class Makes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.where = nn.Linear(4, 8), nn.Linear(8, 2), "cpu"

        def forward(self, x):
            assert torch.zeros(1).device.type == self.where
            assert torch.zeros(1).dtype == (
                torch.float64 if self.where == "meta" else torch.float32
            )
            return self.b(torch.relu(self.a(x)))

    full = Makes()
    plan = gr.plan(full, X, stages=2, start=0.5)
    full.where = "meta"
    with torch.device("meta"), default_dtype(torch.float64):
        plan = gr.plan(full, X, stages=2, start=0.5)
        seed = plan.build_seed()
        gr.Grower(seed, plan).grow()
    assert torch.get_default_dtype() == torch.float32


def test_a_model_made_in_inference_mode_is_refused():
    with torch.inference_mode():
        full = net()
    plan = gr.plan(full, X, stages=2, start=0.25)
    seed = plan.build_seed()  # plain tensors
    assert gr.Grower(seed, plan).grow()
    with torch.inference_mode():
        thin = type(seed)(*[type(m)(*(
            (m.in_features, m.out_features) if isinstance(m, nn.Linear) else
            (m.normalized_shape,) if isinstance(m, nn.LayerNorm) else
            (m.num_features,) if isinstance(m, nn.BatchNorm1d) else ())) for m in plan.build_seed()])  # fmt: skip
    with pytest.raises(
        UnsupportedModelError, match=r"'0.weight' was made in torch.inference_mode.*outside of it"
    ):
        gr.Grower(thin, plan)
    assert issubclass(UnsupportedModelError, GrowthError) and named_tensors(thin)
