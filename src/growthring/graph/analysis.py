"""The traces of a model under one unifier, and the choice of what grows."""

from __future__ import annotations

import fnmatch
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from growthring.core.axes import Axis, Concat, Fixed, Product, Ref, refs, unsigned
from growthring.errors import InputError, WidthGroupError
from growthring.graph.attempt import Fit
from growthring.graph.candidates import alike
from growthring.graph.computed import unsupported
from growthring.graph.follow import Attributes, Scaled
from growthring.graph.groups import Law, Member, TensorSpec, WidthGroup, WidthGroups, describe
from growthring.graph.places import Place
from growthring.graph.probe import Probe
from growthring.graph.reductions import CASTS, SHAPES, base_of
from growthring.graph.rules import Walk
from growthring.graph.rules.records import Use
from growthring.graph.rules.run import walk_trace
from growthring.graph.scales import Scales
from growthring.graph.sizes import in_proportion, in_sets, probe_widths, spans_of, units_of
from growthring.graph.skeleton import handled_attributes, named_tensors
from growthring.graph.trace import ExampleInputs, Op, Trace
from growthring.graph.unify import Reason, Unifier

# Names that stand for a module's weight: of normalised weights (by parametrization, by hook), of recurrent layers.
_COMPUTED = re.compile(r"parametrizations\.(\w+)\.original\d*$|(weight\w*?)_v$")
_LEAF = re.compile(r"weight|bias|(weight|bias)_(ih|hh|hr)(_l\d+)?(_reverse)?")
# Operators that hand entries on, all or some of them, and do nothing with them.
_PASSING = (
    *CASTS, *SHAPES, "aten.slice", "aten.narrow", "aten.split", "aten.split_with_sizes", "aten.chunk",
    "aten.tensor_split", "aten.unsafe_chunk", "aten.unsafe_split", "aten.t",
)  # fmt: skip
Heads = Literal["auto", "size", "count"]
# Which widths move together: none, those of the layers of a stack, those whose sizes are equal somewhere, or all
# in one proportion.
Tie = Literal["apart", "alike", "equal", "proportional"]
Build = Callable[[dict[str, int]], nn.Module]


