"""The walk over a trace: keeps what is known of each tensor and offers rules the statements they can make."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from growthring.core.axes import Axis, Fixed, refs, unsigned
from growthring.core.variance import Record
from growthring.errors import GrowthError, WidthGroupError
from growthring.graph.recognise import Norm, affine_parameters, find_norms
from growthring.graph.reductions import (
    Statistics as Statistics,
    centring_means,
    mean_of,
    unseen_dims,
)
from growthring.graph.scales import Scales
from growthring.graph.trace import BRANCH, Op, Trace, Value
from growthring.graph.unify import Reason, Unifier

Rule = Callable[["Walk", Op], None]
_RULES: dict[str, Rule] = {}


def register_rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers an axis rule for operators, by name without overload (`"aten.relu"`, `"mylib.my_op"`) or with it.

    The rule gets the `Walk` and the `Op`; it reads `walk.info(value)`, states facts (`walk.same`,
    `walk.contract`, `walk.freeze`, …) and must call `walk.set` for every output. In-place variants
    (`aten.relu_`) share the rule.

    >>> @register_rule("mylib.swish")
    ... def swish(walk, op):
    ...     (x,) = op.inputs()
    ...     walk.even(walk.info(x).axes)
    ...     walk.set(op.outputs[0], walk.info(x).axes, walk.demand(walk.info(x)))
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            _RULES[name] = rule
        return rule

    return register


def find_rule(name: str) -> Rule | None:
    """The rule for `aten.add.Tensor` and the like, or None; one for the overload goes before one for all."""
    base = ".".join(name.split(".")[:2])
    return _RULES.get(name) or _RULES.get(base) or _RULES.get(base.removesuffix("_"))


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


class Walk:
    """Applies the rules to a trace, in order."""

    def __init__(
        self,
        unifier: Unifier,
        scales: Scales,
        trace: Trace,
        first_op: int = 0,
        held: Mapping[str, Reason] | None = None,
    ) -> None:
        self.unifier, self.held = unifier, held or {}
        self.scales = scales
        self.first_op = first_op
        self.trace = trace
        self.uses: dict[str, list[Use]] = {}
        self.statistics: list[Statistics] = []
        self._norms, self._means = find_norms(trace), mean_of(trace)
        self._centring = centring_means(trace)
        self._indices: dict[int, int] = {}
        self._gains: dict[int, int] = {}
        self.attributes: dict[tuple[str, str], tuple[Axis, ...]] = {}
        self.ties: list[tuple[Axis, Axis, str]] = []
        self.multiples: list[
            tuple[Axis, int]
        ] = []  # axes whose size must be a multiple of a number
        self.unknown: dict[str, str] = {}
        self.expected: dict[int, dict[int, Axis]] = {}
        self.pieces: dict[str, list[tuple[int, tuple[Axis, ...]]]] = {}
        self.infos: dict[Value, Info] = {}
        self._own: dict[tuple[Value, int], Info] = {}
        self._direct: list[tuple[Use, Record]] = []
        self._one = self.scales.fresh()
        self.scales.add("demand", (self._one,), None, where="the model's inputs")
        self.index = -1  # of the present operator, counted over all traces of a model
        self.op = Op("", (), {}, (), "")

    def run(self) -> None:
        """Walks the whole trace, then freezes what the model returns."""
        for value, text in self.trace.inputs.items():
            axes = tuple(self.unifier.fresh(n) for n in value.shape)
            for i, axis in enumerate(axes):
                self.unifier.freeze([axis], Reason("input", f"axis {i} of {text}"))
            self.infos[value] = Info(axes, self._one, constant=True)
        for index, op in enumerate(self.trace.ops, self.first_op):
            self.index, self.op = index, op
            if not op.outputs:
                continue
            first_record = len(self.scales.records)
            self._apply(find_rule(op.name) or _no_rule, op)
            missing = [v for v in op.outputs if v not in self.infos]
            if missing:
                raise WidthGroupError(
                    f"the rule for '{op.name}' gave an output no axes; call walk.set."
                )
            if id(op) in self._norms:
                self._normalise(self._norms[id(op)], op, first_record)
        for i, value in enumerate(self.trace.outputs):
            info = self.info(value)
            for j, axis in enumerate(info.axes):
                self.unifier.freeze([axis], Reason("output", f"axis {j} of model output {i}"))
            self.scales.add("result", (info.scale,), None, where=f"model output {i}")
        for value, name in self.trace.left.items():  # its values are kept, its widths may grow
            self.scales.add("demand", (self.info(value).scale,), None, where=f"'{name}'")
        # A parameter that turned out to be a weight, bias or gain has a record of its own kind.
        spent = {id(r) for use, r in self._direct if use.kind not in ("direct", "table", "buffer")}
        self.scales.records[:] = [r for r in self.scales.records if id(r) not in spent]
        for name, kind in affine_parameters(self.trace, self._norms.values()).items():
            for use in self.uses.get(name, ()):
                use.kind = kind if use.kind == "direct" else use.kind

    def _normalise(self, norm: Norm, op: Op, first_record: int) -> None:
        """Inside a norm scales are nobody's business: its results have those of its gains and numbers."""
        added = self.scales.records[first_record:]
        self.scales.records[first_record:] = [r for r in added if r.kind == "own"]
        self._indices[id(op)] = self.index
        if id(op) in norm.gains:
            self._gains[id(op)] = self.info(norm.gains[id(op)]).scale
        if op is norm.ops[0] and norm.root in self.infos:
            root = self.infos[norm.root].scale
            self.scales.add("norm", (root,), None, where=self.where())
        for value in op.outputs:
            scale = self._one
            for other, power in norm.numbers.get(value, {}).items():
                before, scale = scale, self.scales.fresh()
                if other in norm.gains:
                    factors = (before, self._gains[other])
                    self.scales.add("product", factors, scale, where=self.where())
                else:
                    index = self._indices[other]
                    self.scales.add(
                        "scalar", (before,), scale, where=self.where(), op=index, power=power
                    )
            self.infos[value] = replace(self.infos[value], scale=scale)

    def mean_at(self, op: Op, axis: Axis, power: float) -> tuple[str, str] | None:
        """The module and site of a sum that a product with a number ∝ axis^power makes a mean of, if it does."""
        found = self._means.get(id(op))
        if (
            found is None
            or found[0].site is None
            or not math.isclose(found[1] + power, 0, abs_tol=1e-9)
        ):
            return None
        site = found[0].site
        summed = [
            self.unifier.resolve(s.axis) for s in self.statistics if (s.module, s.site) == site
        ]
        moving = [a for a in summed if any(self.unifier.frozen(r.group) is None for r in refs(a))]
        if {unsigned(a) for a in moving} != {unsigned(axis)}:
            return None
        sums = [o for o in self.trace.ops if o.site == site and o.name == found[0].name]
        means = {id(o) for o, _ in self._means.values()}
        return site if all(id(o) in means for o in sums) else None

    def _apply(self, rule: Rule, op: Op) -> None:
        """Runs a rule; one that fails, or whose axes do not fit, is taken back and everything frozen."""
        state = _State(self, op)
        try:
            rule(self, op)
            for value in op.outputs:
                if value in self.infos:
                    axes = self.infos[value].axes
                    found = tuple(self.size(a) for a in axes)
                    assert found == value.shape, f"axes of {found} for {value.shape}"
        except GrowthError:
            raise
        except Exception as error:  # an argument form that the rule's author did not think of
            state.restore()
            text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            _freeze_all(self, op, f"has an argument form that its rule does not know ({text})")

    # Reading.

    def info(self, value: Value) -> Info:
        """What is known of a tensor; a parameter gets axes of its own for each operator that uses it."""
        if value in self.infos:
            return self.infos[value]
        name = self.trace.parameters.get(value) or self.trace.buffers[value]
        key = (value, self.index)
        if key not in self._own:
            axes = tuple(self.unifier.fresh(n) for n in value.shape)
            use = Use(name, axes, kind="buffer" if value in self.trace.buffers else "direct")
            self.uses.setdefault(name, []).append(use)
            if name in self.held:
                self.unifier.freeze(axes, self.held[name])
            scale = self.scales.fresh()
            kind, names = ("demand", ()) if use.kind == "buffer" else ("own", (name,))
            self.scales.add(kind, (), scale, names, self.op.where())
            self._direct.append((use, self.scales.records[-1]))
            self._own[key] = Info(axes, scale, use, tuple(range(len(axes))), label=name)
        return self._own[key]

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
        found = Statistics(module, axis, site, position, count, is_spread=spread)
        for other in self.statistics:
            if (other.module, other.site) != (found.module, found.site):
                continue
            if (other.count, other.is_spread) != (count, spread):
                self.freeze([axis, other.axis], "is called in different ways")
            elif other.position == position:
                self.same(other.axis, axis)  # one call in the code, run again
        self.statistics.append(found)

    def centres(self, op: Op) -> bool:
        """Whether an operator subtracts from a parameter its own mean (see `Statistics.is_spread`)."""
        mean = self._centring.get(op.args[1]) if isinstance(op.args[1], Value) else None
        return mean is not None and mean.site is not None

    def seen(self, value: Value, axes: Sequence[Axis]) -> list[Axis]:
        """Those of a value's axes along which new entries are used by something that does not fade."""
        unseen = unseen_dims(self.trace, value)
        return [axis for d, axis in enumerate(axes) if d not in unseen]

    def pass_by(self) -> None:
        """The present operator is a reduction that was met and does not fade."""
        if self.op.site is not None:
            self.fade_in(Fixed(1), count=0)

    def where(self) -> str:
        """Names the present operator, for reasons."""
        return self.op.where()

    def size(self, axis: Axis) -> int:
        """Entries of an axis in the traced model."""
        return self.unifier.size(axis)

    def has_width(self, axis: Axis) -> bool:
        """Whether the axis has any part that might grow."""
        return any(True for _ in refs(self.unifier.resolve(axis)))

    # Stating facts about axes.

    def same(self, a: Axis, b: Axis) -> None:
        """Two axes are one."""
        self.unifier.same(a, b, self.where())

    def even(self, axes: Iterable[Axis]) -> None:
        """Pairs must be equal along these axes (the operator is not linear along them)."""
        for axis in axes:
            self.unifier.even(axis, self.where())

    def freeze(self, axes: Iterable[Axis], does: str) -> None:
        """These axes keep their size because of what the present operator does with them."""
        self.unifier.freeze(axes, Reason("operator", f"{self.where()} {does}"))

    def factor(self, axis: Axis, outer: int) -> tuple[Axis, Axis]:
        """The axis as `outer` × the rest."""
        return self.unifier.factor(axis, outer, self.where())

    def cut(self, axis: Axis, at: int) -> tuple[Axis, Axis]:
        """The first `at` entries of the axis, and the rest."""
        return self.unifier.cut(axis, at, self.where())

    def contract(self, a: Info, i: int, b: Info, j: int) -> None:
        """Axis i of a is summed against axis j of b."""
        self.unifier.opposite(a.axes[i], b.axes[j], self.where())
        # New units of the other axes of a weight may read new units freely; between two weights one
        # side keeps the strict form.
        for info, axis in ((a, i), (b, j)):
            if info.use is not None and info.source[axis] is not None:
                if info.axes[axis] == info.use.axes[info.source[axis] or 0]:
                    info.use.read.add(info.source[axis] or 0)
                break

    def expect(self, position: int, axis: Axis) -> None:
        """The present operator's argument at `position` must be the size of this axis, at any width."""
        self.expected.setdefault(self.index, {})[position] = axis

    def attribute(self, name: str, *axes: Axis) -> None:
        """The module's attribute `name` holds the size of this axis (several axes: a tuple of sizes)."""
        self.attributes.setdefault((self.op.module, name), axes)

    # Stating facts about scales.

    def carry(self, *infos: Info) -> int:
        """One scale for all inputs and the output; returns the output's."""
        moving = [i.scale for i in infos if not i.constant]
        if len(moving) == len(infos) == 1:
            return infos[0].scale
        out = self.scales.fresh()
        self.scales.add("carry", tuple(i.scale for i in infos), out, where=self.where())
        return out

    def demand(self, *infos: Info) -> int:
        """Every input needs scale 1; returns the output's scale, which is 1."""
        out = self.scales.fresh()
        self.scales.add("demand", tuple(i.scale for i in infos), out, where=self.where())
        return out

    def multiply(self, a: Info, b: Info) -> int:
        """Scale of a product."""
        out = self.scales.fresh()
        self.scales.add("product", (a.scale, b.scale), out, where=self.where())
        return out

    def transform(self, x: Info, weight: Info) -> int:
        """Scale after a contraction with a weight."""
        if weight.use is None:
            return self.multiply(x, weight)
        out = self.scales.fresh()
        weight.use.kind = "weight"
        self.scales.add("weight", (x.scale,), out, (weight.label,), self.where())
        return out

    def add_bias(self, bias: Info, axis: Axis, out: int) -> None:
        """A bias along `axis` of an activation of scale `out`."""
        self.same(bias.axes[-1], axis)
        if bias.use is None:
            self.scales.add("carry", (bias.scale, out), None, where=self.where())
            return
        bias.use.kind = "bias"
        self.scales.add("bias", (out,), None, (bias.label,), self.where())

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
        """Gives an output its axes; `like` and `source` keep track of rearranged parameters."""
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

    def fixed(self, value: Value) -> tuple[Axis, ...]:
        """Axes that do not grow, of the shape of a value."""
        return tuple(Fixed(n) for n in value.shape)


