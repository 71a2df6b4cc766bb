"""Weight normalisation grows as a plain weight does; what else computes weights is frozen, by name."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import growthring as gr
from growthring.errors import GrowthStepError
from tests.discovered import discovered_once as discovered_once
from tests.graph.exactness import WAYS, grown_exactly, outputs, trains
from tests.growth_contract import (
    Net,
    distance,
    make_plan,
    parameter,
    perturb,
    randn,
    tokens,
    widths,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")

STYLES: dict[str, Callable[..., nn.Module]] = {
    "hook": weight_norm,
    "parametrization": parametrizations.weight_norm,
}
Case = tuple[nn.Module, Any, list[Any], dict[str, int]]
Normalise = Callable[..., nn.Module]


def mlp(norm: Normalise, **options: Any) -> Case:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x).relu()).relu())

    parts = {"a": nn.Linear(4, 9), "b": nn.Linear(9, 7), "c": nn.Linear(7, 3)}
    model = Net(forward, **{k: norm(m, **options) for k, m in parts.items()})
    return model, randn(5, 4), [randn(2, 4)], {"a": 9, "b": 7}


def smooth(norm: Normalise) -> Case:
    model, x, fresh, found = mlp(norm)
    model._function = lambda self, x: self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
    return model, x, fresh, found


def wavenet(norm: Normalise) -> Case:
    """Convolutions of every kind, a gate, batch norm and a residual stream."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        a, b = self.gate(x).chunk(2, dim=1)
        x = x + self.mix(torch.tanh(a) * torch.sigmoid(b))
        return self.up(self.bn(self.depth(x)).relu())

    model = Net(
        forward,
        stem=norm(nn.Conv1d(2, 8, 3, padding=1)),
        gate=norm(nn.Conv1d(8, 12, 1)),
        mix=norm(nn.Conv1d(6, 8, 1)),
        depth=norm(nn.Conv1d(8, 8, 3, groups=8)),
        bn=nn.BatchNorm1d(8),
        up=norm(nn.ConvTranspose1d(8, 3, 4, stride=2)),
    )
    return model, randn(3, 2, 8), [randn(2, 2, 11)], {"stem": 8, "gate": 6}


def kernel_axis(norm: Normalise) -> Case:
    """One magnitude for each position of the kernel."""
    model = nn.Sequential(
        norm(nn.Conv1d(2, 8, 3), dim=2), nn.ReLU(), norm(nn.Conv1d(8, 3, 3), dim=2)
    )
    return model, randn(3, 2, 8), [randn(2, 2, 11)], {"0": 8}


def embedded(norm: Normalise) -> Case:
    model = Net(
        lambda self, t: self.c(self.rnn(self.e(t))[0]),
        e=norm(nn.Embedding(11, 6)),
        rnn=norm(nn.GRU(6, 8), name="weight_hh_l0"),
        c=norm(nn.Linear(8, 3), dim=None),
    )
    return model, tokens(3, 4, high=11), [tokens(5, 2, high=11)], {"e": 6, "rnn": 8}


def own_scale(norm: Normalise) -> Case:
    """Magnitudes that the user set: new units start at the ratio they have."""
    model, x, fresh, found = mlp(norm)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("_g", "original0")):
                p.mul_(3)
    return model, x, fresh, found


CASES: dict[str, Callable[[Normalise], Case]] = {
    "rows": mlp,
    "columns": lambda norm: mlp(norm, dim=1),
    "one norm for all": lambda norm: mlp(norm, dim=None),
    "last axis counted from the end": lambda norm: mlp(norm, dim=-1),
    "tanh": smooth,
    "convolutions": wavenet,
    "kernel axis": kernel_axis,
    "embedding and GRU": embedded,
    "own scale": own_scale,
}


def planned(style: str, name: str) -> tuple[gr.Plan, list[Any], dict[str, int]]:
    torch.manual_seed(0)
    model, inputs, fresh, found = CASES[name](STYLES[style])
    return make_plan(model, inputs, stages=3), fresh, found


