"""Recurrent layers: the hidden width grows with what is in front and behind, in every form that torch offers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import growthring as gr
from tests.graph.exactness import WAYS, grown_exactly, trains
from tests.growth_contract import Net, check_contract, make_plan, parameter, randn, tokens, widths

Case = tuple[nn.Module, Any, list[Any], dict[str, int]]


def around(layer: nn.Module, forward: Callable[..., Any], out: int, inside: int = 6) -> nn.Module:
    return Net(forward, emb=nn.Embedding(11, inside), rnn=layer, head=nn.Linear(out, 5))


def sequence(self: Any, t: torch.Tensor) -> torch.Tensor:
    return self.head(self.rnn(self.emb(t))[0])


def lengths(*shapes: tuple[int, int]) -> list[Any]:
    return [tokens(*shape, high=11) for shape in shapes]


def layer(kind: str, hidden: int = 8, inside: int = 6, **options: Any) -> Case:
    made = getattr(nn, kind)(inside, hidden, **options)
    directions = 2 if options.get("bidirectional") else 1
    width = options.get("proj_size") or hidden
    model = around(made, sequence, width * directions, inside)
    found = {"emb": inside, "rnn": hidden}
    if "proj_size" in options:
        found["rnn/2"] = width
    first, *fresh = lengths((3, 4), (2, 7), (5, 1))
    return model, first, fresh, found


def last_states(kind: str) -> Case:
    """The last layer's last states of both directions, joined, as classifiers do."""

    def forward(self: Any, t: torch.Tensor) -> torch.Tensor:
        _, state = self.rnn(self.emb(t))
        h = state[0] if isinstance(state, tuple) else state
        return self.head(torch.cat([h[-2], h[-1]], dim=-1))

    made = getattr(nn, kind)(6, 8, num_layers=2, bidirectional=True, batch_first=True)
    first, *fresh = lengths((3, 4), (2, 7))
    return around(made, forward, 16), first, fresh, {"emb": 6, "rnn": 8}


def cell_state() -> Case:
    def forward(self: Any, t: torch.Tensor) -> torch.Tensor:
        y, (h, c) = self.rnn(self.emb(t))
        return self.head(y + h[-1] + torch.tanh(c[0]))

    first, *fresh = lengths((3, 4), (2, 4))
    return around(nn.LSTM(6, 8, 2), forward, 8), first, fresh, {"emb": 6, "rnn": 8}


