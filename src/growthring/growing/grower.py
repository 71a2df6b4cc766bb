"""Grower: one stage of growth on a model (and its optimizer), all or nothing."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from growthring.core.presets import preset_named
from growthring.core.rings import RingMap
from growthring.core.variance import Mode
from growthring.distributed.ranks import Ranks
from growthring.distributed.wrapping import Wrapping
from growthring.errors import GrowthError, GrowthStepError, GrowthWarning, InputError
from growthring.graph.check import check_finite, check_model, check_trainable
from growthring.graph.isolation import own_settings, untouched
from growthring.graph.snapshot import Snapshot
from growthring.graph.wrappers import check_sharded
from growthring.growing.accord import Accord
from growthring.growing.ending import FadeReport, ended
from growthring.growing.followers import changes_of, grow_optimizers, replay_of, tell_rings
from growthring.growing.matching import (
    Optimizers,
    averaged_modules,
    check_arguments,
    check_optimizers,
    check_saved,
    check_shapes,
    chosen_method,
    find_stage,
    highest_rate,
)
from growthring.growing.module import GrowingModule
from growthring.growing.outcome import Outcome
from growthring.growing.pace import Pace, StepReport
from growthring.growing.proof import prove
from growthring.growing.report import GrowthReport
from growthring.growing.searching import Search, SearchBatches
from growthring.growing.transaction import all_or_nothing
from growthring.growing.trials import Trials
from growthring.methods import GrowthMethod, Step
from growthring.methods.base import Loss
from growthring.optim.state import drop_state
from growthring.planning.layouts import layout_notes
from growthring.planning.plan import Plan


class Grower:
    """Widens a seed model in place, stage by stage, until it has the shapes of the full model.

    Call `step()` once after each optimizer step. Parameter objects keep their identity, so optimizers, schedulers
    and hooks go on pointing at them. What is not given is as the plan's preset says (`growthring.core.presets`).
    Of several processes (docs/distributed.md) all make it and call its methods: they grow together or not at all.

    Args:
        model: the seed from `plan.build_seed()`, or a model of some stage of the plan; or that in
            DistributedDataParallel or torch.compile.
        plan: what to grow to.
        optimizer: a torch optimizer (or several) whose state grows along: new entries get what the
            optimizer gives to a new parameter. Those of `gr.optim` are told the rings.
        averages: averages of the model (`torch.optim.swa_utils.AveragedModel`, or several) that grow
            along, with the same new entries.
        unknown_state: "refuse" state that nobody knows how to grow, or "reset" it.
        method: how new units are made: "paired" (the paper's method), "net2net", "splitting",
            "firefly-split", "firefly", "gradmax", "random", or an object of `growthring.methods`
            with hyperparameters of its own.
        variance_transfer: of method "paired": "preserving" (rescale as far as the function stays the
            same), "paper" (Table 1 to the letter), "constraint" (the appendix's
            theorem) or "off". The other methods have none, and refuse it.
        noise: size of the symmetry-breaking noise relative to the new weights' deviation; 0 is
            exact.
        fade: share of a stage over which the statistics of norms over a grown width take new entries in.
        generator: source of all random numbers; by default one seeded from `torch.initial_seed()`.
        batches: (inputs, targets) for methods that search on data: something to iterate over anew at
            every growth (a DataLoader), or a function from a seed to such a thing.
        loss: from outputs and targets to a scalar, for the same methods.

    >>> import growthring as gr
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = gr.plan(net, torch.ones(1, 4), total_steps=10)
    >>> seed = plan.build_seed()
    >>> optimizer = torch.optim.SGD(seed.parameters(), lr=0.1)
    >>> grower = Grower(seed, plan, optimizer)
    >>> for _ in range(10):
    ...     loss = seed(torch.ones(3, 4)).square().mean()
    ...     _ = optimizer.zero_grad(), loss.backward(), optimizer.step()
    ...     if grower.step():
    ...         print(seed[0].out_features)
    8
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        optimizer: Optimizers = None,
        method: str | GrowthMethod = "paired",
        variance_transfer: Mode | None = None,
        noise: float | None = None,
        fade: float | None = None,
        generator: torch.Generator | None = None,
        averages: nn.Module | Sequence[nn.Module] | None = None,
        unknown_state: Literal["refuse", "reset"] = "refuse",
        batches: SearchBatches | None = None,
        loss: Loss | None = None,
    ) -> None:
        self._wrapping = Wrapping(model)
        self.model = model = self._wrapping.model
        with self._ranks.together():
            check_model(model)
            check_trainable(model)
            preset = preset_named(getattr(plan, "preset", "default"))
            noise = preset.noise if noise is None else noise
            self.fade = preset.fade if fade is None else fade
            check_arguments(plan, generator, noise, self.fade, unknown_state)
            self.plan, self.noise, self.unknown_state = plan, noise, unknown_state
            self.method = chosen_method(method, variance_transfer, preset.variance_transfer)
            self._search = Search(self.method, batches, loss)
            self.optimizers = check_optimizers(model, optimizer)
            self.generator = generator or torch.Generator().manual_seed(torch.initial_seed())
            stage = find_stage(model, plan)
            with own_settings(), untouched(model):
                self.method.check(plan, model)
            self.rings = RingMap(
                {n: s.axes for n, s in plan.groups.specs.items()}, plan.stage_widths[0]
            )
            for t in range(1, stage + 1):
                self.rings.append(plan.stage_widths[t])
            averaged = averaged_modules(averages, model, plan, stage)
            self._main = GrowingModule(model, plan)
            self._averages = [GrowingModule(module, plan) for module in averaged]
            self._trials = Trials(model, plan)
            self._pace = Pace(plan, stage, highest_rate(self.optimizers))
            self._pace.fading = len(self._main.fades)
            for note in layout_notes(plan, model):
                warnings.warn(note, GrowthWarning, stacklevel=2)
            if not self.is_full:
                with own_settings():
                    prove(plan, self.method)
        # who gives no generator has a seed for each rank: the first one's counts
        self._is_seeded = generator is not None
        self._agree("when the Grower is made")
        all_or_nothing(
            self._roots, lambda: tell_rings(self.optimizers, self.model, self.plan, self.rings)
        )
        weakref.finalize(self, self._pace.farewell)

    def attach(self, model: nn.Module) -> None:
        """Tells what the model is trained through, where it was wrapped after the Grower was made.

        Args:
            model: a DistributedDataParallel (compiled or not) around the model, or around a module that holds it.
        """
        self._wrapping.attach(model)
        self._agree("when the model was wrapped")

    @property
    def stage(self) -> int:
        """The present stage; 0 is the seed's."""
        return self.rings.num_rings - 1

    @property
    def is_full(self) -> bool:
        """Whether the last stage is reached. Norms may still fade in: see `is_complete`."""
        return self.stage == self.plan.num_stages - 1

    @property
    def is_complete(self) -> bool:
        """Whether the model has its full size and nothing is fading in: it is all that its state_dict says."""
        return self.is_full and not self.fading_norms

    def step(self) -> StepReport:
        """Tells that a training step was taken: once after each `optimizer.step()`, it is all that a loop needs.

        Grows when the plan says so, and lets the statistics of norms fade in.

        Returns:
            What happened; true if anything did. `print` it.

        Raises:
            InputError: the plan does not know how long the run is.
            GrowthStepError: a growth failed; it is tried again after the next step.
        """
        pace, fading = self._pace, len(self._main.fades)
        pace.count(highest_rate(self.optimizers))
        growth, ended = None, 0
        try:
            if pace.is_due:
                growth = self.grow()
                pace.warn_if_late()
            elif fading:
                self.advance(min(1.0, pace.progress / self.fade))
                ended = fading - len(self._main.fades)
        except BaseException:
            pace.step -= 1
            raise
        left = len(self._main.fades)
        return StepReport(pace.step, pace.total, self.stage, growth, ended, left, self.is_complete)

    def grow(self, measure: bool = True) -> GrowthReport:
        """Grows the model to the next stage, in place.

        The outputs on the plan's example inputs, and on fresh ones of their kind, are compared before
        and after in eval and in train mode, without and with noise; a change that the mode does not
        allow is an error. Any error leaves model, optimizer and grower as they were.

        Args:
            measure: whether to run the model for that comparison.
        """
        if self.is_full:
            raise GrowthStepError(
                f"the model is at stage {self.stage}, the last of {self.plan.num_stages}; it has its full size."
            )
        self._wrapping.check()
        try:
            return all_or_nothing(self._roots, lambda: self._grow(measure))
        except GrowthError:
            raise
        except Exception as error:
            raise GrowthStepError(
                f"growing to stage {self.stage + 1} failed ({type(error).__name__}: {error}); model, "
                "optimizer and grower are as they were."
            ) from error
        finally:
            self._wrapping.renew()

    def _grow(self, measure: bool) -> GrowthReport:
        plan, main, ranks = self.plan, self._main, self._ranks
        with ranks.together():
            check_sharded(self.model)
            for each in self._modules:
                check_shapes(each.module, plan, self.stage)
                check_finite(each.module)
        self._accord.meet(self._place(), self.generator)
        step = self._step(self.stage + 1, self.method.mode)
        start = Snapshot(self._roots, values=False, code=False)
        with ranks.together():
            trials, notes = self._trials.find() if measure else ([], [])
            outcome = Outcome(self.model, step, self.stage + 1, trials)
        for hold_norms in (False, True):
            growth = self._search.growth(step, main, self.generator, hold_norms, ranks)
            with ranks.together():
                divisors = growth.gradient_divisors(main.tensors)
                replay = replay_of(growth, main.tensors, self.generator, self.noise)
                grown = growth.tensors(main.tensors, self.generator)
                main.install(step, grown, divisors)
                outcome.measure()
            if hold_norms or not ranks.from_first(partial(outcome.shows_eps, growth.factors)):
                break
            start.restore()  # once more, without rescaling what those norms normalise
        with ranks.together():
            outcome.check(growth)
            if self.noise:
                growth.add_noise(grown, self.noise, self.generator)
                outcome.measure(with_noise=True)
            for average in self._averages:
                # the very entries that the model got, so that it stays an average of it
                tensors = average.tensors
                average.install(step, replay(tensors), growth.gradient_divisors(tensors))
            self.rings.append(step.after)
            changed = changes_of(step, main.tensors, grown, divisors)
            told = grow_optimizers(
                self.optimizers, changed, replay, self.rings.num_rings, self.unknown_state
            )
            tell_rings(self.optimizers, self.model, plan, self.rings)
            self._pace.enter(self.stage, len(main.fades))
            torch.clear_autocast_cache()  # an open autocast would go on with casts of the old weights
            report = outcome.report(growth, len(main.fades), [*notes, *told])
        self._accord.hold()
        return report

    def advance(self, progress: float) -> None:
        """Tells how far statistics have faded in, from 0 to 1; at 1 norms are plain modules again.

        `step` does it. Call it once per training step where you call `grow` yourself and the model has layer or RMS
        norms over a growing width: `advance(min(1, share of the stage / grower.fade))`. Without such norms it
        does nothing.
        """
        if not 0 <= progress <= 1:
            raise InputError(
                f"progress={progress!r}: how far statistics have faded in, from 0 to 1."
            )
        for module in self._modules:
            module.fades.advance(progress)
        self._pace.is_saved = False
        if progress == 1 and self.fading_norms:
            self.finish()

    def finish(self) -> FadeReport:
        """Ends every fade, at whatever point: nothing of growthring is left on the model and its averages.

        Returns:
            Which norms were still fading in, and how far the model's outputs moved on the plan's example inputs.
        """
        inputs = self.plan.inputs_for(self.model)
        report = ended(self.model, self._main.fades, inputs, self._finish_averages)
        self._pace.fading = 0
        return report

    def _finish_averages(self) -> None:
        for average in self._averages:
            average.fades.finish()

    @property
    def fading_norms(self) -> dict[str, float]:
        """Norms whose statistics are still fading in, and how far they are."""
        return self._main.fades.progress()

    def state_dict(self) -> dict[str, Any]:
        """What growth needs to remember: stage, steps, rings, fades, generator.

        The model's own state_dict stays plain; save both.
        """
        return {
            "stage": self.stage,
            "rings": self.rings.state_dict(),
            "widths": [self.plan.named_widths(t) for t in range(self.plan.num_stages)],
            "fades": self._main.fades.state_dict(),
            "generator": self.generator.get_state(),
            "pace": self._pace.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Brings the model (and its averages) to the saved stage's shapes.

        `load_state_dict` of the model, then of the averages and optimizers, can follow. Optimizer
        state of parameters that changed is dropped: it is theirs to bring back.
        """
        self._wrapping.check()
        with self._ranks.together():
            stage = check_saved(state, self.plan, self.stage)
        try:
            all_or_nothing(self._roots, lambda: self._load_together(stage, state))
        finally:
            self._wrapping.renew()

    def _load_together(self, stage: int, state: Mapping[str, Any]) -> None:
        with self._ranks.together():
            self._load(stage, state)
        self._ranks.same(self._place())

    def _load(self, stage: int, state: Mapping[str, Any]) -> None:
        step = self._step(stage, "off")
        for module in self._modules:
            module.enter(step)
            module.fades.load_state_dict(state["fades"])
        self.rings.load_state_dict(state["rings"])
        if self.stage != stage:
            raise InputError(
                f"the saved rings are those of stage {self.stage}, the saved growth is at stage {stage}: "
                "the state is not whole."
            )
        for optimizer in self.optimizers:
            drop_state(optimizer, self._main.tensors.values())
        tell_rings(self.optimizers, self.model, self.plan, self.rings)
        self.generator.set_state(state["generator"])
        self._pace.load_state_dict(state.get("pace", {}), stage, len(self._main.fades))

    # One growth, taken apart.

    @property
    def _modules(self) -> list[GrowingModule]:
        return [self._main, *self._averages]

    @property
    def _roots(self) -> list[Any]:
        """Everything that a growth changes."""
        fades = [module.fades for module in self._modules]
        modules = [module.module for module in self._modules]
        return [*modules, *fades, *self.optimizers, self.rings, self.generator, self._pace]

    # Several processes.

    @property
    def _ranks(self) -> Ranks:
        return self._wrapping.ranks

    def _place(self) -> dict[str, int]:
        return {"the stage": self.stage, "steps taken": self._pace.step}

    @property
    def _accord(self) -> Accord:
        return Accord(self._ranks, [each.module for each in self._modules], self.optimizers)

    def _agree(self, when: str) -> None:
        settings = {"the method": self.method, "noise": self.noise, "fade": self.fade}
        seed = self.generator.initial_seed() if self._is_seeded else "not given"
        settings |= {**self._place(), "the generator's seed": seed}
        self.plan = self._accord.reach(self.plan, settings, when)

    def _step(self, stage: int, mode: Mode) -> Step:
        """The growth from the present stage to another."""
        widths = self.plan.stage_widths
        return Step(self.plan, widths[self.stage], widths[stage], mode)
