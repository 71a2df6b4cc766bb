"""One growth: the model and all that follows it go to the next stage, measured on the way."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch

from growthring.graph.check import check_finite
from growthring.graph.snapshot import Snapshot
from growthring.graph.wrappers import check_wrappers
from growthring.growing.followers import changes_of, grow_optimizers, replay_of
from growthring.growing.matching import check_shapes
from growthring.growing.outcome import Outcome
from growthring.growing.report import GrowthReport
from growthring.growing.searching import Search
from growthring.growing.streaming import add_noise, divisors_of, grown_tensors
from growthring.growing.subjects import Subjects
from growthring.growing.trials import Trials
from growthring.planning.programs import drop_programs


def grow_stage(
    subjects: Subjects,
    search: Search,
    trials: Trials | None,
    noise: float,
    unknown_state: Literal["refuse", "reset"],
) -> GrowthReport:
    """Grows all subjects to the next stage, on all processes; who calls it takes back what a failure leaves.

    Args:
        subjects: what grows.
        search: asks the method.
        trials: what the growth is measured on; None does not measure it.
        noise: see `Grower`.
        unknown_state: see `Grower`.
    """
    plan, main, ranks = subjects.plan, subjects.main, subjects.ranks
    optimizers, generator = subjects.optimizers, subjects.generator
    with ranks.together():
        check_wrappers(main.module)
        for each in subjects.modules:
            check_shapes(each.module, plan, subjects.stage)
            check_finite(each.module)
    subjects.accord.meet(subjects.place, generator)
    step = subjects.step_to(subjects.stage + 1, search.method.mode)
    start = Snapshot(subjects.roots, values=False, code=False)
    with ranks.together():
        passes, notes = trials.find(main.module) if trials is not None else ([], [])
        outcome = Outcome(main.module, step, subjects.stage + 1, passes)
    for hold_norms in (False, True):
        growth = search.growth(step, main, generator, hold_norms, ranks)
        with ranks.together():
            divisors = divisors_of(growth, main.tensors)
            replay = replay_of(growth, main.tensors, generator, noise)
            grown = grown_tensors(growth, main.tensors, generator)
            main.install(step, grown, divisors)
            outcome.model = main.module
            outcome.measure()
        if hold_norms or not ranks.from_first(partial(outcome.shows_eps, growth.factors)):
            break
        start.restore()  # once more, without rescaling what those norms normalise
    start.forget()
    with ranks.together():
        outcome.check(growth)
        if noise:
            add_noise(growth, grown, main.tensors, noise, generator)
            outcome.measure(with_noise=True)
        for average in subjects.averages:
            # the very entries that the model got, so that it stays an average of it
            tensors = average.tensors
            average.install(step, replay(tensors), divisors_of(growth, tensors))
        subjects.rings.append(step.after)
        changed = changes_of(step, main.tensors, grown, divisors)
        num_rings = subjects.rings.num_rings
        told = grow_optimizers(optimizers, changed, replay, num_rings, unknown_state)
        if subjects.osgd is not None:
            told += subjects.osgd.grow(changed)
        subjects.tell_rings()
        subjects.pace.enter(subjects.stage, len(main.fades))
        torch.clear_autocast_cache()  # an open autocast would go on with casts of the old weights
        subjects.wrapping.renew()
        drop_programs(each.module for each in subjects.modules)
        report = outcome.report(growth, len(main.fades), [*notes, *told])
    subjects.accord.hold()
    return report
