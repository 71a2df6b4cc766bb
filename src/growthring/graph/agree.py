"""Does a model compute what the plan's model of that stage computes? Shapes alone do not say so.

A small model built with two heads instead of four has the same tensors and another function. So where its
numbers differ from those of the plan's, both are rehearsed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from growthring.distributed.fullyshard import is_fully_sharded
from growthring.errors import UnsupportedModelError
from growthring.graph.laws import POWERS
from growthring.graph.places import FixedPlaceError, Place, assign, plain_numbers, read
from growthring.graph.rehearse import Rehearsal, rehearse
from growthring.graph.resize import copy_with, named_tensors
from growthring.graph.trace import ExampleInputs


def disagreement(
    model: nn.Module,
    planned: nn.Module,
    inputs: ExampleInputs,
    outputs: Sequence[str] | None,
    sizes: Iterable[tuple[int, int]],
) -> tuple[Place, Any, Any] | None:
    """The number that makes the model compute something else than `planned`: its place, what it is and should be.

    Whole numbers count if the forward pass depends on them and does not write them itself: a count of steps or
    the length of a cache is what training left there. Other ones may have been changed on purpose (a
    temperature); they count if both are the same power of a width, as a factor is that follows it.

    Args:
        model: of some stage.
        planned: the plan's of that stage; it is used up.
        inputs: the example.
        outputs: the named parts of the output that count.
        sizes: of axes that grow, at that stage and in full.
    """
    differing = []
    for place, wanted in plain_numbers(planned):
        held = read(model, place)
        if type(held) is type(wanted) and held != wanted:
            differing.append((place, held, wanted))
    if not differing:
        return None

    def run(changed: nn.Module) -> Rehearsal:
        return rehearse(changed, inputs, outputs=outputs)

    own = run(_copy(model))
    if _same(own, run(planned)):
        return None
    powers = [(float(n) ** p, float(full) ** p) for n, full in sizes for p in POWERS]
    places = [place for place, _, _ in differing]
    written = _written(model, inputs, places) | _written(planned, inputs, places)
    for place, held, wanted in differing:
        if place in written:
            continue
        if isinstance(wanted, float):
            if any(_close(held, a) and _close(wanted, b) for a, b in powers):
                return place, held, wanted
            continue
        changed = _copy(model)
        with contextlib.suppress(FixedPlaceError):
            assign(changed, place, wanted)
        if not _same(own, run(changed)):
            return place, held, wanted
    return None


def _written(model: nn.Module, inputs: ExampleInputs, places: Sequence[Place]) -> set[Place]:
    """Those of some numbers that a forward pass changes, in one of the modes."""
    written: set[Place] = set()
    for training in (False, True):
        copy = _copy(model)
        before = {place: read(copy, place) for place in places}

        def look(copy: nn.Module = copy, before: dict[Place, Any] = before) -> None:
            written.update(place for place in places if read(copy, place) != before[place])

        rehearse(copy, inputs, training, look=look)
    return written


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6)  # it may have come through float32


def _copy(model: nn.Module) -> nn.Module:
    if is_fully_sharded(model):
        raise UnsupportedModelError(
            "the model was cut by fully_shard and has other numbers in its code than the plan's of its stage: "
            "both would have to be run, and no copy can be made of what was cut. Cut a plan.build_seed()."
        )
    return copy_with(model, {n: t.detach() for n, t in named_tensors(model).items()})


def _same(a: Rehearsal, b: Rehearsal) -> bool:
    alike = a.error == b.error if a.error else a.same_shapes(b)
    return alike and a.same_numbers(b)