class _State:
    """What a rule may have noted by the time it fails; statements about axes stay, they only restrict."""

    def __init__(self, walk: Walk, op: Op) -> None:
        self._walk = walk
        lists: list[list[Any]] = [
            walk.scales.records, walk.statistics, walk.ties, walk._direct, *walk.pieces.values()
        ]  # fmt: skip
        self._lengths = [(items, len(items)) for items in lists]
        self._attributes, self._pieces = len(walk.attributes), len(walk.pieces)
        used = [walk.infos[v].use for v in op.inputs() if v in walk.infos]
        self._uses = [(use, {k: copy.copy(v) for k, v in vars(use).items()}) for use in used if use]

    def restore(self) -> None:
        """As before the rule; parameters that it used get their uses anew."""
        walk = self._walk
        for items, length in self._lengths:
            del items[length:]
        while len(walk.attributes) > self._attributes:
            walk.attributes.popitem()
        while len(walk.pieces) > self._pieces:
            walk.pieces.popitem()
        walk.expected.pop(walk.index, None)
        for use, held in self._uses:
            vars(use).update(held)
        for key in [key for key in walk._own if key[1] == walk.index]:
            own = walk._own.pop(key)
            walk.uses[own.label] = [u for u in walk.uses[own.label] if u is not own.use]


def _no_rule(walk: Walk, op: Op) -> None:
    """An operator nobody wrote a rule for: nothing that touches it may change."""
    walk.unknown.setdefault(op.name, op.module)
    _freeze_all(walk, op, "has no axis rule (register one with growthring.graph.register_rule)")


def _freeze_all(walk: Walk, op: Op, does: str) -> None:
    infos = [walk.info(v) for v in op.inputs()]
    for info in infos:
        walk.freeze(info.axes, does)
    scale = walk.demand(*infos)
    for value in op.outputs:
        walk.set(value, walk.fixed(value), scale, constant=all(i.constant for i in infos))
