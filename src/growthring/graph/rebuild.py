"""Models that are built from a config (transformers): the config follows, so that what is saved can be loaded.

`model.save_pretrained` writes the config beside the weights, `from_pretrained` builds a model from it. At every
stage that must be the model of that stage: of the same shapes, and computing with the same numbers. So the class is
built from changed configs, on the meta device: those entries follow that give the shapes of other widths, and
with them all numbers that the constructor computes from them (`scaling = head_dim ** -0.5`).
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from growthring.core.axes import Axis, Product, products, refs, size, unsigned
from growthring.graph.follow import Scaled, Sizes, attribute_value, follow_attributes
from growthring.graph.isolation import fixed_random
from growthring.graph.laws import POWERS
from growthring.graph.places import FixedPlaceError, Place, holder_of, leaves, plain_numbers, read
from growthring.graph.probe import Probe
from growthring.graph.resize import named_tensors
from growthring.graph.trace import _quiet

_MOST_BUILDS = 64
_LARGEST_UNIT = 64
Rules = dict[Place, Sizes | Scaled]


class Rebuild:
    """A model that its class can build anew from its config, without values."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.refused = False  # whether the class refused some config of the last search
        config = getattr(model, "config", None)
        methods = [getattr(model, "save_pretrained", None), getattr(config, "to_dict", None)]
        self._full = self._build({}, {}, {}) if all(map(callable, methods)) else None
        own = {name: tuple(t.shape) for name, t in named_tensors(model).items()}
        self.works = self._full is not None and _shapes(self._full, own) == own

    def attributes(self, probes: Sequence[Probe]) -> Rules | None:
        """The entries of the config and the numbers computed from them that follow; None if no entries say it."""
        entries = self._entries(probes[0])
        self.refused = False
        chosen = next((c for c in _choices(entries) if self._fits(probes, c)), None)
        if chosen is None:
            return None
        for place in list(chosen):  # an entry that happens to equal a width
            fewer = {p: rule for p, rule in chosen.items() if p != place}
            if self._fits(probes, fewer):
                chosen = fewer
        return self._computed(probes, chosen)

    def units(self) -> list[int]:
        """Numbers that the config may want widths to be multiples of: its own, such as the number of heads."""
        entries = leaves(getattr(self._model, "config", None), "config")
        held = {n for _, n in entries if type(n) is int}
        return [1, *sorted(n for n in held if 1 < n <= _LARGEST_UNIT)]

    def _build(
        self, rules: Rules, before: Mapping[int, int], after: Mapping[int, int]
    ) -> nn.Module | None:
        """The model's class on the config at other widths, or None where the class refuses."""
        holder = nn.Module()
        holder.config = copy.deepcopy(self._model.config)
        follow_attributes(holder, rules, before, after)
        try:
            with torch.device("meta"), fixed_random(), _quiet():
                getattr(holder.config, "validate", bool)()  # save_pretrained does so, too
                rebuilt = type(self._model)(holder.config)
        except Exception:  # whatever a constructor raises on a config that it does not like
            self.refused = True
            return None
        return rebuilt if isinstance(rebuilt, nn.Module) else None

    def _entries(self, probe: Probe) -> dict[Place, list[Sizes]]:
        """Entries of the config that hold a changing size, and the axes that they may hold the size of."""
        places: dict[Place, list[Sizes]] = {}
        seen = _axes(probe)
        for name, held in leaves(getattr(self._model, "config", None), "config"):
            numbers = (held,) if type(held) is int else held
            if not isinstance(numbers, (tuple, list)) or not numbers:
                continue
            if not all(type(n) is int and n > 1 for n in numbers):
                continue
            choices = [[a for a in seen if size(a, probe.full) == n] for n in numbers]
            if all(choices) and any(probe.changes(a) for options in choices for a in options):
                by_size = [{size(a, probe.small): a for a in reversed(c)} for c in choices]
                places["", name] = [
                    axes
                    for axes in itertools.islice(
                        itertools.product(*(d.values() for d in by_size)), 6
                    )
                    if any(probe.changes(a) for a in axes)
                ]
        return places

    def _fits(self, probes: Sequence[Probe], rules: Rules) -> bool:
        for probe in probes:
            rebuilt = self._build(rules, probe.full, probe.small)
            wanted = {
                name: probe.specs[name].shape(probe.small)
                if name in probe.specs
                else tuple(t.shape)
                for name, t in named_tensors(self._model).items()
            }
            if rebuilt is None or _shapes(rebuilt, wanted) != wanted:
                return False
        return True

    def _computed(self, probes: Sequence[Probe], chosen: Rules) -> Rules | None:
        """Adds the numbers of the modules that differ when the class is built at other widths."""
        assert self._full is not None
        rebuilt = [self._build(chosen, probe.full, probe.small) for probe in probes]
        result = dict(chosen)
        done = {holder_of(self._model, place) for place in chosen}
        axes = _axes(probes[0])
        for place, old in plain_numbers(self._full):
            new = [read(model, place) if model is not None else None for model in rebuilt]
            if all(n == old for n in new) or read(self._model, place) != old:
                continue
            try:
                stored = holder_of(self._model, place)
            except (FixedPlaceError, AttributeError, KeyError, TypeError):
                continue
            if stored in done:
                continue
            done.add(stored)
            rule = _rule(probes, axes, old, new)
            if rule is None:
                return None
            result[place] = rule
        return result


