"""What is known of one tensor (Info), and of one use of a parameter or buffer (Use)."""

from __future__ import annotations

from dataclasses import dataclass, field

from growthring.core.axes import Axis


@dataclass
class Use:
    """One use of a parameter or buffer by one operator.

    Attributes:
        name: qualified name of the tensor.
        axes: its axes, as this use sees them.
        read: indices of the axes that the operator contracts over.
        kernel: indices of the axes that it slides over space; with `read` they make the fan-in.
        inner: a part of an axis that is contracted as well (inputs of a group, in a transposed convolution).
        kind: what a new entry is filled with: weight, bias, gain, table, mean, variance, buffer,
            magnitude or direct.
        zero_rows: rows of a table that stay zero (the padding token).
        of: for kind "magnitude" (weight normalisation), the tensor whose directions it scales.
    """

    name: str
    axes: tuple[Axis, ...]
    read: set[int] = field(default_factory=set)
    kernel: set[int] = field(default_factory=set)
    inner: Axis | None = None
    kind: str = "direct"
    zero_rows: set[int] = field(default_factory=set)
    of: str = ""


@dataclass(frozen=True)
class Info:
    """What is known of one tensor.

    Attributes:
        axes: the structure of each axis.
        scale: its scale variable.
        use: the parameter this is a rearrangement of, if it is one.
        source: for each axis, the axis of that parameter that it comes from, or None.
        constant: does not depend on any parameter or model input of growing width.
        label: the name of the parameter, or of the segment of it that this is.
        stack: where an axis of a few entries will be taken apart by select or unbind: (its index,
            the other axes of each slice). Fused projections stack queries, keys and values, which
            differ in parity.
        repeated: the axes along which all entries are the same, whatever their number.
    """

    axes: tuple[Axis, ...]
    scale: int
    use: Use | None = None
    source: tuple[int | None, ...] = ()
    constant: bool = False
    stack: tuple[int, tuple[tuple[Axis, ...], ...]] | None = None
    label: str = ""
    repeated: frozenset[int] = frozenset()
