"""Attributes that a model's code reads and that hold the size of a width: candidates for following it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from growthring.core.axes import Axis, Fixed, refs, size, unsigned
from growthring.graph.follow import Sizes, attribute_value
from growthring.graph.places import (
    FixedPlaceError,
    Place,
    assign,
    exists,
    holder_of,
    is_whole,
    leaves,
    read,
)
from growthring.graph.probe import Probe
from growthring.graph.resize import copy_with, named_tensors

_NUMBER = re.compile(r"\d+")


@dataclass
class Candidates:
    """The attributes that may follow a width.

    Attributes:
        options: attribute -> the axes whose sizes it may hold, the nearest first.
        readers: attribute -> the modules whose code reads it (a settings object is shared by many).
        fixed: attribute -> why it cannot be changed.
    """

    options: dict[Place, list[Sizes]] = field(default_factory=dict)
    readers: dict[Place, list[str]] = field(default_factory=dict)
    fixed: dict[Place, str] = field(default_factory=dict)

    def first(self) -> dict[Place, Sizes]:
        """Each attribute with the nearest axis."""
        return {place: options[0] for place, options in self.options.items()}


def read_sizes(probe: Probe, constant: Iterable[Place] = ()) -> Candidates:
    """The attributes that the code read and that hold a changing size, those known or kept `constant` left out."""
    candidates = Candidates()
    first: dict[tuple[int, str], Place] = {}  # of each stored number
    taken = {
        holder_of(probe.model, p) for p in (*constant, *probe.attributes) if exists(probe.model, p)
    }
    near = functools.cache(functools.partial(axes_inside, probe))
    reads = sorted({place for walk in probe.walks for place in walk.trace.reads})
    for path, name in reads:
        value = read(probe.model, (path, name))
        for leaf, held in leaves(value, name):
            sizes = (held,) if is_whole(held) else held
            if not isinstance(sizes, (tuple, list)) or not sizes:
                continue
            if not all(is_whole(n) for n in sizes) or max(sizes) < 2:
                continue
            stored = holder_of(probe.model, (path, leaf))
            if stored in taken:
                continue
            options = _options(probe, near(path), tuple(sizes))
            if options:
                place = first.setdefault(stored, (path, leaf))
                have = candidates.options.setdefault(place, [])
                have += [o for o in options if o not in have]
                candidates.readers.setdefault(place, []).append(path)
    if candidates.options:
        _drop_fixed(probe, candidates)
    return candidates


def _options(probe: Probe, seen: list[Axis], sizes: tuple[int, ...]) -> list[Sizes]:
    """Axes among `seen` that have these sizes; at least one of them changes. -1, 0 and 1 in a shape stay."""
    choices: list[list[Axis]] = [
        [a for a in seen if size(a, probe.full) == n] if n > 1 else [Fixed(n)] for n in sizes
    ]
    moving = [[a for a in options if probe.changes(a)] for options in choices]
    if not any(moving) or not all(choices):
        return []
    if len(sizes) > 1:
        return [tuple((m or c)[0] for m, c in zip(moving, choices, strict=True))]
    by_size = {size(a, probe.small): a for a in reversed(moving[0])}  # what moves alike is alike
    return [(a,) for a in moving[0] if by_size[size(a, probe.small)] is a]


def _drop_fixed(probe: Probe, candidates: Candidates) -> None:
    """Tries each attribute on a copy: what is computed, frozen or shared with the original cannot follow."""
    model = probe.model
    copied = copy_with(model, {n: t.detach() for n, t in named_tensors(model).items()})
    for place in list(candidates.options):
        try:
            if holder_of(copied, place)[0] == holder_of(model, place)[0]:
                raise FixedPlaceError("what holds it is not copied with the model")
            held, rule = read(copied, place), candidates.options[place][0]
            assign(copied, place, attribute_value(held, rule, probe.small))
        except (FixedPlaceError, AttributeError, KeyError, TypeError) as error:
            candidates.fixed[place] = str(error)
            del candidates.options[place]


def axes_inside(probe: Probe, path: str) -> list[Axis]:
    """Axes of the tensors that a module's own code handles; of its sub-modules' where it handles none."""
    axes: dict[Axis, None] = {}
    for direct in (True, False):
        for walk in probe.walks:
            for op in walk.trace.ops:
                if op.module == path if direct else inside(op.module, path):
                    for value in (*op.inputs(), *op.outputs):
                        if value in walk.infos:
                            for axis in probe.axes(walk, value):
                                parts = (axis, *refs(axis))
                                axes.update(dict.fromkeys(unsigned(part) for part in parts))
        if axes:
            break
    return list(axes)


def inside(path: str, module: str) -> bool:
    """Whether a module is another one or lies within it."""
    return module == "" or path == module or path.startswith(f"{module}.")


def alike(path: str) -> str:
    """What the paths of the layers of a stack have in common.

    >>> alike("blocks.3.attn")
    'blocks.*.attn'
    """
    return _NUMBER.sub("*", path)


def groups_of(probe: Probe, places: Iterable[Place]) -> list[list[Place]]:
    """Attributes that follow together or not at all: the same one of all layers of a stack.

    A module without parameters (`Take(n)`) may serve different purposes in one model, so each is by itself.
    """
    together: dict[tuple[object, ...], list[Place]] = {}
    for path, name in places:
        module = probe.model.get_submodule(path)
        is_tool = not any(True for _ in module.parameters())
        key = (type(module), path if is_tool else alike(path), name)
        together.setdefault(key, []).append((path, name))
    return list(together.values())


def worth_trying(
    probe: Probe, path: str, candidates: Candidates, known: Mapping[Place, object]
) -> Iterator[dict[Place, Sizes]]:
    """Attributes to add after a failure in a module: its own, all at once and one by one, its parents', any other.

    The same attribute of every module of that class is tried together: a stack of layers fails as one.
    """
    start = path
    while True:
        kind = type(probe.model.get_submodule(path))
        same = [p for p in candidates.options if type(probe.model.get_submodule(p[0])) is kind]
        own = [p for p in candidates.options if path in candidates.readers[p] and p not in known]
        tries = [[place] for place in own]
        if len(own) > 1:
            tries.insert(0, own)
        for chosen in tries:
            names = {name for _, name in chosen}
            all_alike = [p for p in same if p[1] in names and p not in known and p not in chosen]
            for k in range(max(len(candidates.options[place]) for place in chosen)):
                yield {
                    place: candidates.options[place][min(k, len(candidates.options[place]) - 1)]
                    for place in (*chosen, *all_alike)
                }
        if path == "":
            break
        path = path.rpartition(".")[0]
    # What it was given may be of the wrong size.
    others = [p for p in candidates.options if p not in known and not inside(start, p[0])]
    for group in reversed(groups_of(probe, others)):
        yield {place: candidates.options[place][0] for place in group}
