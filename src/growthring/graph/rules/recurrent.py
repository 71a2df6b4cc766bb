"""Recurrent layers: the hidden width grows, in every gate, direction and layer of a module at once.

Gates are segments of one axis, (gates · h), and each grows at its own end. New hidden units come in
equal pairs; the recurrent weight reads them as it reads the input, so they cancel from one time step to
the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from growthring.core.axes import Axis, Concat, Fixed, Product
from growthring.graph.rules.records import Info
from growthring.graph.rules.registry import register_rule
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op, Value

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}


@dataclass(frozen=True)
class _Cell:
    """The parameters of one layer and direction."""

    input_weight: Info
    hidden_weight: Info
    biases: tuple[Info, ...]
    projection: Info | None = None


def _run_cell(walk: Walk, cell: _Cell, gates: int, x: Info, hidden: Axis, state: Axis) -> None:
    """Gates = W_ih x + W_hh state + b; the state is the hidden units, or a projection of them."""
    written = hidden if gates == 1 else Product((Fixed(gates), hidden))
    recurrent = Info((*x.axes[:-1], state), walk.demand())
    for weight, read in ((cell.input_weight, x), (cell.hidden_weight, recurrent)):
        walk.contract(weight, 1, read, len(read.axes) - 1)
        walk.same(weight.axes[0], written)
        scale = walk.transform(read, weight)
        walk.need_one(scale)
    for bias in cell.biases:
        walk.add_bias(bias, written, recurrent.scale)
    if cell.projection is not None:
        units = Info((*x.axes[:-1], hidden), walk.demand())
        walk.contract(cell.projection, 1, units, len(units.axes) - 1)
        walk.same(cell.projection.axes[0], state)
        scale = walk.transform(units, cell.projection)
        walk.need_one(scale)


def _cells(infos: Sequence[Info], has_biases: bool, num_cells: int) -> list[_Cell]:
    """The flat list of parameters, as torch orders it, by layer and direction."""
    each = len(infos) // num_cells
    cells = []
    for k in range(num_cells):
        w_ih, w_hh, *rest = infos[k * each : (k + 1) * each]
        biases = tuple(rest[:2]) if has_biases else ()
        projection = rest[len(biases)] if len(rest) > len(biases) else None
        cells.append(_Cell(w_ih, w_hh, biases, projection))
    return cells


@register_rule(
    "aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"
)  # fmt: skip
def layers(walk: Walk, op: Op) -> None:
    """Layers × directions over (time, batch, x) or (batch, time, x); outputs, last states (and last cells)."""
    kind = op.name.split(".")[1].split("_")[0]
    x, given = walk.info(op.args[0]), op.args[1]
    states: list[Value] = list(given) if isinstance(given, (list, tuple)) else [given]
    has_biases, num_layers = bool(op.args[3]), int(op.args[4])
    is_bidirectional, batch_first = bool(op.args[7]), bool(op.args[8])
    num_directions = 2 if is_bidirectional else 1
    cells = _cells([walk.info(v) for v in op.args[2]], has_biases, num_layers * num_directions)
    time, batch = (x.axes[1], x.axes[0]) if batch_first else (x.axes[0], x.axes[1])
    walk.freeze([time], "runs over it step by step")
    walk.even(x.axes[:-1])
    hidden = walk.new_axis(walk.size(cells[0].input_weight.axes[0]) // _GATES[kind])
    walk.even([hidden])
    projection = cells[0].projection
    state = hidden if projection is None else projection.axes[0]
    for value, last in zip(states, (state, hidden), strict=False):
        _initial_state(walk, walk.info(value), batch, last)
    inputs = x
    for k in range(num_layers):
        for cell in cells[k * num_directions : (k + 1) * num_directions]:
            _run_cell(walk, cell, _GATES[kind], inputs, hidden, state)
        joined = state if num_directions == 1 else Concat((state, state))
        inputs = Info((*x.axes[:-1], joined), walk.demand())
    walk.attribute("input_size", x.axes[-1])
    walk.attribute("hidden_size", hidden)
    if projection is not None:
        walk.attribute("proj_size", state)
    stacked = Fixed(num_layers * num_directions)
    walk.set(op.outputs[0], inputs.axes, inputs.scale)
    for value, last in zip(op.outputs[1:], (state, hidden), strict=False):
        walk.set(value, [stacked, batch, last], walk.demand())


def _initial_state(walk: Walk, info: Info, batch: Axis, last: Axis) -> None:
    """A state (layers × directions, batch, units) that the model is given or makes."""
    walk.freeze(info.axes[:1], "takes one entry of it for each layer and direction")
    walk.same(info.axes[1], batch)
    walk.same(info.axes[2], last)
    walk.need_one(info.scale)


@register_rule("aten.lstm_cell", "aten.gru_cell", "aten.rnn_tanh_cell", "aten.rnn_relu_cell")
def cell(walk: Walk, op: Op) -> None:
    """One time step: (batch, x) and the state(s) (batch, units) to the next state(s)."""
    gates = _GATES[op.name.split(".")[1].split("_")[0]]
    x, given = walk.info(op.args[0]), op.args[1]
    states: list[Value] = list(given) if isinstance(given, (list, tuple)) else [given]
    w_ih, w_hh = walk.info(op.args[2]), walk.info(op.args[3])
    biases: list[Any] = [*op.args[4:], op.kwargs.get("b_ih"), op.kwargs.get("b_hh")]
    hidden = walk.info(states[0]).axes[-1]
    for value in states:
        info = walk.info(value)
        for a, b in zip(info.axes, (*x.axes[:-1], hidden), strict=True):
            walk.same(a, b)
        walk.need_one(info.scale)
    walk.even([*x.axes[:-1], hidden])
    its_biases = tuple(walk.info(v) for v in biases if isinstance(v, Value))
    _run_cell(walk, _Cell(w_ih, w_hh, its_biases), gates, x, hidden, hidden)
    walk.attribute("input_size", x.axes[-1])
    walk.attribute("hidden_size", hidden)
    for value in op.outputs:
        walk.set(value, [*x.axes[:-1], hidden], walk.demand())
