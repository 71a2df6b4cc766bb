"""Classes: the last axis of a model's outputs, which may gain entries where nothing inside of the model reads it.

A classifier writes an entry for each class. What nothing reads needs no pairs that cancel: entries of new classes
come alone (sign 0, see `growthring.core.axes`), in any number, and those of the old ones stay what they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from growthring.core.axes import Axis, Fixed, Ref, refs
from growthring.core.wording import listed
from growthring.errors import PlanError
from growthring.graph.rules import Walk
from growthring.graph.trace import Value
from growthring.graph.traced import Traced
from growthring.graph.unify import Reason


def class_groups(traced: Traced, number: int) -> frozenset[int]:
    """The width groups of the classes: one, or one for each head of the model.

    Args:
        traced: the model's traces; the last axes of its outputs are not frozen.
        number: of classes that the full model tells apart.

    Raises:
        PlanError: outputs are of another number, or something reads that axis.
    """
    found = {
        _group_of(traced, walk, i, number): f"model output {i}"
        for walk in traced.walks
        for i in range(len(walk.trace.outputs))
    }
    if not found:
        raise PlanError(f"classes ends with {number}, and {_name(traced)} returns no tensor.")
    for group, where in found.items():
        reader = _reader(traced, group)
        if reader:
            raise _refusal(traced, where, f"{reader}, so what is old would change with what is new")
    return frozenset(found)


def check_classes(traced: Traced, frozen: Callable[[int], Reason | None]) -> None:
    """Refuses classes that cannot grow.

    Args:
        traced: the model's traces.
        frozen: why a group does not grow, or None.

    Raises:
        PlanError: the model's code does not follow, or the axis was to be frozen.
    """
    for walk in traced.walks:
        for i, value in enumerate(walk.trace.outputs):
            for ref in refs(_last(traced, walk, value)):
                reason = frozen(ref.group) if ref.group in traced.classes else None
                if reason is not None:
                    raise _refusal(traced, f"model output {i}", reason.text)


def _group_of(traced: Traced, walk: Walk, i: int, number: int) -> int:
    """The width of the last axis of an output."""
    value = walk.trace.outputs[i]
    where, shape = f"model output {i}", value.shape
    if not shape or shape[-1] != number:
        has = f"{shape[-1]} entries along its last axis" if shape else "no axis"
        raise PlanError(
            f"classes ends with {number}: {where} of {_name(traced)}, of shape {shape}, has {has}. The last stage "
            "is the given model, so classes ends with its number of outputs; where it returns other tensors beside "
            "them, outputs= names those that have an entry for each class."
        )
    axis = _last(traced, walk, value)
    if not isinstance(axis, Ref):
        why = (
            "no parameter writes it" if isinstance(axis, Fixed) else "it is made of several widths"
        )
        raise _refusal(traced, where, "it has one entry, which is no width" if number == 1 else why)
    if axis.group not in {g for spec in traced.specs().values() for g in spec.groups()}:
        raise _refusal(traced, where, "no parameter writes it")
    return axis.group


def _reader(traced: Traced, group: int) -> str:
    """What reads a width inside of the model, in words; empty if nothing does."""
    reading = [
        f"'{name}'"
        for name, spec in traced.specs().items()
        if any(ref.group == group for axis in spec.reads() for ref in refs(axis))
    ]
    if reading:
        return (
            f"{listed(reading)} {'reads' if len(reading) == 1 else 'read'} it inside of the model"
        )
    statistics = (s for walk in traced.walks for s in walk.statistics)
    for s in statistics:
        if any(ref.group == group for ref in refs(traced.unifier.resolve(s.axis))):
            return f"'{s.module or '(model)'}' combines its entries"
    if len({ref.sign for ref in _everywhere(traced) if ref.group == group}) > 1:
        return "the model's code multiplies it with something and sums over it"
    return ""


def _everywhere(traced: Traced) -> Iterator[Ref]:
    """The widths on the axes of all that is computed; what is contracted has both signs."""
    for walk in traced.walks:
        axes = [info.axes for info in (*walk.infos.values(), *walk.own_infos.values())]
        axes += [use.axes for uses in walk.uses.values() for use in uses]
        for axis in itertools.chain.from_iterable(axes):
            yield from refs(traced.unifier.resolve(axis))


def _last(traced: Traced, walk: Walk, value: Value) -> Axis:
    return traced.unifier.resolve(walk.info(value).axes[-1])


def _name(traced: Traced) -> str:
    return type(traced.model).__name__


def _refusal(traced: Traced, where: str, why: str) -> PlanError:
    return PlanError(
        f"classes: the last axis of {where} of {_name(traced)} cannot gain entries: {why}. Leave classes out: then "
        "the model has all of its outputs from the first stage on."
    )
