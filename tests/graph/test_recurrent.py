"""Recurrent layers: the hidden width grows with what is in front and behind, in every form that torch offers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import growthring as gr
from tests.discovered import discovered_once as discovered_once
from tests.graph.exactness import WAYS, grown_exactly, trains
from tests.graph.recurrent_cases import CASES, around, layer, lengths, sequence
from tests.growth_contract import check_contract, make_plan, randn, tokens, widths

GRADIENTS = ("LSTM", "bidirectional, three layers", "cell state", "GRUCell", "learned state")


def planned(name: str, **options: Any) -> tuple[gr.Plan, list[Any], dict[str, int]]:
    torch.manual_seed(0)
    model, inputs, fresh, found = CASES[name]()
    return make_plan(model, inputs, stages=3, **options), fresh, found


@pytest.mark.each(35)
@pytest.mark.parametrize("name", CASES)
def test_the_hidden_width_grows_and_nothing_changes(name: str) -> None:
    plan, fresh, found = planned(name)
    assert widths(plan) == found
    if name in GRADIENTS:
        check_contract(plan)
    trains(grown_exactly(plan, fresh), plan.example_inputs)
    trains(plan.build_seed(), plan.example_inputs)
    assert 0 < plan.flops_share < 1


def test_a_projection_as_wide_as_the_state_is_not_one_to_torch() -> None:
    # torch tells a projection by its width: with 2 of 2 units it would ignore the projection's weight.
    torch.manual_seed(0)
    model, inputs, _, _ = layer("LSTM", hidden=8, proj_size=4)
    plan = make_plan(model, inputs, stages=3)
    assert widths(plan) == {"emb": 6}
    assert "the code of 'rnn' does not follow another width" in plan.groups.explain()


# What cannot follow says so.


def test_a_state_that_is_a_model_input_keeps_its_width() -> None:
    torch.manual_seed(0)

    def forward(self: Any, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.emb(t), h)[0])

    model = around(nn.GRU(6, 8, batch_first=True), forward, 8)
    plan = make_plan(model, (tokens(3, 4, high=11), randn(1, 3, 8)), stages=3)
    assert widths(plan) == {"emb": 6}
    assert "axis 2 of model input 'args_1'" in plan.groups.explain()
    grown_exactly(plan)


def test_a_returned_state_keeps_its_width_unless_it_is_left_out() -> None:
    torch.manual_seed(0)

    def forward(self: Any, t: torch.Tensor) -> dict[str, torch.Tensor]:
        y, h = self.rnn(self.emb(t))
        return {"logits": self.head(y), "state": h}

    def model() -> nn.Module:
        return around(nn.GRU(6, 8, batch_first=True), forward, 8)

    assert widths(make_plan(model(), tokens(3, 4, high=11), stages=3)) == {"emb": 6}
    plan = make_plan(model(), tokens(3, 4, high=11), stages=3, outputs=["logits"])
    assert widths(plan) == {"emb": 6, "rnn": 8}


def test_a_model_that_is_a_recurrent_layer_has_nothing_to_grow() -> None:
    with pytest.raises(gr.GrowthError, match="nothing in LSTM can grow"):
        make_plan(nn.LSTM(4, 6), randn(5, 2, 4))


def test_an_embedding_tied_to_the_head() -> None:
    """Awd-lstm style: the embedding is read by the decoder, so the last width is the first one."""
    torch.manual_seed(0)
    model = around(nn.LSTM(6, 6), sequence, 6)
    model.head = nn.Linear(6, 11, bias=False)
    model.head.weight = model.emb.weight
    first, *fresh = lengths((3, 4), (2, 7))
    plan = make_plan(model, first, stages=3)
    assert widths(plan) == {"emb": 6}
    grown_exactly(plan, fresh, WAYS[:2])


# Training.


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.rnn = nn.Embedding(7, 8), nn.LSTM(8, 16, 2, batch_first=True)
        self.head = nn.Linear(16, 7)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.emb(t))[0])


@pytest.mark.parametrize("method", ["paired", "net2net"])
@pytest.mark.each(2)
def test_a_language_model_is_trained_and_grown_twice(method: str) -> None:
    torch.manual_seed(0)
    text = torch.randint(0, 7, (16, 1)) + torch.arange(9)[None]
    text = text * text % 7
    x, y = text[:, :-1], text[:, 1:]
    plan = gr.plan(LanguageModel(), x, stages=3, growth=None)
    model = plan.build_seed()
    optimizer = gr.optim.Adam(model.parameters(), lr=2e-2)
    flat = [id(w) for w in model.rnn._flat_weights]
    grower = gr.Grower(model, plan, optimizer, method=method)
    losses: list[float] = []
    for step in range(90):
        if step in (30, 60):
            report = grower.grow()
            assert report.change is not None and report.change.relative < 1e-5
            state = optimizer.state[model.rnn.weight_hh_l0]
            assert state["exp_avg"].shape == model.rnn.weight_hh_l0.shape
        model.train(step % 2 == 0)
        model.rnn.flatten_parameters()
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert grower.is_full and losses[-1] < 0.5 * losses[0]
    assert [id(w) for w in model.rnn._flat_weights] == flat
    assert model.rnn.hidden_size == 16 and model.rnn.input_size == 8
    full = LanguageModel()
    full.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(full(x), model(x))
        torch.testing.assert_close(copy.deepcopy(model)(x), model(x))


def test_rings_of_gates_are_rows_of_every_gate() -> None:
    torch.manual_seed(0)
    plan = gr.plan(LanguageModel(), tokens(2, 4, high=7), stages=2, growth=None)
    model = plan.build_seed()
    old = model.rnn.hidden_size
    grower = gr.Grower(model, plan)
    grower.grow()
    rows = grower.rings.mask("rnn.weight_hh_l0", 0).any(1).view(4, 16)
    assert bool(rows[:, :old].all()) and not bool(rows[:, old:].any())


def test_pairs_of_hidden_units_part() -> None:
    torch.manual_seed(0)
    x = tokens(2, 6, high=7)
    plan = gr.plan(LanguageModel(), x, stages=2, growth=None)
    model = plan.build_seed()
    report = gr.Grower(model, plan).grow()
    assert report.change_with_noise is not None and report.change_with_noise.relative < 1e-2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().mean().backward()
    optimizer.step()
    hidden = model.rnn(model.emb(x))[0].detach().flatten(0, 1)
    distances = torch.cdist(hidden.t(), hidden.t()) + 10 * torch.eye(16)
    assert float(distances.min()) > 0


def test_the_seed_is_drawn_as_torch_draws_a_small_layer() -> None:
    torch.manual_seed(0)
    plan = gr.plan(LanguageModel(), tokens(2, 4, high=7), stages=2, start=0.25, growth=None)
    seed = plan.build_seed()
    gain = (16 / seed.rnn.hidden_size) ** 0.5
    for name in ("bias_ih_l0", "bias_hh_l1", "weight_hh_l0"):
        small, full = getattr(seed.rnn, name), getattr(plan.model.rnn, name)
        torch.testing.assert_close(small.flatten()[:2], gain * full.flatten()[:2])
