"""Widths that cannot grow whatever the model's code does: what the traces and the user say."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from growthring.core.axes import Ref, refs
from growthring.errors import InputError
from growthring.graph.naming import named_groups
from growthring.graph.traced import Traced
from growthring.graph.unify import Reason


def freeze_what_cannot_grow(traced: Traced, patterns: Sequence[str]) -> None:
    """Freezes all of it.

    Args:
        traced: the model's traces.
        patterns: names or globs of what the user wants frozen.
    """
    _freeze_buffers(traced)
    _freeze_shared_magnitudes(traced)
    _freeze_dead_ties(traced)
    _freeze_unused(traced)
    _freeze_named(traced, patterns)


def _freeze_buffers(traced: Traced) -> None:
    """Only running statistics have values that are known for new entries; a fixed projection has not."""
    buffers = {name for walk in traced.walks for name in walk.trace.buffers.values()}
    for name, uses in traced.uses.items():
        if name in buffers and any(use.kind not in ("mean", "variance") for use in uses):
            text = f"buffer '{name}' spans it, and nobody knows the values of new entries"
            axes = [axis for use in uses for axis in use.axes]
            traced.unifier.freeze(axes, Reason("buffer", text))


def _freeze_shared_magnitudes(traced: Traced) -> None:
    """A magnitude changes with the width that its direction is read at; any other use of it would notice."""
    for name, uses in traced.uses.items():
        of = {u.of for u in uses}
        if any(of) and len(of) > 1:
            text = f"'{name}' is the magnitude of a normalised weight and is used otherwise, too"
            axes = [a for n in (name, *of - {""}) for u in traced.uses[n] for a in u.axes]
            traced.unifier.freeze(axes, Reason("operator", text))


def _freeze_dead_ties(traced: Traced) -> None:
    """A tensor that is read and written gets zeros; units that nothing else writes would stay zero for ever."""
    specs = traced.specs()
    written = {
        ref.group
        for spec in specs.values()
        if not spec.read_and_written and spec.kind in ("weight", "table", "direct")
        for i, axis in enumerate(spec.axes)
        if i not in spec.read
        for ref in refs(axis)
    }
    for name in traced.read_and_written:
        text = f"only '{name}' writes it, which is read as well: new units could not leave zero"
        for axis in specs[name].axes:
            dead = [ref for ref in refs(axis) if ref.group not in written]
            traced.unifier.freeze(dead, Reason("parity", text))


def _freeze_unused(traced: Traced) -> None:
    """Entries that the code cuts away on the example may be needed for other inputs (a table of positions)."""
    used: set[int] = set()
    for walk in traced.walks:
        tensors = walk.trace.parameters | walk.trace.buffers
        taken = [v for op in walk.trace.ops if op.traits.entries == "new" for v in op.inputs()]
        for value in (*taken, *walk.trace.outputs):
            axes = list(walk.infos[value].axes) if value in walk.infos else []
            axes += [a for use in traced.uses.get(tensors.get(value, ""), ()) for a in use.axes]
            used.update(ref.group for a in axes for ref in refs(traced.unifier.resolve(a)))
    for name, (use, *_) in traced.uses.items():
        text = f"the example inputs do not reach these entries of '{name}', but others may"
        for axis in use.axes:
            rest = [ref for ref in refs(traced.unifier.resolve(axis)) if ref.group not in used]
            traced.unifier.freeze(rest, Reason("unused", text))


def _freeze_named(traced: Traced, patterns: Sequence[str]) -> None:
    names = {g.name: g for g in named_groups(traced.unifier, traced.specs(), traced.unifier.frozen)}
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise InputError(f"freeze takes names and globs, not {type(pattern).__name__}.")
        reason = Reason("user", f"freeze='{pattern}'")
        hit = [g for n, g in names.items() if fnmatch.fnmatchcase(n, pattern)]
        traced.unifier.freeze([Ref(g.key) for g in hit], reason)
        matched = bool(hit)
        for name, (use, *_) in traced.uses.items():
            parts = name.split(".")
            prefixes = [".".join(parts[:k]) for k in range(1, len(parts) + 1)]
            if any(fnmatch.fnmatchcase(p, pattern) for p in prefixes):
                matched = True
                axes = [a for i, a in enumerate(use.axes) if i not in use.read]
                traced.unifier.freeze(axes, reason)
        modules = (n for n, _ in traced.model.named_modules())
        if not matched and not any(fnmatch.fnmatchcase(n, pattern) for n in modules):
            raise InputError(
                f"freeze='{pattern}' matches no module, parameter or width group of "
                f"{type(traced.model).__name__}. 'growthring inspect' lists the names."
            )