@pytest.mark.each(18)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("style", STYLES)
def test_it_grows_and_nothing_changes(style: str, name: str) -> None:
    plan, fresh, found = planned(style, name)
    assert widths(plan) == found
    full = {n: tuple(p.shape) for n, p in plan.model.named_parameters()}
    # Rescaled weights in front of a BatchNorm: its ε shows in train mode.
    if name == "convolutions":
        grown_exactly(plan, fresh, WAYS[1:2], training=False)
    model = grown_exactly(plan, fresh, WAYS if name != "convolutions" else (WAYS[0], WAYS[2]))
    assert {n: tuple(p.shape) for n, p in model.named_parameters()} == full
    trains(model, plan.example_inputs)
    trains(plan.build_seed(), plan.example_inputs)


def plain_copy(model: nn.Module) -> nn.Module:
    """The same model with plain weights."""
    twin = Net(
        model._function,
        **{n: nn.Linear(m.in_features, m.out_features) for n, m in model.named_children()},
    )
    with torch.no_grad():
        for name, layer in twin.double().named_children():
            layer.weight.copy_(getattr(model, name).weight)
            layer.bias.copy_(getattr(model, name).bias)
    return twin


@pytest.mark.parametrize("method", ["paired", "net2net", "random"])
@pytest.mark.parametrize("name", ["rows", "columns", "one norm for all"])
@pytest.mark.each(9)
def test_the_weight_grows_like_a_plain_one(name: str, method: str) -> None:
    """The same seed without weight normalisation, grown with the same numbers, has the same weights."""
    plan, _, _ = planned("parametrization", name)
    normalised = plan.build_seed()
    perturb(normalised)
    plain = plain_copy(normalised)
    plain_plan = make_plan(plain_copy(plan.model), plan.example_inputs, stages=3)
    old = {n: tuple(m.weight.shape) for n, m in plain.named_children()}
    for model, its_plan in ((normalised, plan), (plain, plain_plan)):
        generator = torch.Generator().manual_seed(1)
        gr.Grower(model, its_plan, method=method, noise=0.0, generator=generator).grow()
    for n, (rows, columns) in old.items():
        new, same = getattr(normalised, n).weight, getattr(plain, n).weight
        torch.testing.assert_close(new[:rows, :columns], same[:rows, :columns])
        if (
            name == "rows" or method == "net2net"
        ):  # the ratio of new rows is that of torch's default, 1
            torch.testing.assert_close(new[rows:], same[rows:])
        assert 0.5 < (new.std() / same.std()).item() < 2


@pytest.mark.parametrize("style", STYLES)
def test_the_seed_is_the_leading_part_of_the_weight(style: str) -> None:
    torch.manual_seed(0)
    model, inputs, _, _ = own_scale(STYLES[style])
    plan = make_plan(model, inputs, stages=3)
    seed = plan.build_seed()
    model(plan.example_inputs)
    gain = math.sqrt(9 / seed.b.in_features)
    wanted = gain * model.b.weight[: seed.b.out_features, : seed.b.in_features]
    assert seed.b.weight.shape == wanted.shape  # before any forward pass, too
    torch.testing.assert_close(seed.b.weight.detach(), wanted.detach())
    torch.testing.assert_close(seed.b.bias, gain * model.b.bias[: seed.b.out_features])


def test_new_units_start_at_the_ratio_of_the_full_model() -> None:
    torch.manual_seed(0)
    model, inputs, _, _ = own_scale(parametrizations.weight_norm)
    plan = make_plan(model, inputs, stages=2)
    seed = plan.build_seed()
    gr.Grower(seed, plan, noise=0.0, variance_transfer="off").grow()
    g, v = seed.b.parametrizations.weight.original0, seed.b.parametrizations.weight.original1
    torch.testing.assert_close(g / v.norm(dim=1, keepdim=True), torch.full_like(g, 3.0))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.each(2)