class Analysis:
    """The traces of a model under one unifier, and the choice of what grows."""

    def __init__(
        self,
        model: nn.Module,
        traces: Sequence[Trace],
        patterns: Sequence[str],
        heads: Heads,
    ) -> None:
        self.model, self.heads = model, heads
        self.unifier, self.scales = Unifier(), Scales()
        self.walks: list[Walk] = []
        first_op, held = 0, unsupported(model)
        for t in traces:
            self.walks.append(walk_trace(self.unifier, self.scales, t, first_op, held))
            first_op += len(t.ops)
        self.passed_over: dict[int, Reason] = {}
        self._join_sites()
        self.unit = 1  # of which every width is a multiple, as far as its full width is
        self._join_uses()
        self._unlabel()
        self._freeze_buffers()
        self._freeze_shared_magnitudes()
        self._freeze_dead_ties()
        self._freeze_unused()
        self._freeze_named(patterns)

    def _join_sites(self) -> None:
        """A reduction that several traces met has one axis."""
        first: dict[tuple[str, str, int], Axis] = {}
        for walk in self.walks:
            for s in walk.statistics:
                self.unifier.same(first.setdefault(s.place, s.axis), s.axis, f"'{s.module}'")

    def _join_uses(self) -> None:
        """Several uses of one tensor have one structure; reading and writing it makes it tied."""
        self.tied: set[str] = set()
        for walk in self.walks:
            for a, b, where in walk.ties:
                self.unifier.tie(a, b, where)
        self.uses: dict[str, list[Use]] = {}
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
                        self.tied.add(name)
                    else:
                        text = f"'{name}' is used in two ways whose pairs cannot both cancel"
                        self.unifier.freeze([a], Reason("parity", text))

    def _freeze_dead_ties(self) -> None:
        """A tied tensor gets zeros; units that nothing else writes would stay zero for ever."""
        specs = self._specs()
        written = {
            ref.group
            for spec in specs.values()
            if not spec.tied and spec.kind in ("weight", "table", "direct")
            for i, axis in enumerate(spec.axes)
            if i not in spec.read
            for ref in refs(axis)
        }
        for name in self.tied:
            text = f"only '{name}' writes it, which is read as well: new units could not leave zero"
            for axis in specs[name].axes:
                dead = [ref for ref in refs(axis) if ref.group not in written]
                self.unifier.freeze(dead, Reason("parity", text))

    def _freeze_unused(self) -> None:
        """Entries that the code cuts away on the example may be needed for other inputs (a table of positions)."""
        used: set[int] = set()
        for walk in self.walks:
            tensors = walk.trace.parameters | walk.trace.buffers
            taken = [v for op in walk.trace.ops if base_of(op) not in _PASSING for v in op.inputs()]
            for value in (*taken, *walk.trace.outputs):
                axes = list(walk.infos[value].axes) if value in walk.infos else []
                axes += [a for use in self.uses.get(tensors.get(value, ""), ()) for a in use.axes]
                used.update(ref.group for a in axes for ref in refs(self.unifier.resolve(a)))
        for name, (use, *_) in self.uses.items():
            text = f"the example inputs do not reach these entries of '{name}', but others may"
            for axis in use.axes:
                rest = [ref for ref in refs(self.unifier.resolve(axis)) if ref.group not in used]
                self.unifier.freeze(rest, Reason("unused", text))

    def _freeze_buffers(self) -> None:
        """Only running statistics have values that are known for new entries; a fixed projection has not."""
        buffers = {name for walk in self.walks for name in walk.trace.buffers.values()}
        for name, uses in self.uses.items():
            if name in buffers and any(use.kind not in ("mean", "variance") for use in uses):
                text = f"buffer '{name}' spans it, and nobody knows the values of new entries"
                axes = [axis for use in uses for axis in use.axes]
                self.unifier.freeze(axes, Reason("buffer", text))

    def _freeze_shared_magnitudes(self) -> None:
        """A magnitude changes with the width that its direction is read at; any other use of it would notice."""
        for name, uses in self.uses.items():
            of = {u.of for u in uses}
            if any(of) and len(of) > 1:
                text = (
                    f"'{name}' is the magnitude of a normalised weight and is used otherwise, too"
                )
                axes = [a for n in (name, *of - {""}) for u in self.uses[n] for a in u.axes]
                self.unifier.freeze(axes, Reason("operator", text))

    def _freeze_named(self, patterns: Sequence[str]) -> None:
        names = {g.name: g for g in self._groups(self._specs())}
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise InputError(f"freeze takes names and globs, not {type(pattern).__name__}.")
            reason = Reason("user", f"freeze='{pattern}'")
            hit = [g for n, g in names.items() if fnmatch.fnmatchcase(n, pattern)]
            self.unifier.freeze([Ref(g.key) for g in hit], reason)
            found = bool(hit)
            for name, (use, *_) in self.uses.items():
                parts = name.split(".")
                prefixes = [".".join(parts[:k]) for k in range(1, len(parts) + 1)]
                if any(fnmatch.fnmatchcase(p, pattern) for p in prefixes):
                    found = True
                    axes = [a for i, a in enumerate(use.axes) if i not in use.read]
                    self.unifier.freeze(axes, reason)
            modules = (n for n, _ in self.model.named_modules())
            if not found and not any(fnmatch.fnmatchcase(n, pattern) for n in modules):
                raise InputError(
                    f"freeze='{pattern}' matches no module, parameter or width group of "
                    f"{type(self.model).__name__}. 'growthring inspect' lists the names."
                )

    def _specs(self) -> dict[str, TensorSpec]:
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
                name in self.tied,
                self.unifier.resolve(first.inner or Fixed(1)),
                self._pieces(name, len(uses)),
                frozenset().union(*(u.zero_rows for u in uses)),
                first.of,
            )
        return specs

    def _pieces(self, name: str, num_uses: int) -> tuple[int, tuple[Axis, ...]] | None:
        """The segments that operators use by themselves, if every use takes the tensor apart alike."""
        found = {
            (axis, tuple(self.unifier.resolve(p) for p in parts))
            for walk in self.walks
            for axis, parts in walk.pieces.get(name, ())
        }
        splits = sum(len(walk.pieces.get(name, ())) for walk in self.walks)
        return found.pop() if len(found) == 1 and splits == num_uses else None

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

    def _absolute(self, axis: Axis) -> Axis:
        if isinstance(axis, Ref):
            return replace(axis, sign=axis.sign * self.unifier.orientation(axis.group))
        if isinstance(axis, (Product, Concat)):
            return type(axis)(tuple(self._absolute(part) for part in axis.parts))
        return axis

    def _known(self, axis: Axis, keys: set[int]) -> Axis:
        """The resolved axis; widths that no tensor has are fixed."""
        axis = self.unifier.resolve(axis)
        if isinstance(axis, Ref):
            return axis if axis.group in keys else Fixed(self.unifier.size(axis))
        if isinstance(axis, (Product, Concat)):
            return type(axis)(tuple(self._known(part, keys) for part in axis.parts))
        return axis

    def choose(self) -> list[int]:
        """The groups that grow: unfrozen, and one factor of each product."""
        specs = self._specs()
        keys = {ref.group for s in specs.values() for axis in s.axes for ref in refs(axis)}
        self.passed_over = {}
        products = [p for s in specs.values() for axis in s.axes for p in _products(axis)]
        settled: set[int] = set()  # widths that grow in some product for lack of another choice
        for product in products:
            live = self._live_factors(product)
            if len(live) == 1:
                # two is the least width, so such a factor would not grow at all
                settled.update(r.group for r in live[0][1] if self.unifier.size(r) > 2)
        for product in products:
            self._choose_factor(product, settled)
        return sorted(k for k in keys if self.frozen(k) is None)

    def frozen(self, group: int) -> Reason | None:
        """Why a width does not grow; one passed over for the other factor of a product may be chosen later."""
        return self.unifier.frozen(group) or self.passed_over.get(group)

    def _live_factors(self, product: Product) -> list[tuple[int, list[Ref]]]:
        parts = [[r for r in refs(part) if self.frozen(r.group) is None] for part in product.parts]
        return [(i, group) for i, group in enumerate(parts) if group]

    def _choose_factor(self, product: Product, settled: set[int]) -> None:
        live = self._live_factors(product)
        if len(live) < 2:
            return
        everyone = [g for _, group in live for g in {ref.group for ref in group}]
        if len(set(everyone)) < len(everyone):
            text = "it is multiplied by itself on one axis, so its units are not independent"
            self.unifier.freeze([Ref(g) for g in everyone], Reason("structure", text))
            return
        preferred = [item for item in live if any(r.group in settled for r in item[1])]
        sizes = {i: self.unifier.size(product.parts[i]) for i, _ in live}
        if preferred:
            keep = preferred[0][0]
        elif self.heads == "auto":
            keep = max(live, key=lambda item: (sizes[item[0]], item[0]))[0]
        else:
            keep = live[-1][0] if self.heads == "size" else live[0][0]
        for i, group in live:
            if i != keep:
                text = f"the other factor of this axis ({sizes[keep]} wide) grows instead"
                for ref in group:
                    self.passed_over[ref.group] = Reason("factor", text)

    def attributes(self) -> dict[Place, tuple[Axis, ...] | Scaled]:
        """Attributes known from operator rules and from handlers."""
        found: dict[Place, tuple[Axis, ...] | Scaled] = {}
        for walk in self.walks:
            for key, axes in walk.attributes.items():
                found[key] = tuple(self.unifier.resolve(a) for a in axes)
        return found | dict(handled_attributes(self.model, self._specs()))

    def spans(self, growing: Sequence[int], tie: Tie) -> tuple[Axis, ...]:
        """The spans of equal size, which move together."""
        if tie == "apart":
            return ()
        full = {g: self.unifier.size(Ref(g)) for g in growing}
        if tie == "alike":
            sets: dict[tuple[str, int], list[int]] = {}
            for group in self._groups(self._specs()):
                if group.key in full:
                    sets.setdefault((alike(group.name), group.width), []).append(group.key)
            return tuple(in_sets(full, sets.values()))
        found = spans_of(self._specs().values(), growing)
        return (*found, *in_proportion(full, growing)) if tie == "proportional" else tuple(found)

    def probe(
        self,
        inputs: ExampleInputs,
        modes: Sequence[bool],
        outputs: Sequence[str] | None,
        growing: Sequence[int],
        tie: Tie,
        build: Build | None,
        variation: int = 0,
        more: Attributes | None = None,
    ) -> Probe:
        """The widths to try the model's code at; what need not move together shrinks by different amounts."""
        specs = self._specs()
        keys = {ref.group for s in specs.values() for axis in s.axes for ref in refs(axis)}
        full = self._full(keys)
        small = Sizes(self.unifier)
        small.update(full)
        spans = spans_of(specs.values(), growing)
        factors = {r.group for axis in spans if isinstance(axis, Product) for r in refs(axis)}
        small.update(
            probe_widths(
                self.spans(growing, tie),
                full,
                growing,
                factors if tie in ("apart", "alike") else (),
                variation,
                self.units(growing),
            )
        )
        probe = Probe(
            self.model, inputs, outputs, self.walks, modes, specs, full, small,
            {**(more or {}), **self.attributes()},
        )  # fmt: skip
        return self.at(probe, small, build)

    def units(self, growing: Sequence[int]) -> dict[int, int]:
        """What the width of each group is a multiple of: for the config, and for operators that need it."""
        full = self._full(growing)
        multiples = [(self.unifier.resolve(a), n) for w in self.walks for a, n in w.multiples]
        needed = units_of(multiples, full, growing)
        return {g: math.lcm(math.gcd(self.unit, full[g]), needed.get(g, 1)) for g in growing}

    def _full(self, keys: Iterable[int]) -> Sizes:
        full = Sizes(self.unifier)
        full.update({k: self.unifier.size(Ref(k)) for k in keys})
        return full

    def operator(self, index: int) -> Op:
        """An operator by its number over all traces."""
        walk = next(w for w in reversed(self.walks) if w.first_op <= index)
        return walk.trace.ops[index - walk.first_op]

    def at(self, probe: Probe, small: Mapping[int, int], build: Build | None) -> Probe:
        """The same probe at other widths."""
        make = None
        if build is not None:
            named = {g.name: small[g.key] for g in self._groups(probe.specs) if g.grows}
            make = functools.partial(build, named)
        return replace(probe, small=small, build=make)

    def _groups(self, specs: Mapping[str, TensorSpec]) -> list[WidthGroup]:
        members: dict[int, list[tuple[str, int, str, Axis]]] = {}
        for spec in specs.values():
            for i, axis in enumerate(spec.axes):
                for ref in dict.fromkeys(r.group for r in refs(axis)):
                    role = "reads" if i in spec.read else "writes"
                    if spec.kind in ("bias", "gain", "mean", "variance", "buffer", "magnitude"):
                        role = "shares"
                    members.setdefault(ref, []).append((spec.name, i, role, axis))
        # Widths that nothing can make grow are named last, so that the others get the plain names.
        last = ("input", "output", "operator", "fixed", "buffer")
        reasons = {key: self.unifier.frozen(key) for key in members}
        order = sorted(members, key=lambda k: getattr(reasons[k], "kind", "") in last)
        members = {key: members[key] for key in order}
        names = _group_names(members)
        groups = []
        for key, found in members.items():
            listed = tuple(
                Member(n, i, r, describe(a, key, self.unifier.size)) for n, i, r, a in found
            )
            width = self.unifier.size(Ref(key))
            groups.append(WidthGroup(key, names[key], width, listed, self.frozen(key)))
        return sorted(groups, key=lambda g: not g.grows)

    def result(self, fitted: Fit, laws: Mapping[int, Law], tie: Tie) -> WidthGroups:
        """The finished groups; raises if nothing can grow."""
        self.choose()
        specs = self._specs()
        groups = self._groups(specs)
        walks = self.walks
        unknown = {n: m for w in walks for n, m in w.unknown.items()}
        growing = [g.key for g in groups if g.grows]
        if not growing:
            reasons = dict.fromkeys(
                f"{g.name} ({g.width}): {g.frozen.text}" for g in groups if g.frozen is not None
            )
            listed = "\n  ".join(list(reasons)[:12]) or "it has no parameters"
            raise WidthGroupError(
                f"nothing in {type(self.model).__name__} can grow. Its widths and why each is "
                f"frozen:\n  {listed}"
            )
        keys = {g.key for g in groups}
        means = {law.mean for law in laws.values()}
        statistics = [
            replace(s, axis=self._known(s.axis, keys), is_mean=(s.module, s.site) in means)
            for w in walks
            for s in w.statistics
        ]
        unique = {s.place: s for s in statistics}
        return WidthGroups(
            type(self.model).__name__,
            tuple(groups),
            {n: specs[n] for n in named_tensors(self.model) if n in specs},
            tuple(self.scales.records),
            self.scales.count,
            tuple(unique.values()),
            {place: self._known_rule(rule, keys) for place, rule in fitted.attributes.items()},
            laws,
            self.spans(growing, tie),
            unknown,
            (*fitted.notes, *self._notes(growing)),
            self.units(growing),
        )

    def _known_rule(
        self, rule: tuple[Axis, ...] | Scaled, keys: set[int]
    ) -> tuple[Axis, ...] | Scaled:
        if isinstance(rule, Scaled):
            return replace(rule, axis=self._known(rule.axis, keys))
        return tuple(self._known(axis, keys) for axis in rule)

    def _notes(self, growing: Sequence[int]) -> Iterable[str]:
        """What the forward pass leaves on modules and gets wider: nobody sees what it is used for."""
        seen: set[str] = set()
        for walk in self.walks:
            for value, name in walk.trace.left.items():
                axes = [self.unifier.resolve(a) for a in walk.info(value).axes]
                if name not in seen and {r.group for a in axes for r in refs(a)} & set(growing):
                    seen.add(name)
                    yield (
                        f"the forward pass leaves '{name}' on a module, and it gets wider with the model: whatever "
                        "uses it from outside has to follow, or freeze what writes it."
                    )


