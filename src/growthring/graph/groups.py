"""WidthGroup: all tensor axes that must share one width; WidthGroups: everything discovery knows of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from growthring.core.axes import Axis, Concat, Fixed, Product, Ref, refs, size
from growthring.core.variance import Record
from growthring.errors import WidthGroupError
from growthring.graph.follow import Attributes, Scaled
from growthring.graph.reductions import Statistics
from growthring.graph.unify import Reason

_NOTHING = Fixed(1)


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
class Member:
    """One axis of one tensor in a group.

    `role` is "writes", "reads" or "shares" (biases, gains, statistics); `structure` shows where the
    group's width `w` sits on the axis.
    """

    tensor: str
    axis: int
    role: str
    structure: str


@dataclass(frozen=True)
class WidthGroup:
    """All tensor axes that must share one width.

    Attributes:
        key: number of the group, as the references in axes name it.
        name: after the first tensor that writes it.
        width: its width in the full model.
        members: the tensor axes that belong to it.
        frozen: why it does not grow, or None.
    """

    key: int
    name: str
    width: int
    members: tuple[Member, ...]
    frozen: Reason | None

    @property
    def grows(self) -> bool:
        """Whether this width can grow."""
        return self.frozen is None

    def tensors(self, role: str) -> list[str]:
        """Names of the tensors that write, read or share this width."""
        return list(dict.fromkeys(m.tensor for m in self.members if m.role == role))


@dataclass(frozen=True)
class Law:
    """A factor in the model's code that follows a width: factor ∝ size(axis) ** power.

    `mean` is the module and site of the sum over that width of which it makes a mean, if it does.
    """

    axis: Axis
    power: float
    mean: tuple[str, str] | None = None


@dataclass(frozen=True)
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
        units: group -> the number that its width must be a multiple of.
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

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[WidthGroup]:
        return iter(self.groups)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str):
            for group in self.groups:
                if group.name == item:
                    return group
            names = ", ".join(g.name for g in self.groups if g.grows) or "none"
            raise WidthGroupError(f"there is no width group '{item}'. Growable groups: {names}.")
        return self.groups[item]

    @property
    def growable(self) -> tuple[WidthGroup, ...]:
        """The groups that can grow."""
        return tuple(g for g in self.groups if g.grows)

    @property
    def full_widths(self) -> dict[int, int]:
        """Width of every group in the full model."""
        return {g.key: g.width for g in self.groups}

    def explain(self) -> str:
        """The table that `growthring inspect` prints."""
        return explain(self)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "model": self.model_type,
            "groups": [
                {
                    "name": g.name,
                    "width": g.width,
                    "grows": g.grows,
                    "frozen": None
                    if g.frozen is None
                    else {"kind": g.frozen.kind, "reason": g.frozen.text},
                    "members": [vars(m) for m in g.members],
                }
                for g in self.groups
            ],
            "fading_norms": list(
                dict.fromkeys(s.module for s in self.statistics if self._moves(s.axis))
            ),
            "attributes": [
                f"{module}.{name}".lstrip(".")
                for (module, name), rule in self.attributes.items()
                if any(self._moves(a) for a in ((rule.axis,) if isinstance(rule, Scaled) else rule))
            ],
            "operators_without_rule": dict(self.unknown),
            "notes": list(self.notes),
        }

    def _moves(self, axis: Axis) -> bool:
        growing = {g.key for g in self.groups if g.grows}
        return any(ref.group in growing for ref in refs(axis))


def describe(axis: Axis, group: int, size_of: Callable[[Axis], int]) -> str:
    """An axis as one group sees it: its own width is `w`, everything else a number.

    >>> describe(Product((Ref(0), Fixed(49))), 0, lambda axis: 49)
    'w·49'
    """
    if isinstance(axis, Ref) and axis.group == group:
        return "w"
    if not any(ref.group == group for ref in refs(axis)):
        return str(size_of(axis))
    assert isinstance(axis, (Product, Concat))
    parts = [describe(part, group, size_of) for part in axis.parts]
    if isinstance(axis, Product):
        return "·".join(f"({p})" if " + " in p else p for p in parts)
    return " + ".join(parts)


def explain(groups: WidthGroups) -> str:
    """Groups, who writes and reads each, what is frozen and why, as text."""
    growable = groups.growable
    lines = [
        f"{groups.model_type}: {len(groups)} width groups, {len(growable)} can grow, "
        f"{len(groups) - len(growable)} are frozen"
    ]
    moving = (s.module for s in groups.statistics if groups._moves(s.axis))
    fading = [module or "(model)" for module in dict.fromkeys(moving)]
    for title, chosen in (
        ("CAN GROW", growable),
        ("FROZEN", [g for g in groups if not g.grows]),
    ):
        if chosen:
            lines += ["", title]
        for g in chosen:
            lines.append(f"  {g.name}  width {g.width}")
            if g.frozen is not None:
                lines.append(f"      why      {g.frozen.text}")
            for role in ("writes", "reads", "shares"):
                members = [m for m in g.members if m.role == role]
                for i, m in enumerate(members[:6]):
                    label = role if i == 0 else ""
                    shown = "" if m.structure == "w" else f" = {m.structure}"
                    lines.append(f"      {label:<8} {m.tensor} axis {m.axis}{shown}")
                if len(members) > 6:
                    lines.append(f"      {'':<8} … and {len(members) - 6} more")
    if fading:
        lines += ["", "NORMS WHOSE STATISTICS FADE IN", "  " + ", ".join(fading)]
    if groups.unknown:
        lines += ["", "OPERATORS WITHOUT A RULE (everything that touches them is frozen)"]
        lines += [f"  {name} in '{module or '(model)'}'" for name, module in groups.unknown.items()]
    if groups.notes:
        lines += ["", "NOTES", *(f"  {note}" for note in groups.notes)]
    return "\n".join(lines)