def test_noise_parts_pairs_and_changes_little(style: str) -> None:
    plan, _, _ = planned(style, "tanh")
    seed = plan.build_seed()
    perturb(seed)
    report = gr.Grower(seed, plan, noise=1e-3).grow()
    assert report.change is not None and report.change.relative < 1e-12
    assert report.change_with_noise is not None
    assert 0 < report.change_with_noise.relative < 1e-2
    seed(plan.example_inputs)
    assert not torch.equal(seed.b.weight[-1], seed.b.weight[-2])


def test_noise_on_a_layer_that_reads_new_pairs_changes_nothing() -> None:
    """+N and -N on equal inputs would change the norm, and with it all that the unit reads."""
    torch.manual_seed(0)
    model, inputs, _, _ = smooth(parametrizations.weight_norm)
    plan = make_plan(model, inputs, stages=3)
    seed = plan.build_seed()
    perturb(seed)
    x = plan.example_inputs
    before = outputs(seed, x, False)
    grower = gr.Grower(seed, plan, noise=0.5)
    with torch.no_grad():
        grower.grow()
    first = seed.a
    with torch.no_grad():  # take the noise of the first layer back: its second halves are copies
        for tensor in (
            first.parametrizations.weight.original0,
            first.parametrizations.weight.original1,
        ):
            old, new = plan.stage_widths[0], plan.stage_widths[1]
            key = plan.groups["a"].key
            half = (new[key] - old[key]) // 2
            tensor[old[key] + half : old[key] + 2 * half] = tensor[old[key] : old[key] + half]
    assert distance(before[0], outputs(seed, x, False)[0]) < 1e-12


def test_an_error_leaves_the_computed_weight_as_it_was() -> None:
    plan, _, _ = planned("hook", "rows")
    seed = plan.build_seed()
    before = copy.deepcopy(seed.state_dict()), seed.a.weight
    grower = gr.Grower(seed, plan)
    grower.rings.append = None  # type: ignore[method-assign, assignment]
    with pytest.raises(GrowthStepError):
        grower.grow()
    assert seed.a.weight.shape == before[1].shape
    for name, tensor in seed.state_dict().items():
        assert torch.equal(tensor, before[0][name])


@pytest.mark.parametrize("mode", ["paper", "constraint"])
def test_rules_to_the_letter_rescale_the_weight(mode: str) -> None:
    plan, _, _ = planned("parametrization", "rows")
    seed = plan.build_seed()
    perturb(seed)
    before = seed.b.weight.detach().clone()
    report = gr.Grower(seed, plan, variance_transfer=mode, noise=0.0).grow()
    factor = report.factors["b.parametrizations.weight.original1"]
    rows, columns = before.shape
    torch.testing.assert_close(seed.b.weight[:rows, :columns], factor * before)
    if mode == "constraint":
        wanted = 1 / math.sqrt(columns * float(before.var(correction=0)))
        assert factor == pytest.approx(wanted)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("make", [gr.optim.SGD, gr.optim.Adam, torch.optim.AdamW])
@pytest.mark.each(5)
def test_training_goes_on(style: str, make: Any) -> None:
    plan, _, _ = planned(style, "tanh")
    model = plan.build_seed()
    optimizer = make(model.parameters(), lr=0.1 if make is gr.optim.SGD else 1e-2)
    grower = gr.Grower(model, plan, optimizer)
    x, y = plan.example_inputs, randn(5, 3, seed=8)
    losses = []
    for step in range(60):
        if step in (20, 40):
            grower.grow()
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert grower.is_full and losses[-1] < 0.7 * losses[0]
    state = grower.state_dict()
    again = plan.build_seed()
    gr.Grower(again, plan).load_state_dict(state)
    again.load_state_dict(model.state_dict())
    assert distance(model(x), again(x)) == 0


def test_methods_that_search_refuse_it() -> None:
    plan, _, _ = planned("parametrization", "rows")
    batches = [(randn(5, 4), torch.zeros(5, dtype=torch.long))]
    for method in ("splitting", "firefly", "gradmax"):
        with pytest.raises(gr.GrowthError, match="cannot grow this model"):
            gr.Grower(
                plan.build_seed(), plan, method=method, batches=batches, loss=nn.functional.cross_entropy
            )  # fmt: skip


