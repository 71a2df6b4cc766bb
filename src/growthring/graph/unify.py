"""Unification of axes: the union-find that turns operator rules into width groups.

Every axis of every parameter starts as a variable of known size. Operator rules state that two axes
are the same (`same`), that they are the two sides of a contraction (`opposite`: pairs must cancel,
so one side holds equal halves and the other opposite ones), that an axis splits into factors or
segments, or that it must keep its size (`freeze`). A variable is replaced by a structure as soon as
an operator reveals one. What cannot be
reconciled is frozen with the reason: frozen axes never change, so any operator is safe on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from growthring.core.axes import Axis, Concat, Fixed, Product, Ref, negate, refs


@dataclass(frozen=True)
class Reason:
    """Why an axis keeps its size. `kind` is for programs, `text` for people."""

    kind: str
    text: str


def _fixed(where: str) -> Reason:
    return Reason("fixed", f"{where} joins it with an axis of fixed size")


class _Mismatch(Exception):
    """Two structures cannot be aligned."""


class Unifier:
    """Variables, their sizes, what they were replaced by, and why some are frozen."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._bound: dict[int, Axis] = {}
        self._frozen: dict[int, Reason] = {}
        self._oriented: dict[int, int] = {}

    def fresh(self, size: int) -> Axis:
        """A new variable; an axis of one entry is never a width (it may be a broadcast)."""
        if size == 1:
            return Fixed(1)
        self._sizes.append(size)
        return Ref(len(self._sizes) - 1)

    def size(self, axis: Axis) -> int:
        """Number of entries of an axis in the traced model."""
        if isinstance(axis, Fixed):
            return axis.size
        if isinstance(axis, Ref):
            return self._sizes[axis.group]
        sizes = [self.size(part) for part in axis.parts]
        return math.prod(sizes) if isinstance(axis, Product) else sum(sizes)

    def resolve(self, axis: Axis) -> Axis:
        """The axis with every known replacement made, in normal form.

        Normal form: no product inside a product or concat inside a concat, neighbouring fixed parts
        merged, a leading concat of a product distributed over it.
        """
        if isinstance(axis, Fixed):
            return axis
        if isinstance(axis, Ref):
            if axis.group not in self._bound:
                return axis
            target = self.resolve(self._bound[axis.group])
            self._bound[axis.group] = target  # path compression
            return target if axis.sign > 0 else negate(target)
        parts = [self.resolve(part) for part in axis.parts]
        return _product(parts) if isinstance(axis, Product) else _concat(parts)

    # Statements that rules make.

    def same(self, a: Axis, b: Axis, reason: str) -> None:
        """States that two axes are one; `reason` names the operator for the case that they clash."""
        try:
            self._unify(a, b, reason)
        except _Mismatch:
            text = f"{reason} joins axes of different structure"
            self.freeze((a, b), Reason("structure", text))

    def opposite(self, a: Axis, b: Axis, reason: str) -> None:
        """States that two axes are contracted with each other: their pairs cancel."""
        self.same(a, negate(b), reason)

    def even(self, axis: Axis, reason: str) -> None:
        """States that the halves of a pair must hold equal values here (an operator that is not odd)."""
        for ref in refs(self.resolve(axis)):
            self._orient(ref.group, ref.sign, reason)

    def freeze(self, axes: Iterable[Axis], reason: Reason) -> None:
        """States that none of the axes may change; the first reason given for a variable is kept."""
        for axis in axes:
            for ref in refs(self.resolve(axis)):
                self._frozen.setdefault(ref.group, reason)

    def tie(self, a: Axis, b: Axis, reason: str) -> bool:
        """States that two axes have one structure, of whatever relative parity. True if parities agree.

        Two uses of one parameter need this: a tied embedding is written by one and read by the
        other.
        """
        clashes: list[Ref] = []
        try:
            self._unify(a, b, reason, clashes)
        except _Mismatch:
            text = f"{reason} joins axes of different structure"
            self.freeze((a, b), Reason("structure", text))
        return not clashes

    def frozen(self, group: int) -> Reason | None:
        """Why a variable is frozen, or None."""
        return self._frozen.get(group)

    def orientation(self, group: int) -> int:
        """Absolute parity of +1 references of this variable (+1 unless an operator demanded -1)."""
        return self._oriented.get(group, 1)

    # Taking axes apart.

    def factor(self, axis: Axis, outer: int, reason: str) -> tuple[Axis, Axis]:
        """Splits an axis into `outer` × the rest; freezes of it what its structure does not allow."""
        try:
            return self._factor(self.resolve(axis), outer, reason)
        except _Mismatch:
            self.freeze([axis], Reason("structure", f"{reason} cuts across its structure"))
            return Fixed(outer), Fixed(self.size(axis) // outer)

    def cut(self, axis: Axis, at: int, reason: str) -> tuple[Axis, Axis]:
        """Splits an axis into its first `at` entries and the rest; freezes it where that is impossible."""
        try:
            return self._cut(self.resolve(axis), at)
        except _Mismatch:
            self.freeze([axis], Reason("structure", f"{reason} cuts across its structure"))
            return Fixed(at), Fixed(self.size(axis) - at)

    # Internals.

    def _orient(self, group: int, sign: int, reason: str) -> None:
        if self._oriented.setdefault(group, sign) != sign:
            text = (
                f"{reason} needs equal halves of a pair where another operator needs opposite ones"
            )
            self._frozen.setdefault(group, Reason("parity", text))

    def _bind(self, ref: Ref, axis: Axis, reason: str) -> None:
        if isinstance(axis, Fixed):
            self._frozen.setdefault(ref.group, _fixed(reason))
            return
        if any(r.group == ref.group for r in refs(axis)):
            raise _Mismatch
        target = axis if ref.sign > 0 else negate(axis)
        self._bound[ref.group] = target
        frozen = self._frozen.pop(ref.group, None)
        oriented = self._oriented.pop(ref.group, 0)
        for r in refs(target):
            if frozen:
                self._frozen.setdefault(r.group, frozen)
            if oriented:
                self._orient(r.group, oriented * r.sign, reason)

    def _unify(self, a: Axis, b: Axis, reason: str, clashes: list[Ref] | None = None) -> None:
        a, b = self.resolve(a), self.resolve(b)
        if a == b:
            return
        if self.size(a) != self.size(b):
            raise _Mismatch
        if isinstance(a, Ref) and isinstance(b, Ref) and a.group == b.group:
            if clashes is not None:
                clashes.append(a)
                return
            text = f"{reason} contracts this width with itself, so its pairs cannot cancel"
            self._frozen.setdefault(a.group, Reason("parity", text))
        elif isinstance(a, Ref) and isinstance(b, Ref) and clashes is not None:
            # The parity of both classes may be settled already; take the sign that fits.
            settled = self._oriented.get(a.group, 0) * self._oriented.get(b.group, 0)
            flip = settled * a.sign * b.sign < 0
            if flip:
                clashes.append(a)
            self._bind(a, negate(b) if flip else b, reason)
        elif isinstance(a, Ref):
            self._bind(a, b, reason)
        elif isinstance(b, Ref):
            self._bind(b, a, reason)
        elif isinstance(a, Fixed) or isinstance(b, Fixed):
            self.freeze((a, b), _fixed(reason))
        elif isinstance(a, Concat) or isinstance(b, Concat):
            first_sizes = [self.size(x.parts[0]) for x in (a, b) if isinstance(x, Concat)]
            at = min(first_sizes)
            (a0, a1), (b0, b1) = self._cut(a, at), self._cut(b, at)
            self._unify(a0, b0, reason, clashes)
            self._unify(a1, b1, reason, clashes)
        else:
            outer = min(self.size(a.parts[0]), self.size(b.parts[0]))
            (a0, a1), (b0, b1) = self._factor(a, outer), self._factor(b, outer)
            self._unify(a0, b0, reason, clashes)
            self._unify(a1, b1, reason, clashes)

    def _split_ref(self, ref: Ref, sizes: tuple[int, int], kind: type) -> tuple[Axis, Axis]:
        parts = (self.fresh(sizes[0]), self.fresh(sizes[1]))
        self._bind(Ref(ref.group), kind(parts), "a split")
        return parts if ref.sign > 0 else (negate(parts[0]), negate(parts[1]))

    def _factor(self, axis: Axis, outer: int, reason: str = "a reshape") -> tuple[Axis, Axis]:
        total = self.size(axis)
        if outer == 1:
            return Fixed(1), axis
        if outer == total:
            return axis, Fixed(1)
        if total % outer:
            raise _Mismatch
        if isinstance(axis, Fixed):
            return Fixed(outer), Fixed(total // outer)
        if isinstance(axis, Ref):
            return self._split_ref(axis, (outer, total // outer), Product)
        if isinstance(axis, Product):
            need = outer
            for i, part in enumerate(axis.parts):
                if need % self.size(part) == 0 and need > self.size(part):
                    need //= self.size(part)
                    continue
                # 6 × 4 as 4 × 6: the 2 that both begin with may still grow, the rest stays.
                shared = math.gcd(need, self.size(part))
                if shared == 1 and i == 0:
                    raise _Mismatch
                left, right = self._factor(part, shared, reason) if shared > 1 else (Fixed(1), part)
                head, tail = [*axis.parts[:i], left], [right, *axis.parts[i + 1 :]]
                if shared == need:
                    return _product(head), _product(tail)
                text = f"{reason} cuts across its structure"
                self.freeze(tail, Reason("structure", text))
                return _product([*head, Fixed(need // shared)]), Fixed(total // outer)
        # A concat of equal segments is a product with a fixed outer factor.
        step = total // outer
        first, rest = self._cut(axis, step)
        while self.size(rest) > step:
            piece, rest = self._cut(rest, step)
            self._unify(first, piece, "a reshape of a concatenation")
        self._unify(first, rest, "a reshape of a concatenation")
        return Fixed(outer), self.resolve(first)

    def _cut(self, axis: Axis, at: int) -> tuple[Axis, Axis]:
        axis = self.resolve(axis)
        total = self.size(axis)
        if at in (0, total):
            return (axis, Fixed(0)) if at else (Fixed(0), axis)
        if isinstance(axis, Fixed):
            return Fixed(at), Fixed(total - at)
        if isinstance(axis, Ref):
            return self._split_ref(axis, (at, total - at), Concat)
        if isinstance(axis, Concat):
            done = 0
            for i, part in enumerate(axis.parts):
                whole = done + self.size(part)
                if whole >= at:
                    left, right = self._cut(part, at - done)
                    return (
                        _concat([*axis.parts[:i], left]),
                        _concat([right, *axis.parts[i + 1 :]]),
                    )
                done = whole
        assert isinstance(axis, Product)
        inner = total // self.size(axis.parts[0])
        if at % inner:
            raise _Mismatch
        left, right = self._cut(axis.parts[0], at // inner)
        rest = axis.parts[1:]
        return _product([left, *rest]), _product([right, *rest])


def _product(parts: Iterable[Axis]) -> Axis:
    flat: list[Axis] = []
    for part in parts:
        for p in part.parts if isinstance(part, Product) else (part,):
            if p == Fixed(1):
                continue
            if isinstance(p, Fixed) and flat and isinstance(flat[-1], Fixed):
                flat[-1] = Fixed(flat[-1].size * p.size)
            else:
                flat.append(p)
    if not flat:
        return Fixed(1)
    if len(flat) == 1:
        return flat[0]
    if isinstance(flat[0], Concat):
        return _concat([_product([part, *flat[1:]]) for part in flat[0].parts])
    return Product(tuple(flat))


def _concat(parts: Iterable[Axis]) -> Axis:
    flat: list[Axis] = []
    for part in parts:
        for p in part.parts if isinstance(part, Concat) else (part,):
            if p == Fixed(0):
                continue
            if isinstance(p, Fixed) and flat and isinstance(flat[-1], Fixed):
                flat[-1] = Fixed(flat[-1].size + p.size)
            else:
                flat.append(p)
    if not flat:
        return Fixed(0)
    return flat[0] if len(flat) == 1 else Concat(tuple(flat))
