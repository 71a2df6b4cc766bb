"""The walk over a trace: keeps what is known of each tensor and offers rules the statements they can make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from growthring.core.axes import Axis, Fixed, refs
from growthring.core.variance import Record
from growthring.graph.reductions import Statistics, centring_means, mean_of, unseen_dims
from growthring.graph.rules.records import Info, Use
from growthring.graph.rules.scaling import ScaleStatements
from growthring.graph.scales import Scales
from growthring.graph.trace import BRANCH, Op, Trace, Value
from growthring.graph.unify import Reason, Unifier


class Walk(ScaleStatements):
    """What a rule sees of a trace, up to the present operator, and the statements that it can make.

    A rule calls the methods. The attributes are for what comes after the walk.

    Attributes:
        uses: tensor -> its uses, one for each operator that takes it.
        statistics: reductions whose new entries fade in.
        attributes: (module, attribute) -> the axes whose sizes it holds.
        ties: axes that have one structure, and the operator that says so.
        multiples: axes whose size must be a multiple of a number.
        parallel: axes along which products of activations are made side by side, such as heads of attention.
        units: inner factors of axes whose entries stay together, and the module that needs it.
        unknown: operators without a rule, and a module that uses each.
        expected: operator -> position of an argument -> the axis whose size it must be.
        pieces: tensor -> how operators take it apart: the axis and its segments.
        infos: what is known of each value.
    """

    def __init__(
        self,
        unifier: Unifier,
        scales: Scales,
        trace: Trace,
        first_op: int = 0,
        held: Mapping[str, Reason] | None = None,
    ) -> None:
        super().__init__(scales)
        self.unifier, self.trace, self.held = unifier, trace, held or {}
        self.first_op = first_op
        self.uses: dict[str, list[Use]] = {}
        self.statistics: list[Statistics] = []
        self.attributes: dict[tuple[str, str], tuple[Axis, ...]] = {}
        self.ties: list[tuple[Axis, Axis, str]] = []
        self.multiples: list[tuple[Axis, int]] = []
        self.parallel: list[Axis] = []
        self.units: list[tuple[Axis, str]] = []
        self.unknown: dict[str, str] = {}
        self.expected: dict[int, dict[int, Axis]] = {}
        self.pieces: dict[str, list[tuple[int, tuple[Axis, ...]]]] = {}
        self.infos: dict[Value, Info] = {}
        self.own_infos: dict[tuple[Value, int], Info] = {}  # of parameters, by operator
        self.direct_records: list[tuple[Use, Record]] = []
        self.one = self.new_scale()
        self.scales.add("demand", (self.one,), None, where="the model's inputs")

    @cached_property
    def means(self) -> dict[int, tuple[Op, float]]:
        """Products with a number that may make a mean of a sum (see `mean_of`)."""
        return mean_of(self.trace)

    @cached_property
    def _centring(self) -> dict[Value, Op]:
        return centring_means(self.trace)

    # Reading.

    def info(self, value: Value) -> Info:
        """What is known of a tensor; a parameter gets axes of its own for each operator that uses it."""
        if value in self.infos:
            return self.infos[value]
        name = self.trace.parameters.get(value) or self.trace.buffers[value]
        key = (value, self.index)
        if key not in self.own_infos:
            axes = tuple(self.unifier.fresh(n) for n in value.shape)
            use = Use(name, axes, kind="buffer" if value in self.trace.buffers else "direct")
            self.uses.setdefault(name, []).append(use)
            if name in self.held:
                self.unifier.freeze(axes, self.held[name])
            scale = self.new_scale()
            kind, names = ("demand", ()) if use.kind == "buffer" else ("own", (name,))
            self.scales.add(kind, (), scale, names, self.op.where())
            self.direct_records.append((use, self.scales.records[-1]))
            self.own_infos[key] = Info(axes, scale, use, tuple(range(len(axes))), label=name)
        return self.own_infos[key]

    def users(self, value: Value) -> list[Op]:
        """The operators that take a value."""
        return self.trace.consumers.get(value, [])

    def size(self, axis: Axis) -> int:
        """Entries of an axis in the traced model."""
        return self.unifier.size(axis)

    def has_width(self, axis: Axis) -> bool:
        """Whether the axis has any part that might grow."""
        return any(True for _ in refs(self.unifier.resolve(axis)))

    def fixed(self, value: Value) -> tuple[Axis, ...]:
        """Axes that do not grow, of the shape of a value."""
        return tuple(Fixed(n) for n in value.shape)

    def unseen(self, value: Value) -> set[int]:
        """Indices of the axes along which a value is only used by reductions that fade."""
        return unseen_dims(self.trace, value)

    def seen(self, value: Value, axes: Sequence[Axis]) -> list[Axis]:
        """Those of a value's axes along which new entries are used by something that does not fade."""
        unseen = self.unseen(value)
        return [axis for d, axis in enumerate(axes) if d not in unseen]

    def centres(self, op: Op) -> bool:
        """Whether an operator subtracts from a parameter its own mean (see `Statistics.is_spread`)."""
        mean = self._centring.get(op.args[1]) if isinstance(op.args[1], Value) else None
        return mean is not None and mean.site is not None

    # Stating facts about axes.

    def new_axis(self, size: int) -> Axis:
        """An axis of which nothing is known yet: it may turn out to follow any width of this size."""
        return self.unifier.fresh(size)

    def same(self, a: Axis, b: Axis) -> None:
        """Two axes are one."""
        self.unifier.same(a, b, self.where())

    def tie(self, a: Axis, b: Axis) -> None:
        """Two axes have one structure and grow together; their pairs may differ in parity."""
        self.ties.append((a, b, self.where()))

    def even(self, axes: Iterable[Axis]) -> None:
        """Pairs must be equal along these axes (the operator is not linear along them)."""
        for axis in axes:
            self.unifier.even(axis, self.where())

    def opposite(self, a: Axis, b: Axis) -> None:
        """Two axes are one, and what is a pair of equals on the one is a pair (x, -x) on the other."""
        self.unifier.opposite(a, b, self.where())

    def freeze(self, axes: Iterable[Axis], does: str, kind: str = "operator") -> None:
        """These axes keep their size because of what the present operator does with them.

        Args:
            axes: the axes.
            does: what it does, for people.
            kind: of the reason, for programs: "kernel" and "rows" are sizes that nobody would call a width.
        """
        self.unifier.freeze(axes, Reason(kind, f"{self.where()} {does}"))

    def unit(self, axis: Axis, kind: str) -> None:
        """The entries of this inner factor stay together: the width that it is a factor of counts in them."""
        self.units.append((axis, f"{kind} '{self.op.module or '(model)'}'"))

    def factor(self, axis: Axis, outer: int) -> tuple[Axis, Axis]:
        """The axis as `outer` × the rest."""
        return self.unifier.factor(axis, outer, self.where())

    def cut(self, axis: Axis, at: int) -> tuple[Axis, Axis]:
        """The first `at` entries of the axis, and the rest."""
        return self.unifier.cut(axis, at, self.where())

    def contract(self, a: Info, i: int, b: Info, j: int) -> None:
        """Axis i of a is summed against axis j of b."""
        self.opposite(a.axes[i], b.axes[j])
        # New units of the other axes of a weight may read new units freely; between two weights one
        # side keeps the strict form.
        for info, axis in ((a, i), (b, j)):
            if info.use is not None and info.source[axis] is not None:
                if info.axes[axis] == info.use.axes[info.source[axis] or 0]:
                    info.use.read.add(info.source[axis] or 0)
                break

    def take_apart(self, x: Info, dim: int, parts: Sequence[Axis]) -> bool:
        """Axis `dim` falls into segments; returns whether they are a parameter's, which may differ in scale."""
        if x.use is None or x.label != x.use.name or x.source[dim] is None:
            return False
        self.pieces.setdefault(x.label, []).append((x.source[dim] or 0, tuple(parts)))
        return True

    def multiple(self, axis: Axis, number: int) -> None:
        """The size of this axis must be a multiple of a number."""
        self.multiples.append((axis, number))

    def side_by_side(self, axes: Iterable[Axis]) -> None:
        """Activations are multiplied with each other for each entry of these axes: heads of attention."""
        self.parallel += axes

    def expect(self, position: int, axis: Axis) -> None:
        """The present operator's argument at `position` must be the size of this axis, at any width."""
        self.expected.setdefault(self.index, {})[position] = axis

    def attribute(self, name: str, *axes: Axis) -> None:
        """The module's attribute `name` holds the size of this axis (several axes: a tuple of sizes)."""
        self.attributes.setdefault((self.op.module, name), axes)

    def add_bias(self, bias: Info, axis: Axis, out: int) -> None:
        """A bias along `axis` of an activation of scale `out`."""
        self.same(bias.axes[-1], axis)
        self.add_bias_scale(bias, out)

    # Stating that entries are combined.

    def fade_in(self, axis: Axis, position: int = 0, count: int = 1) -> None:
        """The present operator reduces `axis`, whose new entries have to fade in when it grows.

        Args:
            axis: the axis.
            position: which of the axes that the operator reduces it is.
            count: how many axes it reduces.
        """
        if self.op.call.startswith(BRANCH):
            self.freeze([axis], "combines its entries in a branch, where a fade does not reach")
            return
        if self.op.site is None:
            self.freeze([axis], "combines its entries in code that a fade does not reach")
            return
        module, site = self.op.site
        spread = self.op.outputs[-1] in self._centring
        reduction = Statistics(module, axis, site, position, count, is_spread=spread)
        for other in self.statistics:
            if (other.module, other.site) != (module, site):
                continue
            if (other.count, other.is_spread) != (count, spread):
                self.freeze([axis, other.axis], "is called in different ways")
            elif other.position == position:
                self.same(other.axis, axis)  # one call in the code, run again
        self.statistics.append(reduction)

    def pass_by(self) -> None:
        """The present operator is a reduction that was met and does not fade."""
        if self.op.site is not None:
            self.fade_in(Fixed(1), count=0)

    # Writing.

    def set(
        self,
        value: Value,
        axes: Sequence[Axis],
        scale: int,
        like: Info | None = None,
        source: Sequence[int | None] | None = None,
        constant: bool = False,
        stack: tuple[int, tuple[tuple[Axis, ...], ...]] | None = None,
        label: str = "",
        repeated: Iterable[int] = (),
    ) -> None:
        """Gives an output its axes and its scale.

        Args:
            value: the output.
            axes: its axes.
            scale: its scale, as `carry`, `demand` and the like return it.
            like: the input that this is a rearrangement of; parameters are followed through those.
            source: for each axis, the axis of that parameter that it comes from, or None.
            constant: whether it depends on no parameter and no input of the model.
            stack: see `Info`.
            label: see `Info`.
            repeated: see `Info`.
        """
        assert len(axes) == len(value.shape), f"{self.op.name}: {len(axes)} axes for {value.shape}"
        use = like.use if like is not None and source is not None else None
        if use is not None and like is not None:
            label = label or like.label
        self.infos[value] = Info(
            tuple(axes),
            scale,
            use,
            tuple(source or ()),
            constant,
            stack,
            label,
            frozenset(repeated),
        )