# What is not followed says so.


def part(change: Callable[[nn.Module], Any]) -> tuple[nn.Module, torch.Tensor]:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.d(self.c(self.b(self.a(x).relu()).relu()).relu())

    model = Net(forward, a=nn.Linear(4, 9), b=nn.Linear(9, 9), c=nn.Linear(9, 7), d=nn.Linear(7, 3))
    change(model.b)
    return model, randn(5, 4)


FROZEN: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "spectral norm, hook": (spectral_norm, "'b.weight': spectral_norm divides by"),
    "spectral norm": (parametrizations.spectral_norm, "'b.weight': the parametrization _SpectralNorm"),
    "orthogonal": (parametrizations.orthogonal, "'b.weight': the parametrization _Orthogonal"),
    "orthogonal, cayley": (
        lambda m: parametrizations.orthogonal(m, orthogonal_map="cayley"),
        "'b.weight': the parametrization _Orthogonal",
    ),
    "pruned": (
        lambda m: prune.l1_unstructured(m, "weight", 0.5),
        "'b.weight': L1Unstructured prunes it by a mask",
    ),
    "pruned twice": (
        lambda m: prune.ln_structured(prune.random_unstructured(m, "weight", 0.2), "weight", 0.3, 2, 0),
        "'b.weight': PruningContainer prunes it by a mask",
    ),
    "both": (
        lambda m: parametrizations.spectral_norm(parametrizations.weight_norm(m)),
        "'b.weight': the parametrization _SpectralNorm",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FROZEN)
@pytest.mark.each(14)
@pytest.mark.parametrize("ran", [False, True])
def test_other_computed_weights_are_frozen_by_name(name: str, ran: bool) -> None:
    change, text = FROZEN[name]
    torch.manual_seed(0)
    model, x = part(change)
    if ran:
        model(x.float())  # the computed weight now hangs on a graph
    plan = make_plan(model, x, stages=3)
    assert widths(plan) == {"c": 7}
    assert text in plan.groups.explain()
    grown_exactly(plan, training="spectral" not in name and name != "both")


@pytest.mark.slow
def test_a_magnitude_with_another_use_is_frozen() -> None:
    torch.manual_seed(0)

    def forward(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        g = self.a.parametrizations.weight.original0
        return self.c(self.b(self.a(x).relu()).relu()), torch.tanh(g).mean()

    parts = {"a": nn.Linear(4, 9), "b": nn.Linear(9, 7), "c": nn.Linear(7, 3)}
    model = Net(forward, **parts)
    parametrizations.weight_norm(model.a)
    plan = make_plan(model, randn(5, 4), stages=3)
    assert widths(plan) == {"b": 7}
    grown_exactly(plan)

    model = Net(forward, **{"a": nn.Linear(9, 7), "b": nn.Linear(7, 7), "c": nn.Linear(7, 3)})
    model._function = lambda self, x: (
        self.c(self.b(self.a(self.first(x).relu()).relu()).relu()),
        self.a.parametrizations.weight.original0.square().sum(),
    )
    model.first = nn.Linear(4, 9)
    parametrizations.weight_norm(model.a, dim=None)
    plan = make_plan(model, randn(5, 4), stages=3)
    # the one magnitude of 'a' follows both of its widths, so both are frozen
    assert widths(plan) == {"b": 7}
    assert "is the magnitude of a normalised weight and is used otherwise" in plan.groups.explain()
    grown_exactly(plan)


def test_a_norm_of_a_computed_weight_is_frozen() -> None:
    torch.manual_seed(0)
    model, x, _, _ = mlp(lambda m: m)
    model.g = parameter(9, 1)

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        weight = torch._weight_norm(self.a.weight.exp(), self.g, 0)
        return self.c(self.b(nn.functional.linear(x, weight).relu()).relu())

    model._function = forward
    plan = make_plan(model, x, stages=3)
    assert "a" not in widths(plan) and widths(plan)["b"] == 7
    assert "normalises a weight that is not a parameter by itself" in plan.groups.explain()
    grown_exactly(plan)
