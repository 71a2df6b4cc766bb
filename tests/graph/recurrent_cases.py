"""Models with recurrent layers in every form that torch offers: (model, inputs, other inputs, what grows)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tests.growth_contract import Net, parameter, randn, tokens

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


def packed_with_state() -> Case:
    """The state is the code's own, so that torch could trace the packed sequence as one of unknown size."""

    def forward(self: Any, t: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        x = pack_padded_sequence(self.emb(t), n, batch_first=True, enforce_sorted=False)
        h = torch.zeros(1, t.shape[0], self.rnn.hidden_size, dtype=torch.float64)
        y, _ = pad_packed_sequence(self.rnn(x, h)[0], batch_first=True, total_length=t.shape[1])
        return self.head(y)

    first = (tokens(3, 4, high=11), torch.tensor([2, 4, 1]))
    fresh = [(tokens(2, 7, high=11), torch.tensor([7, 3]))]
    return around(nn.GRU(6, 8, batch_first=True), forward, 8), first, fresh, {"emb": 6, "rnn": 8}


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
    "packed with a state": packed_with_state,
}  # fmt: skip
