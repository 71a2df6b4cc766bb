"""Budget: the dearest plan that costs no more than a share of fixed-size training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from growthring.errors import PlanError
from growthring.planning.batches import lasting, with_batches
from growthring.planning.lengths import fractions_of, possible_lengths
from growthring.planning.options import PlanOptions
from growthring.planning.plan import Plan
from growthring.planning.schedule import ON_A_LINE
from growthring.planning.widths import choose_widths

# Factors on the growth rate that are tried: lower ones first, then higher ones.
_FACTORS = (
    *(0.9, 0.8, 0.7, 0.6, 0.4, 0.2, 0.0),
    *(1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 5.0),
)
_NEAR = 0.03  # a share that is so little below the budget needs no other growth rate


def within_budget(
    plan: Plan,
    options: PlanOptions,
    explicit: Mapping[str, Sequence[int]],
    fractions: Sequence[float],
) -> Plan:
    """The dearest plan within `options.budget`: by grown_at, or of the paper's schedules first_epochs and growth.

    Args:
        plan: as it is without a budget.
        options: that it was made with.
        explicit: widths by group name that stay.
        fractions: of the full width at every stage.

    Raises:
        PlanError: no schedule is that cheap.
    """
    best: tuple[float, Plan, float | None] | None = None
    budget, lowest = options.budget or 1.0, 1.0
    for rate in _rates(options, is_free=not explicit):
        is_lower = (rate or 0.0) < (options.growth or 0.0)
        is_higher = (rate or 0.0) > (options.growth or 0.0)
        if is_lower if best is not None else is_higher:
            continue  # a lower rate only makes it cheaper, a higher one dearer
        at_rate = options.changed(growth=rate)
        if rate != options.growth:
            fractions = fractions_of(at_rate)
        widths = choose_widths(plan.groups, at_rate, explicit, fractions)
        tried = plan
        if widths != plan.stage_widths:
            tried = with_batches(replace(plan, stage_widths=widths), options)
        tried = tried.measure() if options.budget_of == "seconds" else tried
        tried.footprints  # noqa: B018 - counted once for all lengths
        for lengths in possible_lengths(options, fractions):
            candidate = lasting(tried, options, lengths)
            share = _share(candidate, options)
            lowest = min(lowest, share)
            if share <= budget and (best is None or share > best[0]):
                best = (share, candidate, rate)
        if best is not None and best[0] > budget - _NEAR:
            break
    if best is None:
        raise PlanError(
            f"budget={budget!r}: no schedule of {plan.num_stages} stages from {options.seed_share} of the width is "
            f"that cheap; the cheapest takes {lowest:.1%}.{_floor(tried, options)} Choose a smaller start or a "
            "larger budget."
        )
    share, chosen, rate = best
    how = f"full size after {1 - chosen.shares[-1]:.0%} of the training"
    if options.schedule not in ON_A_LINE and chosen.epochs:
        how = f"{chosen.epochs[0]} epochs in stage 0"
    note = f"budget {budget:.0%} of {options.budget_of}: {how}"
    note += "" if rate == options.growth else f", growth {rate:.2g}"
    return chosen.at_same_widths(notes=(*chosen.notes, f"{note}; {share:.2%} is planned."))


def _rates(options: PlanOptions, is_free: bool) -> Iterator[float | None]:
    """The growth rate that was asked for, then others, where there is one that can be changed."""
    yield options.growth
    if options.growth is not None and options.schedule in ("published", "recursive") and is_free:
        yield from (options.growth * factor for factor in _FACTORS)


def _floor(plan: Plan, options: PlanOptions) -> str:
    """What narrow stages cost by the clock, which no schedule gets below."""
    if options.budget_of == "flops":
        return ""
    shares = ", ".join(f"{share:.0%}" for share in plan.relative_seconds[:-1])
    return (
        f" Measured on this machine, an example of the stages before the last takes {shares} of the seconds of a "
        "full-size one; larger batches early (batch_growth=) may lower that."
    )


def _share(plan: Plan, options: PlanOptions) -> float:
    share = plan.flops_share if options.budget_of == "flops" else plan.seconds_share
    assert share is not None  # it was measured
    return share
