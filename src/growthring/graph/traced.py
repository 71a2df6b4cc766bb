"""Traced: the traces of a model under one unifier, and one structure for every tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torch import nn

from growthring.core.axes import Axis, Concat, Fixed, Product, Ref, refs, unsigned
from growthring.graph.computed import unsupported
from growthring.graph.groups import TensorSpec
from growthring.graph.rules import Walk
from growthring.graph.rules.records import Use
from growthring.graph.rules.run import walk_trace
from growthring.graph.scales import Scales
from growthring.graph.trace import Op, Trace
from growthring.graph.unify import Reason, Unifier


class Traced:
    """The traces of a model under one unifier.

    Attributes:
        model: the model.
        unifier: what is known of axes.
        scales: what is known of scales.
        walks: one for each trace.
        uses: tensor -> its uses in all traces.
        read_and_written: tensors that are read and written by different operators.
        classes: the groups of the classes that outputs have, where these may grow.
    """

    def __init__(self, model: nn.Module, traces: Sequence[Trace], may_gain: bool = False) -> None:
        self.model = model
        self.classes: frozenset[int] = frozenset()
        self.unifier, self.scales = Unifier(), Scales()
        self.walks: list[Walk] = []
        first_op, held = 0, unsupported(model)
        for t in traces:
            self.walks.append(walk_trace(self.unifier, self.scales, t, first_op, held, may_gain))
            first_op += len(t.ops)
        self.uses: dict[str, list[Use]] = {}
        self.read_and_written: set[str] = set()
        self._join_sites()
        self._join_uses()
        self._unlabel()

    def _join_sites(self) -> None:
        """A reduction that several traces met has one axis."""
        first: dict[tuple[str, str, int], Axis] = {}
        for walk in self.walks:
            for s in walk.statistics:
                self.unifier.same(first.setdefault(s.place, s.axis), s.axis, f"'{s.module}'")

    def _join_uses(self) -> None:
        """Several uses of one tensor have one structure; some are read here and written there."""
        for walk in self.walks:
            for a, b, where in walk.ties:
                self.unifier.tie(a, b, where)
        for walk in self.walks:
            for name, uses in walk.uses.items():
                self.uses.setdefault(name, []).extend(uses)
        for name, (first, *others) in self.uses.items():
            for other in others:
                for i, (a, b) in enumerate(zip(first.axes, other.axes, strict=True)):
                    agree = self.unifier.tie(a, b, f"the second use of '{name}'")
                    if agree:
                        continue
                    if (i in first.read) != (i in other.read):
                        self.read_and_written.add(name)
                    else:
                        text = f"'{name}' is used in two ways whose pairs cannot both cancel"
                        self.unifier.freeze([a], Reason("parity", text))

    def _unlabel(self) -> None:
        """Segments of a tensor that is also used otherwise have no factor of their own."""
        names = {name for walk in self.walks for name in walk.pieces}
        whole = {name for name in names if self._pieces(name, len(self.uses[name])) is None}
        self.scales.records[:] = [
            replace(
                r, names=tuple(n.split("#")[0] if n.split("#")[0] in whole else n for n in r.names)
            )
            for r in self.scales.records
        ]

    def specs(self) -> dict[str, TensorSpec]:
        """The structure of every tensor that some operator takes, as far as it is known now."""
        parameters = dict(self.model.named_parameters())
        specs = {}
        for name, uses in self.uses.items():
            first = uses[0]
            kinds = [u.kind for u in uses]
            kind = "weight" if "weight" in kinds else first.kind
            axes = tuple(self._absolute(self.unifier.resolve(a)) for a in first.axes)
            specs[name] = TensorSpec(
                name,
                tuple(unsigned(a) for a in axes) if kind == "magnitude" else axes,
                frozenset(set.intersection(*(u.read for u in uses))),
                frozenset().union(*(u.kernel for u in uses)),
                kind,
                name in parameters,
                name in self.read_and_written,
                self.unifier.resolve(first.inner or Fixed(1)),
                self._pieces(name, len(uses)),
                frozenset().union(*(u.zero_rows for u in uses)),
                first.of,
            )
        return specs

    def _pieces(self, name: str, num_uses: int) -> tuple[int, tuple[Axis, ...]] | None:
        """The segments that operators use by themselves, if every use takes the tensor apart alike."""
        ways = {
            (axis, tuple(self.unifier.resolve(p) for p in parts))
            for walk in self.walks
            for axis, parts in walk.pieces.get(name, ())
        }
        splits = sum(len(walk.pieces.get(name, ())) for walk in self.walks)
        return ways.pop() if len(ways) == 1 and splits == num_uses else None

    def _absolute(self, axis: Axis) -> Axis:
        if isinstance(axis, Ref) and axis.group in self.classes:
            return replace(axis, sign=0)
        if isinstance(axis, Ref):
            return replace(axis, sign=axis.sign * self.unifier.orientation(axis.group))
        if isinstance(axis, (Product, Concat)):
            return type(axis)(tuple(self._absolute(part) for part in axis.parts))
        return axis

    def known(self, axis: Axis, keys: set[int]) -> Axis:
        """The resolved axis; widths that no tensor has are fixed."""
        axis = self.unifier.resolve(axis)
        if isinstance(axis, Ref):
            return axis if axis.group in keys else Fixed(self.unifier.size(axis))
        if isinstance(axis, (Product, Concat)):
            return type(axis)(tuple(self.known(part, keys) for part in axis.parts))
        return axis

    def units(self) -> dict[int, str]:
        """Widths that are the size of another's unit (see `Walk.unit`), and the module that needs each."""
        found: dict[int, str] = {}
        for walk in self.walks:
            for axis, module in walk.units:
                for ref in refs(self.unifier.resolve(axis)):
                    found.setdefault(ref.group, module)
        return found

    def operator(self, index: int) -> Op:
        """An operator by its number over all traces."""
        walk = next(w for w in reversed(self.walks) if w.first_op <= index)
        return walk.trace.ops[index - walk.first_op]

    def full_widths(self, keys: Iterable[int]) -> Widths:
        """The traced widths of some groups."""
        return Widths(self.unifier, {k: self.unifier.size(Ref(k)) for k in keys})


class Widths(dict[int, int]):
    """Widths by group; one that belongs to no tensor has its traced size."""

    def __init__(self, unifier: Unifier, known: Mapping[int, int]) -> None:
        super().__init__(known)
        self._unifier = unifier

    def __missing__(self, key: int) -> int:
        return self._unifier.size(Ref(key))
