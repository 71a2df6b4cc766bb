"""Grower: one stage of growth on a model (and its optimizer), all or nothing."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn

from growthring.checkpoint.onetensor import to_tensor
from growthring.core.presets import preset_named
from growthring.core.rings import RingMap
from growthring.core.variance import Mode
from growthring.distributed.ranks import Ranks
from growthring.errors import GrowthError, GrowthStepError, GrowthWarning, InputError
from growthring.graph.check import check_model, check_trainable
from growthring.graph.isolation import own_settings, untouched
from growthring.growing.ending import FadeReport, ended
from growthring.growing.fresh import Shard, average_modules, growing_module, wrapping_of
from growthring.growing.matching import (
    Optimizers,
    averaged_modules,
    check_arguments,
    check_optimizers,
    check_saved,
    chosen_method,
    find_stage,
    highest_rate,
)
from growthring.growing.memory import remembered, take_up
from growthring.growing.osgd import DynamicOSGD
from growthring.growing.pace import Pace, StepReport
from growthring.growing.proof import prove
from growthring.growing.report import GrowthReport
from growthring.growing.searching import Search, SearchBatches
from growthring.growing.stage import grow_stage
from growthring.growing.states import states_of
from growthring.growing.streaming import check_growth_of_shards
from growthring.growing.subjects import Subjects, rings_until
from growthring.growing.trials import Trials
from growthring.methods import GrowthMethod
from growthring.methods.base import Loss
from growthring.planning.layouts import inductor_notes, layout_notes
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
        noise: size of the symmetry-breaking noise relative to the new weights' deviation; 0 is exact.
        fade: share of a stage over which the statistics of norms over a grown width take new entries in.
        generator: source of all random numbers; by default one seeded from `torch.initial_seed()`.
        batches: (inputs, targets) for methods that search on data: something to iterate over anew at
            every growth (a DataLoader), or a function from a seed to such a thing.
        loss: from outputs and targets to a scalar, for the same methods.
        through: what the model is trained through, where a module that holds it was wrapped: see `attach`.
        shard: what cut the model (calls of `fully_shard`), for a torch in which shards cannot grow in place: each
            growth makes a new model, `grower.model`, cuts it by this, and empties the old one (docs/fsdp.md).
        osgd: dynamic OSGD for data that grows with the stages: its old gradient grows along, see `DynamicOSGD`.

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
        through: nn.Module | None = None,
        shard: Shard | None = None,
        osgd: DynamicOSGD | None = None,
    ) -> None:
        wrapping = wrapping_of(model, through, shard)
        model = wrapping.model
        with wrapping.ranks.together():
            check_model(model, may_shard=True)
            check_trainable(model)
            preset = preset_named(getattr(plan, "preset", "default"))
            self.noise = preset.noise if noise is None else noise
            self.fade = preset.fade if fade is None else fade
            check_arguments(plan, generator, self.noise, self.fade, unknown_state)
            self.unknown_state = unknown_state
            chosen = chosen_method(method, variance_transfer, preset.variance_transfer)
            self._search = Search(chosen, batches, loss)
            optimizers = check_optimizers(model, optimizer)
            stage = find_stage(model, plan)
            check_growth_of_shards(model, plan, chosen)
            with own_settings(), untouched(model):
                chosen.check(plan, model)
            self._trials = Trials(plan)
            self._subjects = Subjects(
                plan,
                wrapping,
                growing_module(model, plan, shard, optimizers),
                average_modules(averaged_modules(averages, model, plan, stage), plan, shard),
                optimizers,
                rings_until(stage, plan),
                generator or torch.Generator().manual_seed(torch.initial_seed()),
                Pace(plan, stage, highest_rate(optimizers)),
                osgd,
            )
            self._subjects.pace.fading = len(self._subjects.main.fades)
            for note in [*layout_notes(plan, model), *inductor_notes(plan, model)]:
                warnings.warn(note, GrowthWarning, stacklevel=2)
            if not self.is_full:
                with own_settings():
                    prove(plan, chosen)
        # who gives no generator has a seed for each rank: the first one's counts
        self._is_seeded = generator is not None
        self._agree("when the Grower is made")
        self._subjects.change(self._subjects.tell_rings)
        weakref.finalize(self, self._subjects.pace.farewell)

    @property
    def model(self) -> nn.Module:
        """The plain module that grows."""
        return self._subjects.main.module

    @property
    def plan(self) -> Plan:
        """What it grows to."""
        return self._subjects.plan

    @property
    def method(self) -> GrowthMethod:
        """How new units are made."""
        return self._search.method

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those whose state grows along."""
        return self._subjects.optimizers

    @property
    def rings(self) -> RingMap:
        """Which entries each stage added."""
        return self._subjects.rings

    @property
    def generator(self) -> torch.Generator:
        """Of the growth's random numbers."""
        return self._subjects.generator

    def attach(self, model: nn.Module) -> None:
        """Tells what the model is trained through, where it was wrapped after the Grower was made.

        Args:
            model: a DistributedDataParallel (compiled or not) around the model, or around a module that holds it.
        """
        self._subjects.wrapping.attach(model)
        self._agree("when the model was wrapped")

    @property
    def stage(self) -> int:
        """The present stage; 0 is the seed's."""
        return self._subjects.stage

    @property
    def is_full(self) -> bool:
        """Whether the last stage is reached. Norms may still fade in: see `is_complete`."""
        return self.stage == self.plan.num_stages - 1

    @property
    def is_complete(self) -> bool:
        """Whether the model has its full size and nothing is fading in: it is all that its state_dict says."""
        return self.is_full and not self.fading_norms

    @property
    def ranks(self) -> Ranks:
        """The processes that train the model."""
        return self._subjects.ranks

    @property
    def num_steps(self) -> int:
        """Training steps so far, by `step()`; those of earlier stages included."""
        return self._subjects.pace.step

    def step(self) -> StepReport:
        """Tells that a training step was taken: once after each `optimizer.step()`, it is all that a loop needs.

        Grows when the plan says so, and lets the statistics of norms fade in.

        Returns:
            What happened; true if anything did. `print` it.

        Raises:
            InputError: the plan does not know how long the run is.
            GrowthStepError: a growth failed; it is tried again after the next step.
        """
        pace, fades = self._subjects.pace, self._subjects.main.fades
        fading = len(fades)
        pace.count(highest_rate(self.optimizers))
        self._subjects.say_progress()
        growth, ended = None, 0
        try:
            if pace.is_due:
                growth = self.grow()
                pace.warn_if_late()
            elif fading:
                self.advance(min(1.0, pace.progress / self.fade))
                ended = fading - len(fades)
        except BaseException:
            pace.step -= 1
            raise
        left = len(self._subjects.main.fades)
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
        subjects, trials = self._subjects, self._trials if measure else None
        arguments = (subjects, self._search, trials, self.noise, self.unknown_state)
        subjects.wrapping.check()
        try:
            subjects.end_stage()
            return subjects.change(lambda: grow_stage(*arguments))
        except GrowthError:
            raise
        except Exception as error:
            raise GrowthStepError(
                f"growing to stage {self.stage + 1} failed ({type(error).__name__}: {error}); model, "
                "optimizer and grower are as they were."
            ) from error

    def advance(self, progress: float) -> None:
        """Tells how far statistics have faded in, from 0 to 1; at 1 norms are plain modules again.

        `step` does it. Call it once per training step where you call `grow` yourself and the model has layer or RMS
        norms over a growing width: `advance(min(1, share of the stage / grower.fade))`. Without such norms it
        does nothing.
        """
        if not 0 <= progress <= 1:
            raise InputError(f"progress={progress!r}: how far norms have faded in, from 0 to 1.")
        for module in self._subjects.modules:
            module.fades.advance(progress)
        self._subjects.pace.is_saved = False
        if progress == 1 and self.fading_norms:
            self.finish()

    def finish(self) -> FadeReport:
        """Ends every fade, at whatever point: nothing of growthring is left on the model and its averages.

        Returns:
            Which norms were still fading in, and how far the model's outputs moved on the plan's example inputs.
        """
        inputs = self.plan.inputs_for(self.model)
        subjects = self._subjects

        def finish_averages() -> None:
            for average in subjects.averages:
                average.fades.finish()

        report = ended(self.model, subjects.main.fades, inputs, finish_averages)
        subjects.pace.fading = 0
        return report

    @property
    def fading_norms(self) -> dict[str, float]:
        """Norms whose statistics are still fading in, and how far they are."""
        return self._subjects.main.fades.progress()

    def state_dict(self) -> dict[str, Any]:
        """What growth needs to remember, beside the model's own state_dict, which stays plain: save both."""
        return remembered(self._subjects)

    def state_tensor(self) -> torch.Tensor:
        """`state_dict` as one tensor of bytes, for `dcp.save`; `gr.read_growth` is the way back."""
        return to_tensor(self.state_dict())

    def states(self, options: Any = None) -> dict[str, Any]:
        """The model ("model"), its optimizers ("optim") and averages for `torch.distributed.checkpoint`.

        To save: `dcp.save({**grower.states(), "growth": grower.state_tensor()}, checkpoint_id=path)`. To load:
        `grower.load_state_dict(gr.read_growth(path))`, and then `dcp.load(grower.states(), checkpoint_id=path)`.

        Args:
            options: a `StateDictOptions` of torch.
        """
        subjects = self._subjects
        averages = [each.module for each in subjects.averages]
        return states_of(self.model, averages, self.optimizers, options)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Brings the model (and its averages) to the saved stage's shapes.

        `load_state_dict` of the model, then of the averages and optimizers, can follow. Optimizer
        state of parameters that changed is dropped: it is theirs to bring back.
        """
        subjects = self._subjects
        subjects.wrapping.check()
        with subjects.ranks.together():
            stage = check_saved(state, self.plan, self.stage)
        subjects.change(lambda: take_up(subjects, stage, state))

    def _agree(self, when: str) -> None:
        settings = {"the method": self.method, "noise": self.noise, "fade": self.fade}
        self._subjects.agree(settings, self._is_seeded, when)
