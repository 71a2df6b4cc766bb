"""RingRates: what an optimizer knows of the rings, and the rate factors that follow from it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from growthring.distributed.shards import is_shard, local_of
from growthring.errors import InputError
from growthring.optim.geometry import ParameterRings, RingGeometry
from growthring.optim.initial import initialise
from growthring.optim.options import option, scales_output
from growthring.optim.ringbatch import RingBatch, buckets
from growthring.optim.rules import apply_rule, new_ring_factors, own_schedule
from growthring.optim.shards import Sums, summed


class RingRates:
    """The rings of an optimizer's parameters, when each was born, and the rates so far.

    Empty until a `Grower` binds it. Options are read from the parameter groups, so groups may differ.

    Attributes:
        rings: parameter -> its rings.
        births: optimizer step at which each ring was born.
        steps: optimizer steps taken.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.rings: dict[Tensor, ParameterRings] = {}
        self.births: list[int] = [0]
        self.steps = 0
        self._history: list[list[float]] = []
        self._is_initial = False  # all state is of a step that was none
        self._is_idle = False  # during such a step
        self._num_complete = 0  # parameters whose state has births
        self._totals: dict[tuple[str, int], Tensor] = {}  # by name and parameter, during a step
        self._geometries: dict[tuple[Any, ...], RingGeometry] = {}
        self._batches: dict[tuple[Any, ...], RingBatch] = {}

    def __bool__(self) -> bool:
        return bool(self.rings)

    @property
    def num_rings(self) -> int:
        """Stages so far, the seed included."""
        return len(self.births)

    def bind(self, rings: Mapping[Tensor, ParameterRings]) -> None:
        """Takes the rings of the optimizer's parameters.

        Rings that are new since the last time are born now.
        """
        held = [p for group in self._optimizer.param_groups for p in group["params"] if p in rings]
        if self.rings and rings and not any(p in rings for p in self.rings):
            raise InputError(
                f"this {type(self._optimizer).__name__} already belongs to a Grower of another model; "
                "use one optimizer for each."
            )
        is_first = not self.rings
        self.rings = {p: rings[p] for p in held}
        count = max((r.num_rings for r in self.rings.values()), default=1)
        born = 0 if self.num_rings == 1 and is_first else self.steps
        self.births = self.births[:count] + [born] * (count - self.num_rings)
        self._forget()

    def begin_step(self) -> None:
        """Notes the rates of the step that begins; `steps` counts it once `end_step` was called."""
        groups = self._optimizer.param_groups
        self._history += [[] for _ in range(len(groups) - len(self._history))]
        for group, history in zip(groups, self._history, strict=True):
            del history[self.steps :]
            if option(group, "ring_schedule") == "own":
                rate = float(group["lr"])
                history += [rate] * (self.steps + 1 - len(history))

    def end_step(self) -> None:
        """Counts the step that ends."""
        self.steps += 1

    @contextlib.contextmanager
    def totals(self, more: Sums = ()) -> Iterator[None]:
        """Inside, sums over whole parameters that are cut into shards are known: of their rings' squares, and more.

        Collective where there are such parameters, once for all of them; what is asked for goes by options and
        rings alone, so all processes ask for the same.

        Args:
            more: (name, parameter, sums over the part that is here).
        """
        sums = [*self._adapting_sums(), *more]
        found = summed([p for _, p, _ in sums], [values for _, _, values in sums])
        names = [(name, id(p)) for name, p, _ in sums]
        self._totals = dict(zip(names, found, strict=True))
        try:
            yield
        finally:
            self._totals = {}

    def _adapting_sums(self) -> Sums:
        return [
            ("weights", p, self.geometry(p).squares(p.detach()))
            for group in self._optimizer.param_groups
            if self.rings and option(group, "rate_adaptation") is not None
            for p in group["params"]
            if is_shard(p) and p in self.rings and self.rings[p].adapts and self.rings[p].has_rings
        ]

    def total(self, name: str, parameter: Tensor) -> Tensor | None:
        """What `totals` found; None of a parameter that is all here."""
        return self._totals.get((name, id(parameter)))

    def squares(self, name: str, parameters: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        """Sums of squares of every ring of whole parameters, (parameters, rings).

        Args:
            name: of those that `totals` knows.
            parameters: of one device and type.
            values: of their shapes, or their parts'.
        """
        rows = []
        for p, tensor in zip(parameters, values, strict=True):
            row = self.total(name, p)
            assert row is not None or self._is_idle or not is_shard(p), "outside of totals()"
            rows.append(self.geometry(p).squares(tensor) if row is None else row)
        return torch.stack(rows)

    @contextlib.contextmanager
    def no_step(self) -> Iterator[None]:
        """Around a step that is none (`is_initialising`): it knows no rings, and what it leaves is noted."""
        rings, self.rings, self._is_idle = self.rings, {}, True
        self._forget()
        try:
            yield
            self.note_initial()
        finally:
            self.rings, self._is_idle = rings, False
            self._forget()

    def note_initial(self) -> None:
        """All state is of a step that was none."""
        self._is_initial = True

    def complete_births(self) -> None:
        """Gives births to all state, so that all has the same keys: what loads goes by those that are there."""
        state = self._optimizer.state
        if self.num_rings > 1 and self._num_complete != len(state):
            for entry in state.values():
                entry.setdefault("births", (0,) * self.num_rings)
            self._num_complete = len(state)

    def forget_initial(self) -> None:
        """Drops state that a step has made which was none: before the next one, and before a growth."""
        if self._is_initial:
            self._optimizer.state.clear()
            self._is_initial, self._num_complete = False, 0

    def may_have_factors(self, group: Mapping[str, Any]) -> bool:
        """Whether any option of the group makes rates differ from `lr`: one question for all of its parameters."""
        return (
            option(group, "rate_adaptation") is not None
            or option(group, "ring_schedule") == "own"
            or scales_output(group)
            or self._favours_new(group)
        )

    def has_factors(self, group: Mapping[str, Any], parameter: Tensor) -> bool:
        """Whether rates of this parameter differ from `lr`, or could."""
        rings = self.rings.get(parameter)
        if rings is None:
            return False
        if rings.output_width is not None and scales_output(group):
            return True
        if not rings.has_rings:
            return False
        adapts = rings.adapts and option(group, "rate_adaptation") is not None
        return adapts or option(group, "ring_schedule") == "own" or self._favours_new(group)

    def has_rings(self, parameter: Tensor) -> bool:
        """Whether any of its entries is younger than the seed."""
        rings = self.rings.get(parameter)
        return rings is not None and rings.has_rings

    def rings_of(self, parameter: Tensor) -> ParameterRings:
        """The parameter's rings; all of it is the seed's where no Grower has said otherwise."""
        if parameter in self.rings:
            return self.rings[parameter]
        axes = tuple(torch.zeros(n, dtype=torch.int64, device="cpu") for n in parameter.shape)
        return ParameterRings("", axes, self.num_rings, adapts=False)

    def _forget(self) -> None:
        # not emptied: a growth that is undone has the old ones back
        self._geometries, self._batches = {}, {}
        self._num_complete = 0

    def geometry(self, parameter: Tensor) -> RingGeometry:
        """Where its rings lie, kept until rings, shape, type or memory layout change."""
        key = _key(parameter)
        if key not in self._geometries:
            self._geometries[key] = RingGeometry(self.rings_of(parameter), parameter)
        return self._geometries[key]

    def batch(self, parameters: Sequence[Tensor]) -> RingBatch:
        """Geometry of parameters that share device and type, kept until the rings change."""
        key = tuple(map(_key, parameters))
        if key not in self._batches:
            if len(self._batches) > 2 * len(self.rings) + 64:  # sets of gradients that never repeat
                self._batches.clear()
            geometries = [self.geometry(p) for p in parameters]
            self._batches[key] = RingBatch(geometries, local_of(parameters[0]))
        return self._batches[key]

    def factors(self, group: Mapping[str, Any], parameters: Sequence[Tensor]) -> Tensor:
        """Factors on `lr` for every ring of parameters that share device and type.

        Returns:
            (parameters, rings)
        """
        batch = self.batch(parameters)
        rings = [self.rings_of(p) for p in parameters]
        shape = (len(rings), self.num_rings)
        table = torch.ones(shape, dtype=batch.dtype, device=batch.device)
        rule = option(group, "rate_adaptation")
        adapting = [i for i, r in enumerate(rings) if r.adapts and r.has_rings]
        if rule is not None and adapting:
            chosen = [parameters[i] for i in adapting]
            norms = self.squares("weights", chosen, [p.detach() for p in chosen]).sqrt_()
            adapted = apply_rule(rule, norms, [rings[i].name for i in adapting])
            if len(adapting) == len(rings):
                table = adapted
            else:
                table[adapting] = adapted
        if scales_output(group) and any(r.output_width is not None for r in rings):
            widths = [float(r.output_width or 1) for r in rings]
            table = table / torch.tensor(widths, dtype=batch.dtype, device=batch.device)[:, None]
        if option(group, "ring_schedule") == "own" and self.num_rings > 1:
            own = torch.tensor(self._own(group), dtype=batch.dtype, device=batch.device)
            table = table * own
        if self._favours_new(group):
            new = torch.tensor(self._new(group), dtype=batch.dtype, device=batch.device)
            table = table * new
        return table

    def _favours_new(self, group: Mapping[str, Any]) -> bool:
        """Whether a ring that a growth added has another rate than the seed's; a warm-up ends."""
        age = self.steps - self.births[-1]
        is_other = option(group, "new_ring_rate") != 1.0 or age < option(group, "new_ring_warmup")
        return self.num_rings > 1 and is_other

    def _new(self, group: Mapping[str, Any]) -> list[float]:
        rate, warmup = option(group, "new_ring_rate"), option(group, "new_ring_warmup")
        return new_ring_factors(self.births, self.steps, float(rate), int(warmup))

    def _own(self, group: Mapping[str, Any]) -> list[float]:
        index = next(i for i, g in enumerate(self._optimizer.param_groups) if g is group)
        history = self._history[index] if index < len(self._history) else []
        if len(history) <= self.steps:  # asked between two steps
            history = [*history, *[float(group["lr"])] * (self.steps + 1 - len(history))]
        total, cap = option(group, "total_steps"), option(group, "max_schedule_factor")
        return own_schedule(history, self.births, total, cap)

    # For diagnostics and the record.

    def rate_factors(self) -> dict[str, Tensor]:
        """Factor on `lr` for every ring of every parameter, by name."""
        result: dict[str, Tensor] = {}
        with self.totals():
            for group in self._optimizer.param_groups:
                for parameters in buckets([p for p in group["params"] if p in self.rings]):
                    names = [self.rings[p].name for p in parameters]
                    result |= zip(names, self.factors(group, parameters), strict=True)
        return result

    def weight_norms(self) -> dict[str, Tensor]:
        """Frobenius norm of each ring of each parameter, by name."""
        return self._norms(lambda p: p.detach())

    def gradient_norms(self) -> dict[str, Tensor]:
        """Norm of each ring's gradient, by name, for parameters that have one."""
        return self._norms(lambda p: p.grad)

    def _norms(self, of: Callable[[Tensor], Tensor | None]) -> dict[str, Tensor]:
        held = {p: values for p in self.rings if (values := of(p)) is not None}
        squares = [
            self.geometry(p).squares(values.to_dense() if values.is_sparse else values)
            for p, values in held.items()
        ]
        totals = summed(list(held), squares)
        return {self.rings[p].name: total.sqrt() for p, total in zip(held, totals, strict=True)}

    def before_saving(self) -> None:
        """Makes room for state that a growth has reset: what loads it has such room, and asks for all of it."""
        if self.num_rings == 1 or self._optimizer.state:
            return
        groups = self._optimizer.param_groups
        if any(p.grad is not None for group in groups for p in group["params"]):
            initialise(self._optimizer)  # without gradients torch does it

    def state_dict(self) -> dict[str, Any]:
        """Births, steps and rates so far: plain numbers."""
        return {
            "births": list(self.births),
            "steps": self.steps,
            "history": [list(history) for history in self._history],
            "is_initial": self._is_initial,
        }

    def take(self, other: RingRates, memo: dict[int, Any]) -> None:
        """Becomes a copy of another one, with the parameters that `memo` has for the other's."""
        self.rings = copy.deepcopy(other.rings, memo)
        self.load_state_dict(other.state_dict())
        self._is_initial = other._is_initial

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_batches": {},
            "_geometries": {},
        }  # of views of parameters: a copy makes its own

    def take_up(self, record: Mapping[str, Any] | None) -> None:
        """Takes up a saved record, if there is one, after the optimizer took up its state."""
        if record is not None:
            self.load_state_dict(record)
        self._num_complete = 0
        self._is_initial = record is not None and bool(record.get("is_initial"))
        self.forget_initial()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up a saved record."""
        self.births = [int(b) for b in state["births"]]
        self.steps = int(state["steps"])
        self._history = [[float(v) for v in history] for history in state["history"]]


def _key(parameter: Tensor) -> tuple[Any, ...]:
    p = parameter
    return (id(p), p.shape, p.dtype, p.device, p.is_contiguous())