class Sizes(dict[int, int]):
    """Widths by group; one that belongs to no tensor has its traced size."""

    def __init__(self, unifier: Unifier) -> None:
        super().__init__()
        self._unifier = unifier

    def __missing__(self, key: int) -> int:
        return self._unifier.size(Ref(key))


def _products(axis: Axis) -> Iterable[Product]:
    if isinstance(axis, Product):
        yield axis
    if isinstance(axis, (Product, Concat)):
        for part in axis.parts:
            yield from _products(part)


def _group_names(members: Mapping[int, Sequence[tuple[str, int, str, Any]]]) -> dict[int, str]:
    """Each group is named after the module of the first tensor that writes it (reads it: with `.in`)."""
    names: dict[int, str] = {}
    taken: dict[str, int] = {}
    for key, found in members.items():
        written = [m for m in found if m[2] == "writes"]
        tensor, _, role, _ = (written or found)[0]
        tensor = _COMPUTED.sub(lambda m: m[1] or m[2], tensor)
        module, _, leaf = tensor.rpartition(".")
        base = module if _LEAF.fullmatch(leaf) and module else tensor
        base = base if role != "reads" else f"{base}.in"
        taken[base] = taken.get(base, 0) + 1
        names[key] = base if taken[base] == 1 else f"{base}/{taken[base]}"
    return names
