"""Subjects: everything that a growth changes, on all the processes that it changes it on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer

from growthring.core.rings import RingMap
from growthring.core.variance import Mode
from growthring.distributed.ranks import Ranks
from growthring.distributed.wrapping import Wrapping
from growthring.growing.accord import Accord
from growthring.growing.followers import tell_rings
from growthring.growing.matching import check_osgd
from growthring.growing.module import GrowingModule
from growthring.growing.osgd import DynamicOSGD
from growthring.growing.outgrown import outgrow
from growthring.growing.pace import Pace
from growthring.growing.transaction import all_or_nothing
from growthring.methods import Step
from growthring.planning.plan import Plan

Returned = TypeVar("Returned")


@dataclass
class Subjects:
    """A model, and what grows with it.

    Attributes:
        plan: what they grow to.
        wrapping: what the model is trained through.
        main: the model.
        averages: of the model.
        optimizers: that step it.
        rings: which entries each stage added.
        generator: of the growth's random numbers.
        pace: which step of the training this is.
        osgd: what keeps an old gradient of the model, if anything does.
    """

    plan: Plan
    wrapping: Wrapping
    main: GrowingModule
    averages: list[GrowingModule]
    optimizers: list[Optimizer]
    rings: RingMap
    generator: torch.Generator
    pace: Pace
    osgd: DynamicOSGD | None = None

    def __post_init__(self) -> None:
        check_osgd(self.main.module, self.osgd, self.plan)

    @property
    def stage(self) -> int:
        """The present stage; 0 is the seed's."""
        return self.rings.num_rings - 1

    @property
    def ranks(self) -> Ranks:
        """The processes that train the model."""
        return self.wrapping.ranks

    @property
    def modules(self) -> list[GrowingModule]:
        """The model, then its averages."""
        return [self.main, *self.averages]

    @property
    def roots(self) -> list[Any]:
        """Everything that a growth changes."""
        modules = [root for each in self.modules for root in each.roots]
        kept = [] if self.osgd is None else self.osgd.roots
        return [*modules, *self.optimizers, *kept, self.rings, self.generator, self.pace]

    @property
    def accord(self) -> Accord:
        """What the processes have to agree on."""
        return Accord(self.ranks, [each.module for each in self.modules], self.optimizers)

    @property
    def place(self) -> dict[str, int]:
        """Where this process is, by names that an error can use."""
        return {"the stage": self.stage, "steps taken": self.pace.step}

    def step_to(self, stage: int, mode: Mode) -> Step:
        """The growth from the present stage to another."""
        widths = self.plan.stage_widths
        return Step(self.plan, widths[self.stage], widths[stage], mode)

    def agree(self, settings: Mapping[str, Any], is_seeded: bool, when: str) -> None:
        """Holds all processes to one model, plan and place; the first one's seed counts where none was given.

        Args:
            settings: what else has to be equal, by names that an error can use.
            is_seeded: whether the generator was given.
            when: this is, in words.
        """
        seed = self.generator.initial_seed() if is_seeded else "not given"
        facts = {**settings, **self.place, "the generator's seed": seed}
        self.plan = self.accord.reach(self.plan, facts, when)
        if not is_seeded:  # so that whichever process saves it, it is the first one's
            self.generator.set_state(self.ranks.from_first(self.generator.get_state))

    def change(self, act: Callable[[], Returned]) -> Returned:
        """What `act` returns, which changes the subjects; if it fails or is interrupted they are as they were."""
        with self.ranks.together():
            for each in self.modules:
                each.settle()
        if not self.main.makes_new:
            return all_or_nothing(
                self.roots, act, self.wrapping.renew
            )  # then nothing may be interrupted
        before = self.main.module
        result = all_or_nothing(self.roots, act, self.wrapping.renew)
        if self.main.module is not before:
            self.wrapping.model = self.main.module
            outgrow(before)
        return result

    def end_stage(self) -> None:
        """What is done with the model as it is before it grows."""
        if self.osgd is not None:
            self.osgd.end_stage(self.stage, self.plan.batch_sizes[self.stage])

    def say_progress(self) -> None:
        """Tells what goes with it how much of the stage is done."""
        if self.osgd is not None:
            self.osgd.advance(self.pace.progress)

    def tell_rings(self) -> None:
        """Tells optimizers that know rings where they are."""
        tell_rings(self.optimizers, self.main.module, self.plan, self.rings)


def rings_until(stage: int, plan: Plan) -> RingMap:
    """The rings of a model that is at a stage."""
    axes = {name: spec.axes for name, spec in plan.groups.specs.items()}
    rings = RingMap(axes, plan.stage_widths[0])
    for widths in plan.stage_widths[1 : stage + 1]:
        rings.append(widths)
    return rings