def own_zeros() -> Case:
    """Initial states that the user's code makes from numbers of its own."""

    def forward(self: Any, t: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(self.layers, t.shape[0], self.hidden, dtype=torch.float64)
        return self.head(self.rnn(self.emb(t), (h, torch.zeros_like(h)))[0])

    model = around(nn.LSTM(6, 8, 2, batch_first=True), forward, 8)
    model.layers, model.hidden = 2, 8
    first, *fresh = lengths((3, 4), (2, 7))
    return model, first, fresh, {"emb": 6, "rnn": 8}


def learned_state() -> Case:
    def forward(self: Any, t: torch.Tensor) -> torch.Tensor:
        h = self.start.expand(-1, t.shape[0], -1).contiguous()
        return self.head(self.rnn(self.emb(t), h)[0])

    model = around(nn.GRU(6, 8, batch_first=True), forward, 8)
    model.start = parameter(1, 1, 8)
    first, *fresh = lengths((3, 4), (2, 7))
    return model, first, fresh, {"emb": 6, "start": 8}


def encoder_decoder() -> Case:
    """The encoder's last state starts the decoder, so both have one width."""

    def forward(self: Any, t: torch.Tensor) -> torch.Tensor:
        x = self.emb(t)
        _, state = self.enc(x)
        return self.head(self.rnn(x, state)[0])

    model = around(nn.LSTM(6, 8, batch_first=True), forward, 8)
    model.enc = nn.LSTM(6, 8, batch_first=True)
    first, *fresh = lengths((3, 4), (2, 7))
    return model, first, fresh, {"emb": 6, "enc": 8}


def residual_stack() -> Case:
    def forward(self: Any, t: torch.Tensor) -> torch.Tensor:
        x = self.emb(t)
        x = x + self.rnn(x)[0]
        return self.head(x + self.two(x)[0])

    model = around(nn.GRU(8, 8, batch_first=True), forward, 8, inside=8)
    model.two = nn.RNN(8, 8, batch_first=True)
    first, *fresh = lengths((3, 4), (2, 7))
    return model, first, fresh, {"emb": 8}


def cells(kind: str, **options: Any) -> Case:
    """A loop over time that the user writes; the state is made in the code, or left to torch."""

    def forward(self: Any, t: torch.Tensor) -> torch.Tensor:
        x, state, found = self.emb(t), None, []
        for k in range(4):
            state = self.rnn(x[:, k], state)
            found.append(state[0] if isinstance(state, tuple) else state)
        return self.head(torch.stack(found, 1))

    model = around(getattr(nn, kind)(6, 8, **options), forward, 8)
    first, *fresh = lengths((3, 4), (2, 7))
    return model, first, fresh, {"emb": 6, "rnn": 8}


def cells_with_zeros() -> Case:
    def forward(self: Any, t: torch.Tensor) -> torch.Tensor:
        x = self.emb(t)
        h = c = x.new_zeros(t.shape[0], self.rnn.hidden_size)
        for k in range(3):
            h, c = self.rnn(x[:, k], (h, c))
        return self.head(h)

    model = around(nn.LSTMCell(6, 8), forward, 8)
    first, *fresh = lengths((3, 4), (2, 7))
    return model, first, fresh, {"emb": 6, "rnn": 8}


class HandWritten(nn.Module):
    """An LSTM cell as people write it: one linear layer for all gates, chunk(4)."""

    def __init__(self, hidden: int, inside: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.x, self.h = nn.Linear(inside, 4 * hidden), nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.shape[0], self.hidden, dtype=x.dtype)
        c = torch.zeros_like(h)
        for t in range(3):
            i, f, g, o = (self.x(x[:, t]) + self.h(h)).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h


def by_hand() -> Case:
    model = around(HandWritten(8, 6), lambda self, t: self.head(self.rnn(self.emb(t))), 8)
    first, *fresh = lengths((3, 4), (2, 7))
    return model, first, fresh, {"emb": 6, "rnn.x": 8}


def unbatched() -> Case:
    model = around(nn.LSTM(6, 8), sequence, 8)
    return model, tokens(4, high=11), [tokens(7, high=11)], {"emb": 6, "rnn": 8}


def on_features() -> Case:
    """A convolution in front: channels are the input size, space is time."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).relu().permute(2, 0, 1)
        return self.head(self.rnn(y)[0].mean(0))

    model = Net(forward, conv=nn.Conv1d(3, 7, 3), rnn=nn.GRU(7, 8), head=nn.Linear(8, 5))
    return model, randn(2, 3, 6), [randn(3, 3, 9)], {"conv": 7, "rnn": 8}


def packed(kind: str, **options: Any) -> Case:
    """Sequences of several lengths, packed and padded again; the last states count as well."""

    def forward(self: Any, t: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = pack_padded_sequence(self.emb(t), n, batch_first=True, enforce_sorted=False)
        y, state = self.rnn(x)
        y, _ = pad_packed_sequence(y, batch_first=True, total_length=t.shape[1])
        h = state[0] if isinstance(state, tuple) else state
        return self.head(y), self.head(torch.cat([*h[-self.directions :]], -1))

    model = around(
        getattr(nn, kind)(6, 8, batch_first=True, **options),
        forward,
        8 * (1 + options.get("bidirectional", False)),
    )
    model.directions = 1 + options.get("bidirectional", False)
    first = (tokens(3, 4, high=11), torch.tensor([2, 4, 1]))
    fresh = [
        (tokens(2, 7, high=11), torch.tensor([7, 3])),
        (tokens(3, 4, high=11), torch.tensor([2, 2, 3])),
    ]
    return model, first, fresh, {"emb": 6, "rnn": 8}


def packed_by_hand() -> Case:
    """A layer on the data of a packed sequence; sorted lengths, time first, no total length."""

    def forward(self: Any, t: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.emb(t), torch.tensor([4, 2]))
        packed = PackedSequence(torch.tanh(self.mid(packed.data)), packed.batch_sizes)
        y, _ = pad_packed_sequence(self.rnn(packed)[0], padding_value=0.5)
        return self.head(y)

    model = around(nn.GRU(7, 8), forward, 8)
    model.mid = nn.Linear(6, 7)
    found = {"emb": 6, "rnn": 8, "mid": 7}
    return model, tokens(4, 2, high=11), [tokens(5, 2, high=11)], found


CASES: dict[str, Callable[[], Case]] = {
    **{kind: lambda kind=kind: layer(kind) for kind in ("LSTM", "GRU", "RNN")},
    "RNN relu": lambda: layer("RNN", nonlinearity="relu"),
    "batch first": lambda: layer("LSTM", batch_first=True),
    "no bias": lambda: layer("GRU", bias=False, num_layers=2),
    "two layers": lambda: layer("LSTM", num_layers=2),
    "bidirectional": lambda: layer("GRU", bidirectional=True),
    "bidirectional, three layers": lambda: layer("LSTM", num_layers=3, bidirectional=True),
    "projection": lambda: layer("LSTM", hidden=16, proj_size=8),
    "projection, both ways, two layers": lambda: layer(
        "LSTM", hidden=12, proj_size=8, num_layers=2, bidirectional=True, bias=False
    ),
    "odd widths": lambda: layer("LSTM", hidden=7, inside=5, num_layers=2),
    "input as wide as the state": lambda: layer("LSTM", hidden=8, inside=8),
    "input as wide as the gates": lambda: layer("LSTM", hidden=4, inside=16),
    "last states": lambda: last_states("LSTM"),
    "last states of a GRU": lambda: last_states("GRU"),
    "cell state": cell_state,
    "own zeros": own_zeros,
    "learned state": learned_state,
    "encoder and decoder": encoder_decoder,
    "residual stack": residual_stack,
    "LSTMCell": lambda: cells("LSTMCell"),
    "GRUCell": lambda: cells("GRUCell"),
    "RNNCell": lambda: cells("RNNCell", nonlinearity="relu"),
    "GRUCell without bias": lambda: cells("GRUCell", bias=False),
    "cells with zeros": cells_with_zeros,
    "by hand": by_hand,
    "unbatched": unbatched,
    "on features": on_features,
    "packed": lambda: packed("LSTM"),
    "packed, both ways": lambda: packed("GRU", num_layers=2, bidirectional=True),
    "packed RNN": lambda: packed("RNN"),
    "packed by hand": packed_by_hand,
}  # fmt: skip


GRADIENTS = ("LSTM", "bidirectional, three layers", "cell state", "GRUCell", "learned state")


def planned(name: str, **options: Any) -> tuple[gr.Plan, list[Any], dict[str, int]]:
    torch.manual_seed(0)
    model, inputs, fresh, found = CASES[name]()
    return make_plan(model, inputs, stages=3, **options), fresh, found


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
