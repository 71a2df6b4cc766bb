"""Grower: one stage of growth on a model (and its optimizer), all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn

from growthring.core.rings import RingMap
from growthring.core.variance import Mode
from growthring.core.widen import widen_constant
from growthring.errors import GrowthError, GrowthStepError, InputError
from growthring.graph.check import check_finite, check_model, check_trainable
from growthring.graph.isolation import own_settings, untouched
from growthring.graph.magnitudes import effective
from growthring.graph.snapshot import Snapshot
from growthring.graph.wrappers import check_sharded
from growthring.growing.followers import changes_of, grow_optimizers, replay_of, tell_rings
from growthring.growing.matching import (
    Optimizers,
    averaged_modules,
    check_optimizers,
    check_shapes,
    check_widths,
    chosen_method,
    find_stage,
)
from growthring.growing.module import GrowingModule
from growthring.growing.outcome import Outcome
from growthring.growing.proof import prove
from growthring.growing.report import GrowthReport
from growthring.growing.transaction import all_or_nothing
from growthring.growing.trials import Trial, make_trials
from growthring.methods import Growth, GrowthMethod, Job, Step
from growthring.methods.base import Loss, SearchBatch
from growthring.methods.magnitudes import following_magnitudes
from growthring.optim.state import drop_state
from growthring.planning.plan import Plan

SearchBatches = Iterable[SearchBatch] | Callable[[int], Iterable[SearchBatch]]


class Grower:
    """Widens a seed model in place, stage by stage, until it has the shapes of the full model.

    Parameter objects keep their identity, so optimizers, schedulers and hooks go on pointing at
    them.

    Args:
        model: the seed from `plan.build_seed()`, or a model of some stage of the plan.
        plan: what to grow to.
        optimizer: a torch optimizer (or several) whose state grows along: new entries get what the
            optimizer gives to a new parameter. Those of `gr.optim` are told the rings.
        averages: averages of the model (`torch.optim.swa_utils.AveragedModel`, or several) that grow
            along, with the same new entries.
        unknown_state: "refuse" state that nobody knows how to grow, or "reset" it.
        method: how new units are made: "paired" (the paper's method), "net2net", "splitting",
            "firefly-split", "firefly", "gradmax", "random", or an object of `growthring.methods`
            with hyperparameters of its own.
        variance_transfer: of method "paired": "preserving" (the default: rescale as far as the
            function stays the same), "paper" (Table 1 to the letter), "constraint" (the appendix's
            theorem) or "off". The other methods have none, and refuse it.
        noise: size of the symmetry-breaking noise relative to the new weights' deviation; 0 is
            exact.
        generator: source of all random numbers; by default one seeded from `torch.initial_seed()`.
        batches: (inputs, targets) for methods that search on data: something to iterate over anew at
            every growth (a DataLoader), or a function from a seed to such a thing.
        loss: from outputs and targets to a scalar, for the same methods.

    >>> import growthring as gr
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = gr.plan(net, torch.ones(1, 4), stages=2)
    >>> seed = plan.build_seed()
    >>> report = Grower(seed, plan, noise=0.0).grow()
    >>> report.change.relative < 1e-5, seed[0].out_features
    (True, 8)
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        optimizer: Optimizers = None,
        method: str | GrowthMethod = "paired",
        variance_transfer: Mode | None = None,
        noise: float = 1e-3,
        generator: torch.Generator | None = None,
        averages: nn.Module | Sequence[nn.Module] | None = None,
        unknown_state: Literal["refuse", "reset"] = "refuse",
        batches: SearchBatches | None = None,
        loss: Loss | None = None,
    ) -> None:
        check_model(model)
        check_trainable(model)
        if not isinstance(plan, Plan):
            raise InputError(f"plan is a {type(plan).__name__}; pass what gr.plan(...) returned.")
        if generator is not None and not isinstance(generator, torch.Generator):
            raise InputError(
                f"generator is a {type(generator).__name__}; pass torch.Generator().manual_seed(...)."
            )
        if not 0 <= noise < 1:
            raise InputError(
                f"noise={noise!r}: a share of the new weights' deviation, from 0 to below 1."
            )
        if unknown_state not in ("refuse", "reset"):
            raise InputError(f"unknown_state={unknown_state!r} is not 'refuse' or 'reset'.")
        self.model, self.plan, self.noise, self.unknown_state = model, plan, noise, unknown_state
        self.method = chosen_method(method, variance_transfer)
        self._batches, self._loss = batches, loss
        if self.method.searches and (batches is None or loss is None):
            raise InputError(
                f"method '{self.method.name}' searches on data: pass batches= (a DataLoader of inputs and "
                "targets) and loss=."
            )
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
        self._trials: list[Trial] = []
        self._trial_notes: list[str] = []
        self._trials_for: object = None
        if not self.is_full:
            with own_settings():
                prove(plan, self.method)
        all_or_nothing(
            self._roots, lambda: tell_rings(self.optimizers, self.model, self.plan, self.rings)
        )

    @property
    def stage(self) -> int:
        """The present stage; 0 is the seed's."""
        return self.rings.num_rings - 1

    @property
    def is_full(self) -> bool:
        """Whether the last stage is reached."""
        return self.stage == self.plan.num_stages - 1

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
        try:
            return all_or_nothing(self._roots, lambda: self._grow(measure))
        except GrowthError:
            raise
        except Exception as error:
            raise GrowthStepError(
                f"growing to stage {self.stage + 1} failed ({type(error).__name__}: {error}); model, "
                "optimizer and grower are as they were."
            ) from error

    def _grow(self, measure: bool) -> GrowthReport:
        plan, main = self.plan, self._main
        check_sharded(self.model)
        for each in self._modules:
            check_shapes(each.module, plan, self.stage)
            check_finite(each.module)
        step = self._step(self.stage + 1, self.method.mode)
        start = Snapshot(self._roots, values=False, code=False)
        trials = self._find_trials() if measure else []
        outcome = Outcome(self.model, step, self.stage + 1, trials)
        for hold_norms in (False, True):
            growth = following_magnitudes(self._search(step, hold_norms), step)
            divisors = growth.gradient_divisors(main.tensors)
            replay = replay_of(growth, main.tensors, self.generator, self.noise)
            grown = growth.tensors(main.tensors, self.generator)
            main.install(step, grown, divisors)
            outcome.measure()
            if hold_norms or not outcome.shows_eps(growth.factors):
                break
            start.restore()  # once more, without rescaling what those norms normalise
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
        notes = list(self._trial_notes if measure else ())
        notes += grow_optimizers(
            self.optimizers, changed, replay, self.rings.num_rings, self.unknown_state
        )
        tell_rings(self.optimizers, self.model, plan, self.rings)
        return outcome.report(growth, len(main.fades), notes)

    def advance(self, progress: float) -> None:
        """Tells how much of the present stage is done (0 to 1), so that faded statistics come in.

        Call it once per training step where the model has layer or RMS norms over a growing width;
        at 1 those norms are plain modules again. Without such norms it does nothing.
        """
        if not 0 <= progress <= 1:
            raise InputError(
                f"progress={progress!r}: the share of the stage that is done, from 0 to 1."
            )
        for module in self._modules:
            module.fades.advance(progress)
        if progress == 1:
            self.finish()

    def finish(self) -> None:
        """Ends every fade: nothing of growthring is left on the model."""
        for module in self._modules:
            module.fades.finish()

    @property
    def fading_norms(self) -> dict[str, float]:
        """Norms whose statistics are still fading in, and how far they are."""
        return self._main.fades.progress()

    def state_dict(self) -> dict[str, Any]:
        """What growth needs to remember: stage, rings, fades, generator.

        The model's own state_dict stays plain; save both.
        """
        return {
            "stage": self.stage,
            "rings": self.rings.state_dict(),
            "widths": [self.plan.named_widths(t) for t in range(self.plan.num_stages)],
            "fades": self._main.fades.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Brings the model (and its averages) to the saved stage's shapes.

        `load_state_dict` of the model, then of the averages and optimizers, can follow. Optimizer
        state of parameters that changed is dropped: it is theirs to bring back.
        """
        missing = [k for k in ("stage", "rings", "widths", "fades", "generator") if k not in state]
        if missing:
            raise InputError(
                f"the state lacks '{missing[0]}': it is not whole, or not from Grower.state_dict()."
            )
        check_widths(state["widths"], self.plan)
        stage = int(state["stage"])
        if stage < self.stage:
            raise InputError(
                f"the model is at stage {self.stage}, the saved growth at stage {stage}; start "
                "from plan.build_seed()."
            )
        all_or_nothing(self._roots, lambda: self._load(stage, state))

    def _load(self, stage: int, state: Mapping[str, Any]) -> None:
        step = self._step(stage, "off")
        for module in self._modules:
            tensors, grown = module.tensors, {}
            for name, spec in self.plan.groups.specs.items():
                if step.changes(spec):
                    layouts = step.layouts(spec.axes)
                    grown[name] = widen_constant(tensors[name].detach(), layouts, 0.0)
            module.install(step, grown, {})
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

    # One growth, taken apart.

    @property
    def _modules(self) -> list[GrowingModule]:
        return [self._main, *self._averages]

    def _find_trials(self) -> list[Trial]:
        """The passes that growths are measured on: found once, and again if the model was moved or cast."""
        kind = {(p.device, p.dtype) for p in self.model.parameters()}
        if self._trials_for != kind:
            inputs = self.plan.inputs_for(self.model)
            self._trials, self._trial_notes = make_trials(self.model, inputs, self.plan.outputs)
            self._trials_for = kind
        return self._trials

    @property
    def _roots(self) -> list[Any]:
        """Everything that a growth changes."""
        fades = [module.fades for module in self._modules]
        modules = [module.module for module in self._modules]
        return [*modules, *fades, *self.optimizers, self.rings, self.generator]

    def _search(self, step: Step, hold_norms: bool) -> Growth:
        """What the method decides on; a search runs the model's code, which leaves nothing."""
        job = self._job(step, hold_norms)
        if not self.method.searches:
            return self.method.grow(job)
        with untouched(self.model):
            return self.method.grow(job)

    def _step(self, stage: int, mode: Mode) -> Step:
        """The growth from the present stage to another."""
        widths = self.plan.stage_widths
        return Step(self.plan, widths[self.stage], widths[stage], mode)

    def _job(self, step: Step, hold_norms: bool) -> Job:
        """What the method is given."""
        batches = self._batches if self.method.searches else None
        if callable(batches):
            seed = torch.randint(2**62, (), generator=self.generator, device=self.generator.device)
            batches = batches(int(seed))
        tensors = effective(self.plan.groups.specs, self._main.tensors)
        return Job(step, self.model, tensors, self.generator, batches, self._loss, hold_norms)