def _choices(entries: Mapping[Place, list[Sizes]]) -> Iterator[Rules]:
    """Ways for the entries to follow, those first in which most do."""
    options: list[list[Sizes | None]] = [[*axes, None] for axes in entries.values()]
    ways = itertools.islice(itertools.product(*options), 4096)
    ranked = sorted(ways, key=lambda way: sum(axes is None for axes in way))
    for way in ranked[:_MOST_BUILDS]:
        yield {p: axes for p, axes in zip(entries, way, strict=True) if axes is not None}


def _axes(probe: Probe) -> list[Axis]:
    """All axes of the tensors, the widths in them, and what is outermost in products: heads, of grouped queries."""
    axes: dict[Axis, None] = {}
    outermost: dict[Axis, None] = {}
    for spec in probe.specs.values():
        for axis in spec.axes:
            parts = getattr(axis, "parts", ())
            for part in (axis, *parts, *refs(axis)):
                axes[unsigned(part)] = None
            for product in products(axis):
                for n in range(2, len(product.parts)):
                    outermost[unsigned(Product(product.parts[:n]))] = None
    return list(axes | outermost)


def _shapes(model: nn.Module, names: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    tensors = named_tensors(model)
    return {name: tuple(tensors[name].shape) for name in names if name in tensors}


def _rule(
    probes: Sequence[Probe], axes: Sequence[Axis], old: Any, new: Sequence[Any]
) -> Sizes | Scaled | None:
    """The axes that a number is the size of, or the law that it follows, at all widths tried."""
    numbers = old if isinstance(old, (tuple, list)) else [old]
    if all(type(n) is int for n in numbers):
        measured = []
        for i, n in enumerate(numbers):
            wanted = [v[i] if isinstance(old, (tuple, list)) else v for v in new if v is not None]
            fitting = (
                a
                for a in axes
                if size(a, probes[0].full) == n
                and [size(a, probe.small) for probe in probes] == wanted
            )
            axis = next(fitting, None)
            if axis is None:
                break
            measured.append(axis)
        else:
            rule = tuple(measured)
            if all(
                attribute_value(old, rule, p.small) == v for p, v in zip(probes, new, strict=True)
            ):
                return rule
    if not isinstance(old, float) or not all(isinstance(v, float) for v in new):
        return None
    for axis in axes:
        for power in POWERS:
            law = Scaled(axis, power, old, size(axis, probes[0].full))
            if all(
                math.isclose(law.at(probe.small), v, rel_tol=1e-9)
                for probe, v in zip(probes, new, strict=True)
            ):
                return law
    return None
