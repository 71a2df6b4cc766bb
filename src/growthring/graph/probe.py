"""Probe: a model, its traces and the widths to try its code at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from growthring.core.axes import Axis, size
from growthring.graph.follow import Attributes
from growthring.graph.groups import TensorSpec
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import ExampleInputs, Value


@dataclass(frozen=True)
class Probe:
    """A model, its traces with the axes of every value, and the widths to try it at."""

    model: nn.Module
    inputs: ExampleInputs
    outputs: Sequence[str] | None
    walks: Sequence[Walk]
    modes: Sequence[bool]
    specs: Mapping[str, TensorSpec]
    full: Mapping[int, int]
    small: Mapping[int, int]
    attributes: Attributes
    build: Callable[[], nn.Module] | None = None

    def axes(self, walk: Walk, value: Value) -> tuple[Axis, ...]:
        """The resolved axes of a value."""
        return tuple(walk.unifier.resolve(a) for a in walk.infos[value].axes)

    def changes(self, axis: Axis) -> bool:
        """Whether the axis has another size at the widths to try."""
        return size(axis, self.full) != size(axis, self.small)
