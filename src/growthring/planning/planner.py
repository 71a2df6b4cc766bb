"""plan: chooses the width of every group, the epochs and the batch size of every stage, within a budget."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from growthring.errors import GrowthError, PlanError
from growthring.graph.analysis import Build
from growthring.graph.check import check_finite
from growthring.graph.choosing import Heads
from growthring.graph.discover import discover
from growthring.graph.groups import WidthGroup, WidthGroups
from growthring.graph.isolation import copied, kept_random, own_settings
from growthring.graph.magnitudes import typical_ratio, with_ratios
from growthring.graph.resize import empty_copy, named_tensors
from growthring.graph.search import Share
from growthring.graph.sizes import steps_of, widths_at
from growthring.graph.trace import ExampleInputs, run_once, trace
from growthring.planning.costs import OPTIMIZER_STATE, Footprint
from growthring.planning.plan import Initial, Plan
from growthring.planning.schedule import (
    Rule,
    batch_sizes,
    check_list,
    is_number,
    rate_factors,
    recursive_widths,
    stage_epochs,
    whole,
    width_fractions,
)


@own_settings()
def plan(
    model: nn.Module,
    example_inputs: ExampleInputs,
    *,
    stages: int = 9,
    start: float = 0.25,
    growth: float | None = 0.2,
    epochs: int | Sequence[int] = 160,
    first_epochs: int | None = None,
    epoch_growth: float = 0.2,
    batch_size: int | Sequence[int] = 128,
    batch_growth: float = 0.0,
    batch_memory: float | None = None,
    batch_rate: Literal["none", "linear", "sqrt"] = "none",
    budget: float | None = None,
    budget_of: Literal["flops", "seconds"] = "flops",
    schedule: Rule = "published",
    optimizer: str = "sgd",
    round_to: int = 2,
    widths: Mapping[str, Sequence[int]] | Iterable[tuple[str, Sequence[int]]] | None = None,
    freeze: Iterable[str] = (),
    heads: Heads = "auto",
    outputs: Sequence[str] | None = None,
    build: Build | None = None,
) -> Plan:
    """Plans a model's growth: widths, epochs and batch sizes, and what they cost.

    Args:
        model: the full-size model; it is only read.
        example_inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments.
        stages: number of stages, the seed's included.
        start: share of the full width at stage 0.
        growth: growth rate of widths per stage (paper's p_c); None grows evenly to the full width.
        epochs: of the whole training, or a list over stages.
        first_epochs: epochs of stage 0; by default a twentieth of all, as published.
        epoch_growth: growth rate of epochs per stage (p_t); the last stage takes the rest.
        batch_size: of the last stage, or a list over stages.
        batch_growth: how much larger batches are one stage earlier (p_b).
        batch_memory: bytes that a training step may take; every stage gets the largest batch that fits.
        batch_rate: how the learning rate follows the batch size: "none" (the paper), "linear", "sqrt".
        budget: share of the cost of fixed-size training (0 to 1) to stay within; first_epochs (unless given), then
            growth are chosen to meet it.
        budget_of: "flops", or "seconds", measured on this machine.
        schedule: "published", "recursive" (eqs. 6 and 7 to the letter) or "linear".
        optimizer: whose state the memory counts: sgd, adam, adamw, avagrad, lars or none.
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
    >>> made = plan(net, torch.zeros(1, 4))
    >>> made.widths("0"), made.epochs
    ([4, 4, 6, 6, 8, 10, 12, 14, 16], (8, 9, 11, 13, 16, 19, 23, 28, 33))
    """
    fractions = width_fractions(stages, start, growth, schedule)
    if isinstance(round_to, bool) or not isinstance(round_to, int) or round_to < 1:
        raise PlanError(
            f"round_to={round_to!r}: widths are rounded to a multiple of a whole number, at least "
            "1."
        )
    if optimizer not in OPTIMIZER_STATE:
        raise PlanError(f"optimizer={optimizer!r} is not one of {', '.join(OPTIMIZER_STATE)}.")
    if build is not None and not callable(build):
        raise PlanError(f"build={build!r} is not a function from widths to a module.")
    if not isinstance(freeze, Iterable):
        raise PlanError(f"freeze={freeze!r} is not a list of names.")
    freeze = freeze if isinstance(freeze, str) else tuple(freeze)
    settings = _Settings(stages, start, schedule, round_to, epochs, first_epochs, epoch_growth, {})
    settings.epochs_of(None)
    batches = _Batches(batch_size, batch_growth, batch_memory, batch_rate)
    batches.check(stages)
    _check_budget(budget, budget_of)
    with kept_random():  # a factory may draw numbers
        groups = discover(
            model,
            example_inputs,
            freeze,
            heads,
            outputs,
            build,
            Share(fractions[0], round_to),
        )
    check_finite(model)
    run_once(model, example_inputs)
    explicit = _explicit(groups, widths, stages)
    settings = replace(settings, explicit=explicit)
    steps = settings.widths(groups, growth)
    notes = [*groups.notes, *_rounding_notes(groups, round_to)]
    unused = [n for n, _ in model.named_parameters() if n not in groups.specs]
    if unused:
        notes.append(
            f"{len(unused)} parameters, such as '{unused[0]}', are used by no forward pass and keep their shape."
        )
    if explicit and build is None:
        _try_out(model, groups, steps[0], example_inputs)
    made = Plan(
        groups,
        tuple(steps),
        _initials(model, groups),
        (),
        copied(example_inputs),
        model,
        outputs,
        build,
        tuple(settings.epochs_of(None)),
        optimizer=optimizer,
        dtypes={n: p.dtype for n, p in model.named_parameters()},
    )
    made = batches.of(made)
    if budget is not None:
        made = _within(made, budget, budget_of, settings, batches, growth)
    for t in range(1, stages):
        if made.stage_widths[t] == made.stage_widths[t - 1]:
            notes.append(
                f"stage {t} has the widths of stage {t - 1}: the widths leave no room for a step."
            )
    return keep_footprints(made, notes=(*made.notes, *notes))


def fixed_plan(
    model: nn.Module,
    example_inputs: ExampleInputs,
    epochs: int = 160,
    batch_size: int = 128,
    optimizer: str = "sgd",
) -> Plan:
    """One stage of full size, of any model: the baseline. Nothing is traced.

    >>> fixed_plan(nn.Linear(2, 2), torch.zeros(1, 2), epochs=3).flops_share
    1.0
    """
    groups = WidthGroups(type(model).__name__, (), {}, (), 0, (), {}, {}, ())
    return Plan(
        groups,
        ({},),
        {},
        (),
        example_inputs,
        model,
        epochs=(whole("epochs", epochs),),
        batch_sizes=(whole("batch_size", batch_size),),
        rate_factors=(1.0,),
        optimizer=optimizer,
    )


# Factors on the growth rate that a budget tries: lower ones first, then higher ones.
_RATES = (0.9, 0.8, 0.7, 0.6, 0.4, 0.2, 0.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 5.0)


@dataclass(frozen=True)
class _Settings:
    """What `plan` was asked for, where a budget may try other values."""

    stages: int
    start: float
    schedule: Rule
    round_to: int
    epochs: int | Sequence[int]
    first_epochs: int | None
    epoch_growth: float
    explicit: Mapping[str, Sequence[int]]

    def widths(self, groups: WidthGroups, growth: float | None) -> list[dict[int, int]]:
        """Widths of every group at every stage."""
        fractions = width_fractions(self.stages, self.start, growth, self.schedule)
        steps = [widths_at(groups, fraction, self.round_to) for fraction in fractions]
        if self.schedule == "recursive" and growth is not None:
            full, growing = groups.full_widths, [g.key for g in groups.growable]
            for together in steps_of(groups.spans, full, growing, self.round_to, groups.units):
                first = together.groups[0]
                row = recursive_widths(
                    steps[0][first], full[first], self.stages, growth, self.round_to
                )
                for t, width in enumerate(row):  # what steps together has one fraction
                    found = widths_at(groups, width / full[first], self.round_to)
                    steps[t] |= {key: found[key] for key in together.groups}
        for name, given in self.explicit.items():
            for t, width in enumerate(given):
                steps[t][groups[name].key] = width
        return steps

    def all_epochs(self) -> Iterator[tuple[int, ...]]:
        """The epochs that a budget may choose from: all first_epochs, unless they were given."""
        is_free = isinstance(self.epochs, numbers.Integral) and self.first_epochs is None
        if not is_free or self.schedule == "linear":
            yield tuple(self.epochs_of(None))
            return
        for first in range(1, whole("epochs", self.epochs) + 1):
            try:
                yield tuple(self.epochs_of(first))
            except PlanError:
                return

    def epochs_of(self, first: int | None) -> list[int]:
        """Epochs of every stage, with `first` ones for stage 0 (None: as asked for)."""
        epochs: Any = self.epochs
        if not isinstance(epochs, numbers.Integral):
            return check_list("epochs", epochs, self.stages)
        epochs = whole("epochs", epochs)
        given = first if first is not None else self.first_epochs
        if given is not None:
            return stage_epochs(epochs, self.stages, given, self.epoch_growth, self.schedule)
        for tried in range(epochs // 20, 1, -1):
            with contextlib.suppress(PlanError):
                return stage_epochs(epochs, self.stages, tried, self.epoch_growth, self.schedule)
        return stage_epochs(epochs, self.stages, 1, self.epoch_growth, self.schedule)


@dataclass(frozen=True)
class _Batches:
    """What `plan` was asked for about batch sizes."""

    size: int | Sequence[int]
    growth: float
    memory: float | None
    rate: str

    def sizes(self, stages: int) -> list[int]:
        """Batch sizes without regard to memory."""
        size: Any = self.size
        if isinstance(size, numbers.Integral):
            return batch_sizes(whole("batch_size", size), stages, self.growth)
        return check_list("batch_size", size, stages)

    def check(self, stages: int) -> None:
        """Refuses what cannot work, before anything is traced."""
        rate_factors(self.sizes(stages), self.rate)
        memory: Any = self.memory
        if memory is not None and not (is_number(memory) and 0 < memory < math.inf):
            raise PlanError(f"batch_memory={memory!r} is not a number of bytes.")

    def of(self, made: Plan) -> Plan:
        """The plan with a batch size for each stage."""
        sizes = self.sizes(made.num_stages)
        if self.memory is not None:
            sizes = [
                _largest_batch(f, self.memory, made.optimizer, t)
                for t, f in enumerate(made.footprints)
            ]
        factors = rate_factors(sizes, self.rate)
        return keep_footprints(made, batch_sizes=tuple(sizes), rate_factors=tuple(factors))


def _largest_batch(footprint: Footprint, memory: float, optimizer: str, stage: int) -> int:
    fixed = footprint.memory(0, optimizer)
    size = math.floor((memory - fixed) / max(footprint.activation_bytes, 1.0))
    if size < 1:
        raise PlanError(
            f"batch_memory={memory:.3g} bytes: weights, gradients and optimizer state of stage {stage} "
            f"take {fixed:.3g}, and one example {footprint.activation_bytes:.3g} more."
        )
    return size


def _check_budget(budget: Any, of: Any) -> None:
    if budget is not None and not (is_number(budget) and 0 < budget <= 1):
        raise PlanError(
            f"budget={budget!r}: a share of fixed-size training, above 0 and at most 1."
        )
    if of not in ("flops", "seconds"):
        raise PlanError(f"budget_of={of!r} is not 'flops' or 'seconds'.")


def _within(
    made: Plan, budget: float, of: str, settings: _Settings, batches: _Batches, growth: float | None
) -> Plan:
    """The dearest plan within the budget: by first_epochs, and where that cannot come near it, by growth."""
    best: tuple[float, Plan, float | None] | None = None
    lowest = 1.0
    rates: list[float | None] = [growth]
    can_change = growth is not None and settings.schedule != "linear" and not settings.explicit
    if growth is not None and can_change:
        rates += [growth * f for f in _RATES]
    for rate in rates:
        is_lower, is_higher = (rate or 0.0) < (growth or 0.0), (rate or 0.0) > (growth or 0.0)
        if is_lower if best is not None else is_higher:
            continue  # a lower rate only makes it cheaper, a higher one dearer
        steps = tuple(settings.widths(made.groups, rate))
        tried = (
            made if steps == made.stage_widths else batches.of(replace(made, stage_widths=steps))
        )
        tried = tried.measure() if of == "seconds" else tried
        tried.footprints  # noqa: B018 - counted once for all epochs
        for epochs in settings.all_epochs():
            found = keep_footprints(tried, epochs=epochs)
            share = found.flops_share if of == "flops" else found.seconds_share
            assert share is not None
            lowest = min(lowest, share)
            if share <= budget and (best is None or share > best[0]):
                best = (share, found, rate)
        if best is not None and best[0] > budget - 0.03:
            break
    if best is None:
        raise PlanError(
            f"budget={budget!r}: no schedule of {made.num_stages} stages from {settings.start} of the width is "
            f"that cheap; the cheapest takes {lowest:.1%}. Choose a smaller start or more stages."
        )
    share, found, rate = best
    note = f"budget {budget:.0%} of {of}: {found.epochs[0]} epochs in stage 0"
    note += "" if rate == growth else f", growth {rate:.2g}"
    return keep_footprints(found, notes=(*found.notes, f"{note}; {share:.2%} is planned."))


def keep_footprints(made: Plan, **changes: Any) -> Plan:
    """The plan with changes that leave its widths, and so its footprints, alone."""
    found = replace(made, **changes)
    if "footprints" in made.__dict__:
        found.__dict__["footprints"] = made.footprints
    return found


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


def _initials(model: nn.Module, groups: WidthGroups) -> dict[str, Initial]:
    """How each tensor of the model is initialised; of a normalised weight's magnitude, its ratio to the norm."""
    found = {}
    for name, tensor in with_ratios(groups.specs, named_tensors(model)).items():
        if name in groups.specs:
            is_ratio = groups.specs[name].kind == "magnitude"
            found[name] = Initial(0.0, typical_ratio(tensor)) if is_ratio else _initial(tensor)
    return found


def _initial(tensor: torch.Tensor) -> Initial:
    values = tensor.detach()
    is_complex = values.is_complex()
    if not (values.is_floating_point() or is_complex) or not values.numel():
        return Initial(0.0, 0.0)
    first = values.flatten()[0]
    if bool((values == first).all()):
        return Initial(0.0, complex(first) if is_complex else float(first))
    wide = values.to(torch.complex128) if is_complex else values.double()
    return Initial(float(wide.std(correction=0)), None)


def _rounding_notes(groups: WidthGroups, round_to: int) -> list[str]:
    notes = []
    names = {g.key: g.name for g in groups}
    full = groups.full_widths
    growing = [g.key for g in groups.growable]
    for steps in steps_of(groups.spans, full, growing, round_to, groups.units):
        for key in steps.groups:
            unit = full[key] * steps.step // steps.count
            if unit == groups.units.get(key):
                notes.append(
                    f"'{names[key]}' ({full[key]}) steps in units of {unit}: an operator takes no other widths."
                )
            elif unit > round_to:
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
            unit = groups.units.get(group.key, 1)
            if any(v % unit for v in found[group.name]):
                raise PlanError(
                    f"widths['{group.name}'] = {list(values)}: an operator takes multiples of {unit} only (torch's "
                    "grouped product needs rows of whole 16 bytes)."
                )
    return found


def _pairs(widths: Any) -> Iterator[tuple[str, list[int]]]:
    """(name, widths) pairs of a mapping or of a sequence of pairs."""
    if widths is None:
        return
    if not isinstance(widths, Iterable) or isinstance(widths, str):
        raise PlanError(f"widths={widths!r}: expected a mapping from group names to widths.")
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
    if any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in values):
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
