"""Costs of a model: FLOPs against numbers counted by hand, memory against what a real step takes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

import growthring as gr
from growthring import zoo
from growthring.errors import GrowthError
from growthring.planning.costs import (
    OPTIMIZER_STATE,
    Footprint,
    footprint,
    num_examples,
)
from growthring.planning.timing import seconds_per_step
from tests.growth_contract import Net

X = torch.zeros(2, 4)
IMAGE = torch.zeros(2, 3, 8, 8)


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)
    )


def convnet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


# FLOPs per example, a multiply-add counted as 2.


@pytest.mark.parametrize(
    ("model", "inputs", "flops"),
    [
        (mlp(), X, 2 * (4 * 16 + 16 * 12 + 12 * 3)),
        (nn.Linear(4, 3), torch.zeros(2, 5, 4), 2 * 5 * 4 * 3),
        (nn.Conv2d(3, 8, 3, padding=1), IMAGE, 2 * 8 * 3 * 9 * 64),
        (nn.Conv2d(3, 8, 3, padding=1, stride=2), IMAGE, 2 * 8 * 3 * 9 * 16),
        (nn.Conv2d(3, 8, 1, bias=False), IMAGE, 2 * 8 * 3 * 64),
        (nn.Conv2d(6, 8, 3, groups=2), torch.zeros(2, 6, 5, 5), 2 * 8 * 3 * 9 * 9),
        (nn.Conv2d(8, 8, 3, padding=1, groups=8), torch.zeros(2, 8, 8, 8), 2 * 8 * 9 * 64),
        (nn.ConvTranspose2d(3, 8, 3), IMAGE, 2 * 8 * 3 * 9 * 64),
        (nn.Conv1d(3, 5, 2), torch.zeros(2, 3, 9), 2 * 5 * 3 * 2 * 8),
        (nn.GRU(8, 16, batch_first=True), torch.zeros(2, 5, 8), 2 * 5 * 3 * 16 * (8 + 16)),
        (nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)), IMAGE, 0),
        (nn.Embedding(10, 4), torch.zeros(2, 3, dtype=torch.int64), 0),
    ],
)
def test_flops_by_hand(model, inputs, flops):
    assert footprint(model, inputs).flops == flops


class Attention(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.project = nn.Linear(8, 8)

    def forward(self, x):
        x = self.project(x)
        if self.fused:
            return F.scaled_dot_product_attention(x, x, x)
        return torch.softmax(x @ x.transpose(-1, -2), -1) @ x


@pytest.mark.parametrize("fused", [False, True])
def test_flops_of_attention(fused):
    # 4 heads, 16 tokens, head size 8: the projection, then queries × keys and weights × values
    flops = footprint(Attention(fused), torch.zeros(2, 4, 16, 8)).flops
    assert flops == 2 * 4 * 16 * 8 * 8 + 2 * (2 * 4 * 16 * 16 * 8)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_flops_of_a_transformer_layer_do_not_depend_on_its_mode(training, frozen):
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    layer.train(training).requires_grad_(not frozen)
    linear = 2 * 5 * (4 * 16 * 16 + 2 * 16 * 32)
    attention = 2 * (2 * 4 * 5 * 5 * 4)
    assert footprint(layer, torch.zeros(2, 5, 16)).flops == linear + attention


def test_flops_of_an_lstm():
    flops = footprint(nn.LSTM(8, 16, batch_first=True), torch.zeros(2, 5, 8)).flops
    assert flops == 2 * 5 * 4 * 16 * (8 + 16)


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_costs_are_per_example(batch):
    found = footprint(mlp(), torch.zeros(batch, 4))
    assert found == footprint(mlp(), torch.zeros(3, 4))


# Parameters and types of numbers.


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 2)]
)
def test_bytes_follow_the_type_of_numbers(dtype, size):
    found = footprint(mlp().to(dtype), X.to(dtype))
    assert found.parameters == 323 and found.parameter_bytes == 323 * size
    assert found.activation_bytes == size * (4 + 16 + 12), "the input and what each ReLU returned"


def test_tied_weights_count_once():
    net = Net(lambda self, x: self.b(self.e(x)), e=nn.Embedding(10, 6), b=nn.Linear(6, 10))
    net.b.weight = net.e.weight
    found = footprint(net, torch.zeros(2, 3, dtype=torch.int64))
    assert found.parameters == 70 and found.parameter_bytes == 280
    assert found.flops == 2 * 3 * 6 * 10


def test_a_model_without_parameters():
    assert footprint(nn.ReLU(), X) == Footprint(0.0, 0, 0, 0, 0.0)


# Inputs.


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 16), nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x, y, scale=1.0):
        return self.c(torch.relu(self.a(x) + self.b(y)) * scale)


@pytest.mark.parametrize(
    "inputs",
    [
        (X, torch.zeros(2, 6)),
        [X, torch.zeros(2, 6)],
        (X, torch.zeros(2, 6), 2.0),
        {"y": torch.zeros(2, 6), "x": X},
        {"scale": torch.tensor(2.0), "x": X, "y": torch.zeros(2, 6)},
    ],
)
def test_several_inputs(inputs):
    assert num_examples(inputs) == 2
    assert footprint(Two(), inputs).flops == 2 * 16 * (4 + 6 + 3)
    assert seconds_per_step(Two(), inputs, batch_size=3, repeats=1) > 0


def test_counting_while_it_runs_finds_the_same():
    model = zoo.Transformer(11, 13, d_model=8, num_heads=2, d_embed=8, num_encoder_layers=1)
    inputs = (torch.ones(2, 5, dtype=torch.long), torch.ones(2, 3, dtype=torch.long))
    state, before = torch.get_rng_state(), [p.clone() for p in model.parameters()]
    assert footprint(model, inputs, runs=True).flops == footprint(model, inputs).flops
    assert torch.equal(state, torch.get_rng_state())  # dropout drew from one of its own
    pairs = zip(before, model.parameters(), strict=True)
    assert all(torch.equal(old, new) for old, new in pairs)


def test_a_model_that_does_not_run_is_counted_by_its_shapes():
    class OnlyFake(nn.Linear):
        def forward(self, x):
            if type(x) is torch.Tensor:
                raise RuntimeError("not with numbers")
            return super().forward(x)

    assert footprint(OnlyFake(3, 2), torch.ones(5, 3), runs=True).flops == 12


def test_number_of_examples():
    assert num_examples(torch.zeros(5, 3)) == 5
    assert num_examples({"scale": torch.tensor(1.0), "x": torch.zeros(7, 2)}) == 7
    assert num_examples((3, torch.tensor(1.0))) == 1


def test_a_batch_without_examples_is_refused():
    with pytest.raises(GrowthError):
        footprint(mlp(), torch.zeros(0, 4))


def test_a_model_that_makes_tensors_on_the_cpu():
    class Maker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.scale = nn.Linear(4, 3), torch.ones(4)

        def forward(self, x):
            x = x * self.scale + torch.arange(4).float() + torch.tensor([1.0, 2.0, 3.0, 4.0])
            return self.a(x) + torch.zeros(3)

    assert footprint(Maker(), X).flops == 24
    assert seconds_per_step(Maker(), X, 4, repeats=1) > 0


# Activations.


def test_a_batch_norm_costs_activations_in_train_mode_only():
    net = nn.Sequential(nn.Linear(4, 16, bias=False), nn.BatchNorm1d(16), nn.Linear(16, 3))
    train = footprint(net.train(), torch.zeros(64, 4)).activation_bytes
    # the input, the norm's input and output; 2 · 16 statistics for the whole batch
    assert train == pytest.approx(4 * (4 + 16 + 16), rel=0.1)


def test_in_place_functions_keep_less():
    def net(inplace):
        return nn.Sequential(nn.Conv2d(3, 8, 1), nn.Hardtanh(inplace=inplace), nn.Conv2d(8, 8, 1))

    assert (
        footprint(net(True), IMAGE).activation_bytes
        <= footprint(net(False), IMAGE).activation_bytes
    )


def test_nothing_is_kept_where_nothing_is_trained():
    assert footprint(mlp().requires_grad_(False), X).activation_bytes == 0
    part = mlp()
    part[0].requires_grad_(False)
    assert footprint(part, X).activation_bytes == 4 * (16 + 12), "the input is not needed"


def test_counting_works_where_gradients_are_off():
    expected = footprint(mlp(), X)
    with torch.no_grad():
        assert footprint(mlp(), X) == expected


def test_counting_leaves_no_traces():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    before = {n: t.clone() for n, t in net.state_dict().items()}
    state = torch.get_rng_state()
    footprint(net, X)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert net.training


# Memory.


def test_memory_is_the_sum_of_its_parts():
    found = Footprint(
        flops=1.0, parameters=10, parameter_bytes=40, trained_bytes=40, activation_bytes=100.0
    )
    assert found.memory(0, "none") == 80, "weights and gradients"
    assert found.memory(3, "sgd") == 3 * 40 + 300
    assert found.memory(3, "adam") == found.memory(3, "adamw") == 4 * 40 + 300
    assert found.memory(3) == found.memory(3, "sgd")


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "AvaGrad", "LARS"])
def test_optimizer_states_are_as_large_as_assumed(name):
    net = mlp()
    options = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(gr.optim, name)(net.parameters(), lr=0.1, **options)
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    tensors = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
    assert sum(t.numel() for t in tensors if t.dim()) == 323 * OPTIMIZER_STATE[name.lower()]


def peak_bytes(net: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> int:
    """Most memory that one training step holds, by torch's own record of allocations, weights included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        net(x).square().mean().backward()
        optimizer.step()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most + sum(p.numel() * p.element_size() for p in net.parameters())


@pytest.mark.parametrize("batch", [8, 32])
def test_memory_of_activations_is_of_the_measured_order(batch):
    net = convnet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    found = footprint(net, torch.zeros(2, 3, 32, 32)).memory(batch)
    measured = peak_bytes(net, torch.ones(batch, 3, 32, 32), optimizer)
    assert measured / 2.5 < found < 1.5 * measured


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_memory_of_weights_is_of_the_measured_order(name):
    net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    options = {"momentum": 0.9} if name == "sgd" else {}
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name](
        net.parameters(), **options
    )
    found = footprint(net, torch.zeros(2, 512)).memory(4, name)
    assert found == pytest.approx(peak_bytes(net, torch.ones(4, 512), optimizer), rel=0.25)


def test_frozen_weights_need_no_gradient_and_no_state():
    part = mlp()
    part[2].requires_grad_(False)  # 16 · 12 + 12 = 204 of 323
    assert footprint(part, X).memory(0, "sgd") == 4 * (3 * (323 - 204) + 204)
