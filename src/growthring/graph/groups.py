"""WidthGroups: everything discovery knows of a model; TensorSpec: how its tensors are made of widths."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from growthring.core.axes import Axis, Fixed, refs, size
from growthring.core.variance import Record
from growthring.errors import WidthGroupError
from growthring.graph.factors import FactorPair
from growthring.graph.follow import Attributes, Scaled
from growthring.graph.reductions import Statistics
from growthring.graph.table import group_table
from growthring.graph.widthgroup import WidthGroup

_NOTHING = Fixed(1)
_MOST_NAMES = 8  # in a message


@dataclass(frozen=True)
class TensorSpec:
    """A parameter or buffer of the model and the structure of its axes.

    Attributes:
        name: qualified name, a tied parameter under its first name.
        axes: structure of each axis; the sign of a reference is the parity of pairs along it.
        read: the axes that its operator contracts over; new units of the *other* axes may read
            freely.
        kernel: the axes that slide over space.
        kind: weight, bias, gain, table, mean, variance, buffer, magnitude or direct.
        is_parameter: False for a buffer.
        read_and_written: read and written by different operators: new entries are zero, which suits both.
        inner: a part of a written axis that is contracted as well.
        pieces: where operators use segments of it by themselves (a fused projection): the axis and its segments.
        zero_rows: rows of a table that stay zero.
        of: the tensor whose directions a magnitude scales (weight normalisation).
    """

    name: str
    axes: tuple[Axis, ...]
    read: frozenset[int]
    kernel: frozenset[int]
    kind: str
    is_parameter: bool
    read_and_written: bool = False
    inner: Axis = _NOTHING
    pieces: tuple[int, tuple[Axis, ...]] | None = None
    zero_rows: frozenset[int] = frozenset()
    of: str = ""

    def shape(self, widths: Mapping[int, int]) -> tuple[int, ...]:
        """Shape at the given widths."""
        return tuple(size(axis, widths) for axis in self.axes)

    def fan_in(self, widths: Mapping[int, int]) -> int:
        """Entries that one output sums over, kernel included."""
        axes = [self.axes[i] for i in self.read | self.kernel]
        return math.prod(size(axis, widths) for axis in [*axes, self.inner])

    def reads(self) -> list[Axis]:
        """The axes that it contracts over."""
        return [*(self.axes[i] for i in self.read), self.inner]

    def groups(self) -> set[int]:
        """The width groups that its axes refer to."""
        return {ref.group for axis in self.axes for ref in refs(axis)}


@dataclass(frozen=True)
class Law:
    """A factor in the model's code that follows a width: factor ∝ size(axis) ** power.

    `mean` is the module and site of the sum over that width of which it makes a mean, if it does.
    """

    axis: Axis
    power: float
    mean: tuple[str, str] | None = None


@dataclass(frozen=True, repr=False)
class WidthGroups(Sequence[WidthGroup]):
    """The width groups of a model, and what growing them needs to know.

    A sequence of `WidthGroup`; `groups["layer1.0.conv1"]` finds one by name.

    Attributes:
        model_type: class name of the model.
        groups: the groups, growable ones first.
        specs: tensor name -> structure of its axes.
        records: what the model's operators do to activation scales, over `scale_count` variables.
        statistics: norms and other reductions; those over a width that grows fade in.
        attributes: (module, attribute) -> axes whose sizes it holds.
        laws: operator -> the width that a factor in the model's code follows.
        spans: segments of axes that hold one growing width; equal sizes stay equal.
        unknown: operators without a rule, and a module that uses each.
        notes: what discovery could not look at, and decided on attributes that hold a width's number.
        units: group -> the number that its count of units must be a multiple of.
        factors: the products of which both factors grow.
        stuck: numbers of heads that were asked for, and are so few that they cannot grow.
    """

    model_type: str
    groups: tuple[WidthGroup, ...]
    specs: Mapping[str, TensorSpec]
    records: Sequence[Record]
    scale_count: int
    statistics: Sequence[Statistics]
    attributes: Attributes
    laws: Mapping[int, Law]
    spans: Sequence[Axis]
    unknown: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    units: Mapping[int, int] = field(default_factory=dict)
    factors: Sequence[FactorPair] = ()
    stuck: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[WidthGroup]:
        return iter(self.groups)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str):
            for group in self.groups:
                if group.name == item:
                    return group
            names = [g.name for g in self.groups if g.grows]
            if len(names) > _MOST_NAMES:  # the nearest ones
                names = difflib.get_close_matches(item, names, n=len(names), cutoff=0)
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            known = ", ".join(names[:_MOST_NAMES]) or "none"
            raise WidthGroupError(
                f"there is no width group '{item}'. Growable groups: {known}{more}."
            )
        return self.groups[item]

    @property
    def growable(self) -> tuple[WidthGroup, ...]:
        """The groups that can grow."""
        return tuple(g for g in self.groups if g.grows)

    @property
    def full_widths(self) -> dict[int, int]:
        """Width of every group in the full model, as references in axes count it."""
        return {g.key: g.count for g in self.groups}

    def named(self, widths: Mapping[int, int]) -> dict[str, int]:
        """Width of every growable group by name, in entries; `widths` are by key, as references count."""
        return {g.name: widths[g.key] * g.unit for g in self.growable}

    @property
    def roles(self) -> dict[str, str]:
        """Group name -> what else than a width it is called: "classes", or as a factor "heads", "head size", …."""
        names = {g.key: g.name for g in self.groups}
        pairs = [(zip((f.count, f.size), f.words, strict=True)) for f in self.factors]
        classes = {g.name: "classes" for g in self.groups if g.is_classes}
        return {names[key]: word for pair in pairs for key, word in pair} | classes

    def table(self, everything: bool = False) -> str:
        """The table that `growthring inspect` and `print` show.

        Args:
            everything: list sizes too that nobody would call a width, such as those of kernels.
        """
        fading = [module or "(model)" for module in self._fading()]
        return group_table(
            self.model_type, self.groups, fading, self.unknown, self.notes, everything, self.roles
        )

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<WidthGroups of {self.model_type}: {len(self)}, {len(self.growable)} can grow>"

    def explain(self) -> str:
        """The table with everything in it."""
        return self.table(everything=True)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "model": self.model_type,
            "groups": [
                {
                    "name": g.name,
                    "width": g.width,
                    "unit": g.unit,
                    "grows": g.grows,
                    "frozen": None
                    if g.frozen is None
                    else {"kind": g.frozen.kind, "reason": g.frozen.text},
                    "members": [vars(m) for m in g.members],
                }
                for g in self.groups
            ],
            "fading_norms": self._fading(),
            "attributes": [
                f"{module}.{name}".lstrip(".")
                for (module, name), rule in self.attributes.items()
                if any(self._moves(a) for a in ((rule.axis,) if isinstance(rule, Scaled) else rule))
            ],
            "operators_without_rule": dict(self.unknown),
            "notes": list(self.notes),
        }

    def _fading(self) -> list[str]:
        """Modules with statistics over a width that grows."""
        return list(dict.fromkeys(s.module for s in self.statistics if self._moves(s.axis)))

    def _moves(self, axis: Axis) -> bool:
        growing = {g.key for g in self.groups if g.grows}
        return any(ref.group in growing for ref in refs(axis))
