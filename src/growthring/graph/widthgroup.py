"""WidthGroup: all tensor axes that must share one width."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from growthring.core.axes import Axis, Concat, Product, Ref, refs
from growthring.graph.unify import Reason

# What keeps its size whatever the model is like: nobody would call it a width, or the data decides on it.
_MINOR = ("kernel",)
_GIVEN = ("input", "output", "rows", "unused")


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
        width: its width in the full model, in entries of its axes (channels, say).
        members: the tensor axes that belong to it.
        frozen: why it does not grow, or None.
        unit: the entries that stay together, of which references in axes count one: the channels of a group of
            GroupNorm.
        unit_of: the module that keeps them together.
        is_unit: whether this is the size of another group's unit.
        is_classes: whether it is the number of classes that outputs have, and grows with these.
    """

    key: int
    name: str
    width: int
    members: tuple[Member, ...]
    frozen: Reason | None
    unit: int = 1
    unit_of: str = ""
    is_unit: bool = False
    is_classes: bool = False

    @property
    def count(self) -> int:
        """The width as references in axes count it: in units."""
        return self.width // self.unit

    @property
    def grows(self) -> bool:
        """Whether this width can grow."""
        return self.frozen is None

    @property
    def is_output(self) -> bool:
        """Whether what the model returns has this width and keeps it, or has a class for each entry."""
        return self.is_classes or (self.frozen is not None and self.frozen.kind == "output")

    @property
    def is_minor(self) -> bool:
        """Whether nobody would call it a width: the size of a kernel, or of a group of channels."""
        return self.is_unit or (self.frozen is not None and self.frozen.kind in _MINOR)

    @property
    def is_given(self) -> bool:
        """Whether it is frozen because the data decides on it: the model's inputs and outputs, a vocabulary.

        A width that the model returns, but also reads itself, such as a residual stream, is none of these.
        """
        if self.frozen is None or self.frozen.kind not in _GIVEN:
            return False
        roles = {m.role for m in self.members}
        return self.frozen.kind in ("rows", "unused") or not roles >= {"reads", "writes"}

    @property
    def is_kept(self) -> bool:
        """Whether it is a width inside of the model that keeps its full size.

        A factor of an axis whose other factor grows is none: the axis gets wider.
        """
        if self.frozen is None or self.frozen.kind == "factor":
            return False
        return not self.is_minor and not self.is_given

    def tensors(self, role: str) -> list[str]:
        """Names of the tensors that write, read or share this width."""
        return list(dict.fromkeys(m.tensor for m in self.members if m.role == role))


def describe(
    axis: Axis, group: int, size_of: Callable[[Axis], int], unit: Collection[int] = ()
) -> str:
    """An axis as one group sees it: its own width, with the factors of its `unit`, is `w`, all else a number.

    >>> from growthring.core.axes import Fixed
    >>> describe(Product((Ref(0), Fixed(49))), 0, lambda axis: 49)
    'w·49'
    >>> describe(Product((Ref(0), Ref(1), Fixed(49))), 0, lambda axis: 49, unit=[1])
    'w·49'
    """
    if isinstance(axis, Ref) and axis.group == group:
        return "w"
    if not any(ref.group == group for ref in refs(axis)):
        return str(size_of(axis))
    assert isinstance(axis, (Product, Concat))
    shown = [p for p in axis.parts if not (isinstance(p, Ref) and p.group in unit)]
    parts = [describe(part, group, size_of, unit) for part in shown]
    if isinstance(axis, Product):
        return "·".join(f"({p})" if " + " in p and len(parts) > 1 else p for p in parts)
    return " + ".join(parts)
