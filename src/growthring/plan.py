"""plan: which width every group has at every stage; Plan.build_seed: the thin model it starts from."""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from growthring.core.axes import layout, refs
from growthring.core.variance import Role
from growthring.errors import GrowthError, InputError, PlanError
from growthring.graph.analysis import Build, Heads
from growthring.graph.check import check_finite
from growthring.graph.discover import discover
from growthring.graph.groups import TensorSpec, WidthGroup, WidthGroups
from growthring.graph.sizes import stage_widths, steps_of
from growthring.graph.skeleton import copy_with, empty_copy, follow_attributes, named_tensors
from growthring.graph.trace import ExampleInputs, run_once, trace
from growthring.schedule import width_fractions


@dataclass(frozen=True)
class Initial:
    """How the user's initialiser filled a tensor of the full model: its deviation, or the one value it holds."""

    std: float
    constant: float | None


@dataclass(frozen=True)
class Plan:
    """Widths per stage, and what is needed to build the seed and grow it.

    Attributes:
        groups: the width groups of the full model.
        stage_widths: for each stage, group key -> width (frozen groups included).
        initial: how each tensor of the full model is initialised.
        notes: what the plan rounded or could not do, in words.
        example_inputs: the inputs the model was traced with; growth is measured on them.
        outputs: the named parts of the model's output that count, or None for all.
        build: the user's factory, if there is one.
        model: the full model, which is never changed.
    """

    groups: WidthGroups
    stage_widths: tuple[Mapping[int, int], ...]
    initial: Mapping[str, Initial]
    notes: tuple[str, ...]
    example_inputs: ExampleInputs = field(repr=False)
    model: nn.Module = field(repr=False)
    outputs: Sequence[str] | None = None
    build: Build | None = field(default=None, repr=False)

    @property
    def num_stages(self) -> int:
        """Number of stages, the seed's included."""
        return len(self.stage_widths)

    def widths(self, group: str) -> list[int]:
        """Width of one group at every stage."""
        key = self.groups[group].key
        return [widths[key] for widths in self.stage_widths]

    def named_widths(self, stage: int) -> dict[str, int]:
        """Width of every growable group at one stage, by name."""
        return {g.name: self.stage_widths[stage][g.key] for g in self.groups.growable}

    def num_parameters(self, stage: int) -> int:
        """Parameters at one stage."""
        widths = self.stage_widths[stage]
        total = 0
        for name, p in self.model.named_parameters():
            spec = self.groups.specs.get(name)
            total += p.numel() if spec is None else math.prod(spec.shape(widths))
        return total

    def role(self, spec: TensorSpec) -> Role:
        """Role of a weight: "input" reads nothing that grows, "output" writes a model output."""
        if spec.name not in self._roles:
            self._roles[spec.name] = self._find_role(spec)
        return self._roles[spec.name]

    @cached_property
    def _roles(self) -> dict[str, Role]:
        return {}

    def _find_role(self, spec: TensorSpec) -> Role:
        frozen = {g.key: g.frozen for g in self.groups}
        reads = {r.group for axis in spec.reads() for r in refs(axis)}
        if all(frozen[g] is not None for g in reads):
            return "input"
        others = [a for i, a in enumerate(spec.axes) if i not in spec.read | spec.kernel]
        reasons = [frozen[r.group] for a in others for r in refs(a)]
        is_output = all(reason is not None and reason.kind == "output" for reason in reasons)
        return "output" if is_output else "hidden"

    def build_seed(self) -> nn.Module:
        """A new model of stage-0 width; the given model stays untouched.

        Its tensors are the leading parts of the full model's, so the user's own initialiser (its
        distribution, its constants, its zero rows) is kept; weights are multiplied by √(full fan-in
        / seed fan-in), as that initialiser would.

        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> seed = plan(net, torch.zeros(1, 4), stages=3).build_seed()
        >>> seed[0].out_features, tuple(seed[2].weight.shape)
        (2, (2, 2))
        """
        check_finite(self.model)
        first, full = self.stage_widths[0], self.stage_widths[-1]
        tensors: dict[str, torch.Tensor] = {}
        for name, tensor in named_tensors(self.model).items():
            spec = self.groups.specs.get(name)
            part = tensor.detach().clone()
            if spec is not None:
                for i, axis in enumerate(spec.axes):
                    kept = layout(axis, first, full)
                    if kept.grows:
                        part = part.index_select(i, kept.old.to(part.device))
                gain = self._seed_gain(spec)
                part = part * gain if gain != 1.0 else part.contiguous()
            tensors[name] = part
        if self.build is None:
            seed = copy_with(self.model, tensors)
            follow_attributes(seed, self.groups.attributes, full, first)
        else:
            seed = built(self.build, self.named_widths(0), tensors)
        return seed

    def _seed_gain(self, spec: TensorSpec) -> float:
        first, full = self.stage_widths[0], self.stage_widths[-1]
        if spec.tied or not spec.is_parameter or self.initial[spec.name].constant is not None:
            return 1.0
        if spec.kind == "bias":
            # torch draws a layer's bias from the fan-in of its weight
            weight = self.groups.specs.get(spec.name.removesuffix("bias") + "weight")
            return (
                self._seed_gain(weight) if weight is not None and weight.kind == "weight" else 1.0
            )
        if spec.kind != "weight":
            return 1.0
        return math.sqrt(spec.fan_in(full) / spec.fan_in(first))

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the widths of every growable group and the parameters at every stage."""
        return {
            "stages": self.num_stages,
            "widths": {g.name: self.widths(g.name) for g in self.groups.growable},
            "parameters": [self.num_parameters(t) for t in range(self.num_stages)],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        head = f"Plan: {self.groups.model_type} in {self.num_stages} stages"
        rows = [["stage", *map(str, range(self.num_stages))]]
        alike: dict[tuple[int, ...], list[str]] = {}
        for g in self.groups.growable:
            alike.setdefault(tuple(self.widths(g.name)), []).append(g.name)
        for widths, names in alike.items():
            more = f" (+ {len(names) - 1} alike)" if len(names) > 1 else ""
            rows.append([names[0] + more, *map(str, widths)])
        rows.append(
            ["parameters", *(f"{self.num_parameters(t):,}" for t in range(self.num_stages))]
        )
        columns = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                [
                    row[0].ljust(columns[0]),
                    *(c.rjust(n) for c, n in zip(row[1:], columns[1:], strict=True)),
                ]
            )
            for row in rows
        ]
        return "\n".join([head, *lines, *(f"note: {note}" for note in self.notes)])


def plan(
    model: nn.Module,
    example_inputs: ExampleInputs,
    *,
    stages: int = 9,
    start: float = 0.25,
    growth: float | None = 0.2,
    round_to: int = 2,
    widths: Mapping[str, Sequence[int]] | Iterable[tuple[str, Sequence[int]]] | None = None,
    freeze: Iterable[str] = (),
    heads: Heads = "auto",
    outputs: Sequence[str] | None = None,
    build: Build | None = None,
) -> Plan:
    """Plans the widths of a model's growth.

    Args:
        model: the full-size model; it is only read.
        example_inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments.
        stages: number of stages, the seed's included.
        start: share of the full width at stage 0.
        growth: growth rate per stage (paper's p_c); None grows evenly to the full width.
        round_to: widths are rounded to multiples of this, and of each group's own unit.
        widths: explicit widths per stage for some groups, by name or glob; the last must be the
            full width.
        freeze: names or globs of modules, parameters or groups that must not grow.
        heads: which factor of heads × head size grows, see `discover_width_groups`.
        outputs: of a model output with named parts, those that must keep their shape, see
            `discover_width_groups`.
        build: `build(widths by group name) -> module`, for a model whose code computes its shapes
            in a way that no attribute can follow.

    Returns:
        The plan; `print(plan)` shows it.

    >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> plan(net, torch.zeros(1, 4)).widths("0")
    [4, 4, 6, 6, 8, 10, 12, 14, 16]
    """
    fractions = width_fractions(stages, start, growth)
    if not isinstance(round_to, int) or round_to < 1:
        raise PlanError(
            f"round_to={round_to!r}: widths are rounded to a multiple of a whole number, at least "
            "1."
        )

    def at(groups: WidthGroups, fraction: float) -> dict[int, int]:
        full, growing = groups.full_widths, [g.key for g in groups.growable]
        if fraction == 1:
            return full
        return full | stage_widths(groups.spans, full, growing, fraction, round_to)

    groups = discover(
        model,
        example_inputs,
        freeze,
        heads,
        outputs,
        build,
        lambda groups: at(groups, fractions[0]),
    )
    check_finite(model)
    run_once(model, example_inputs)
    steps = [at(groups, fraction) for fraction in fractions]
    notes = _rounding_notes(groups, round_to)
    for name, explicit in _explicit(groups, widths, stages).items():
        for t, width in enumerate(explicit):
            steps[t][groups[name].key] = width
    unused = [n for n, _ in model.named_parameters() if n not in groups.specs]
    if unused:
        notes.append(
            f"{len(unused)} parameters, such as '{unused[0]}', are used by no forward pass and keep their shape."
        )
    for t in range(1, stages):
        if steps[t] == steps[t - 1]:
            notes.append(
                f"stage {t} has the widths of stage {t - 1}: the widths leave no room for a step."
            )
    if widths is not None and build is None:
        _try_out(model, groups, steps[0], example_inputs)
    return Plan(
        groups,
        tuple(steps),
        {n: _initial(t) for n, t in named_tensors(model).items() if n in groups.specs},
        tuple(notes),
        example_inputs,
        model,
        outputs,
        build,
    )


def _try_out(
    model: nn.Module, groups: WidthGroups, widths: Mapping[int, int], inputs: ExampleInputs
) -> None:
    """Explicit widths may break sizes that the model's code relies on; runs a copy on fake tensors to see."""
    twin = empty_copy(model, groups.specs, groups.attributes, groups.full_widths, widths)
    try:
        trace(twin, inputs)
    except GrowthError as error:
        cause = str(error.__cause__ or error).strip().splitlines()[0]
        raise PlanError(
            f"{type(model).__name__} does not run at the explicit widths of stage 0 ({cause}). "
            "Sizes that are equal in the "
            "full model may have to stay equal: give those groups the same widths."
        ) from error


def _initial(tensor: torch.Tensor) -> Initial:
    values = tensor.detach()
    if not values.is_floating_point() or not values.numel():
        return Initial(0.0, 0.0)
    first = values.flatten()[0]
    if bool((values == first).all()):
        return Initial(0.0, float(first))
    return Initial(float(values.double().std(correction=0)), None)


def _rounding_notes(groups: WidthGroups, round_to: int) -> list[str]:
    notes = []
    names = {g.key: g.name for g in groups}
    full = groups.full_widths
    for steps in steps_of(groups.spans, full, [g.key for g in groups.growable], round_to):
        for key in steps.groups:
            unit = full[key] * steps.step // steps.count
            if unit > round_to:
                notes.append(
                    f"'{names[key]}' ({full[key]}) steps in units of {unit} to fit the sizes it is tied to."
                )
    return notes


def _explicit(
    groups: WidthGroups,
    widths: Mapping[str, Sequence[int]] | Iterable[tuple[str, Sequence[int]]] | None,
    stages: int,
) -> dict[str, Sequence[int]]:
    """Explicit widths by group, checked."""
    found: dict[str, Sequence[int]] = {}
    for pattern, values in _pairs(widths):
        hits = [g for g in groups if fnmatch.fnmatchcase(g.name, pattern)]
        if not hits:
            groups[pattern]  # raises, and lists the names
        for group in hits:
            if group.name in found:
                raise PlanError(
                    f"widths names the group '{group.name}' twice (again by '{pattern}')."
                )
            found[group.name] = _checked(group, list(values), stages)
    return found


def _pairs(widths: Any) -> Iterator[tuple[str, list[int]]]:
    """(name, widths) pairs of a mapping or of a sequence of pairs."""
    if widths is None:
        return
    items = widths.items() if isinstance(widths, Mapping) else widths
    for item in items:
        if not isinstance(item, tuple) or len(item) != 2:
            raise PlanError(
                f"widths={widths!r}: expected a mapping from group names to one width per stage, such as "
                "{'layer1.conv1': [16, 32, 64]}."
            )
        name, values = item
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise PlanError(
                f"widths['{name}'] = {values!r}: expected one width per stage, such as [16, 32, 64]."
            )
        yield str(name), list(values)


def _checked(group: WidthGroup, values: Sequence[int], stages: int) -> Sequence[int]:
    where = f"widths['{group.name}'] = {list(values)}"
    if not group.grows and group.frozen is not None and any(v != group.width for v in values):
        raise PlanError(
            f"{where}: this group is frozen ({group.frozen.text}) and keeps its width "
            f"{group.width}."
        )
    if len(values) != stages:
        raise PlanError(f"{where}: {len(values)} widths for {stages} stages.")
    if any(not isinstance(v, int) or v < 1 for v in values):
        raise PlanError(f"{where}: widths are whole numbers, at least 1.")
    for t, (a, b) in enumerate(itertools.pairwise(values)):
        if b < a:
            raise PlanError(
                f"{where}: shrinks from {a} to {b} at stage {t + 1}; a growing network only gains "
                "width."
            )
    if values[-1] != group.width:
        raise PlanError(
            f"{where}: must end at the full width {group.width}, so that the last stage is the "
            "given model."
        )
    return values


def built(build: Build, widths: dict[str, int], tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """Calls the user's factory and puts the tensors into what it returns; complains where shapes differ."""
    module = build(dict(widths))
    if not isinstance(module, nn.Module):
        raise InputError(f"build(widths) returned a {type(module).__name__}, not an nn.Module.")
    own = named_tensors(module)
    missing = sorted(set(tensors) ^ set(own))
    if missing:
        raise InputError(
            f"build(widths) returned a module with other tensors than the model: {missing[:5]}."
        )
    for name, tensor in tensors.items():
        if own[name].shape != tensor.shape:
            raise InputError(
                f"build(widths) made '{name}' of shape {tuple(own[name].shape)} where "
                f"{tuple(tensor.shape)} is needed "
                f"for the widths {widths}."
            )
        own[name].data = tensor.to(own[name].device)
    return module
