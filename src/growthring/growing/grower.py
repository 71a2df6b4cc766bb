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
from growthring.growing.binding import (
    Optimizers,
    averaged_modules,
    check_optimizers,
    check_shapes,
    find_stage,
    parameter_rings,
)
from growthring.growing.body import Body
from growthring.growing.outcome import Outcome
from growthring.growing.proof import prove
from growthring.growing.report import GrowthReport
from growthring.growing.transaction import all_or_nothing
from growthring.growing.trials import Trial, make_trials
from growthring.methods import Growth, GrowthMethod, Job, Paired, Step, make_method
from growthring.methods.base import Batch, Loss
from growthring.methods.magnitudes import following_magnitudes
from growthring.optim.base import RingOptimizer
from growthring.optim.state import Grown, Regrow, drop_state, grow_state
from growthring.optim.wrap import ring_rates_of
from growthring.planning.plan import Plan

Batches = Iterable[Batch] | Callable[[int], Iterable[Batch]]


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
            theorem) or "off". The other methods have none.
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
        variance_transfer: Mode = "preserving",
        noise: float = 1e-3,
        generator: torch.Generator | None = None,
        averages: nn.Module | Sequence[nn.Module] | None = None,
        unknown_state: Literal["refuse", "reset"] = "refuse",
        batches: Batches | None = None,
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
        self.method = _method(method, variance_transfer)
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
        self._body = Body(model, plan)
        self._averages = [Body(module, plan) for module in averaged]
        self._trials: list[Trial] = []
        self._trial_notes: list[str] = []
        self._trials_for: object = None
        if not self.is_full:
            with own_settings():
                prove(plan, self.method)
        all_or_nothing(self._roots, self._bind)

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
                f"the model is at stage {self.stage}, the last of {self.plan.num_stages}; it has "
                "its full size."
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
        plan, body = self.plan, self._body
        check_sharded(self.model)
        for each in self._bodies:
            check_shapes(each.module, plan, self.stage)
        check_finite(self.model)
        step = self._step(self.stage + 1, self.method.mode)
        start = Snapshot(self._roots, values=False, code=False)
        trials = self._find_trials() if measure else []
        outcome = Outcome(self.model, step, self.stage + 1, trials)
        for hold_norms in (False, True):
            growth = following_magnitudes(self._search(step, body, hold_norms), step)
            divisors = growth.gradient_divisors(body.tensors)
            regrow = self._regrow(growth)
            grown = growth.tensors(body.tensors, self.generator)
            body.install(step, grown, divisors)
            outcome.measure()
            if hold_norms or not outcome.shows_eps(growth.factors):
                break
            start.restore()  # once more, without rescaling what those norms normalise
        outcome.check(growth)
        if self.noise:
            growth.add_noise(grown, self.noise, self.generator)
            outcome.measure(with_noise=True)
        for average in self._averages:
            self._grow_average(average, step, growth, regrow)
        self.rings.append(step.after)
        notes = self._grow_optimizers(step, grown, divisors, regrow)
        notes = [*(self._trial_notes if measure else ()), *notes]
        return outcome.report(growth, len(body.fades), notes)

    def advance(self, progress: float) -> None:
        """Tells how much of the present stage is done (0 to 1), so that faded statistics come in.

        Call it once per training step where the model has layer or RMS norms over a growing width;
        at 1 those norms are plain modules again. Without such norms it does nothing.
        """
        if not 0 <= progress <= 1:
            raise InputError(
                f"progress={progress!r}: the share of the stage that is done, from 0 to 1."
            )
        for body in self._bodies:
            body.fades.advance(progress)
        if progress == 1:
            self.finish()

    def finish(self) -> None:
        """Ends every fade: nothing of growthring is left on the model."""
        for body in self._bodies:
            body.fades.finish()

    @property
    def fading_norms(self) -> dict[str, float]:
        """Norms whose statistics are still fading in, and how far they are."""
        return self._body.fades.progress()

    def state_dict(self) -> dict[str, Any]:
        """What growth needs to remember: stage, rings, fades, generator.

        The model's own state_dict stays plain; save both.
        """
        return {
            "stage": self.stage,
            "rings": self.rings.state_dict(),
            "widths": [self.plan.named_widths(t) for t in range(self.plan.num_stages)],
            "fades": self._body.fades.state_dict(),
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
        widths = [self.plan.named_widths(t) for t in range(self.plan.num_stages)]
        if list(state["widths"]) != widths:
            raise InputError("the saved growth follows another plan: its widths per stage differ.")
        stage = int(state["stage"])
        if stage < self.stage:
            raise InputError(
                f"the model is at stage {self.stage}, the saved growth at stage {stage}; start "
                "from plan.build_seed()."
            )
        all_or_nothing(self._roots, lambda: self._load(stage, state))

    def _load(self, stage: int, state: Mapping[str, Any]) -> None:
        step = self._step(stage, "off")
        for body in self._bodies:
            tensors, grown = body.tensors, {}
            for name, spec in self.plan.groups.specs.items():
                if step.changes(spec):
                    layouts = step.layouts(spec.axes)
                    grown[name] = widen_constant(tensors[name].detach(), layouts, 0.0)
            body.install(step, grown, {})
            body.fades.load_state_dict(state["fades"])
        self.rings.load_state_dict(state["rings"])
        if self.stage != stage:
            raise InputError(
                f"the saved rings are those of stage {self.stage}, the saved growth is at stage {stage}: "
                "the state is not whole."
            )
        for optimizer in self.optimizers:
            drop_state(optimizer, self._body.tensors.values())
        self._bind()
        self.generator.set_state(state["generator"])

    # One growth, taken apart.

    @property
    def _bodies(self) -> list[Body]:
        return [self._body, *self._averages]

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
        fades = [body.fades for body in self._bodies]
        modules = [body.module for body in self._bodies]
        return [*modules, *fades, *self.optimizers, self.rings, self.generator]

    def _search(self, step: Step, body: Body, hold_norms: bool) -> Growth:
        """What the method decides on; a search runs the model's code, which leaves nothing."""
        job = self._job(step, body, hold_norms)
        if not self.method.searches:
            return self.method.grow(job)
        with untouched(self.model):
            return self.method.grow(job)

    def _step(self, stage: int, mode: Mode) -> Step:
        """The growth from the present stage to another."""
        widths = self.plan.stage_widths
        return Step(self.plan, widths[self.stage], widths[stage], mode)

    def _job(self, step: Step, body: Body, hold_norms: bool) -> Job:
        """What the method is given."""
        batches = self._batches if self.method.searches else None
        if callable(batches):
            seed = torch.randint(2**62, (), generator=self.generator, device=self.generator.device)
            batches = batches(int(seed))
        tensors = effective(self.plan.groups.specs, body.tensors)
        return Job(step, body.module, tensors, self.generator, batches, self._loss, hold_norms)

    def _bind(self) -> None:
        """Tells the optimizers the rings."""
        rings = parameter_rings(self.model, self.plan, self.rings)
        for optimizer in self.optimizers:
            ring_rates = ring_rates_of(optimizer)
            if isinstance(optimizer, RingOptimizer):
                optimizer.bind_rings(rings)
            elif ring_rates is not None:
                ring_rates.bind(rings)

    def _grow_optimizers(
        self,
        step: Step,
        grown: Mapping[str, torch.Tensor],
        divisors: Mapping[str, float | torch.Tensor],
        regrow: Regrow,
    ) -> list[str]:
        """Grows the optimizers' state and tells them the rings; returns notes."""
        tensors, specs = self._body.tensors, self.plan.groups.specs
        changed = {
            tensors[name]: Grown(
                name,
                specs[name].shape(step.before),
                step.layouts(specs[name].axes),
                divisors.get(name, 1.0),
            )
            for name in grown
        }
        notes: list[str] = []
        states: dict[int, torch.optim.Optimizer] = {}
        for optimizer in self.optimizers:  # a wrapper may share the state of the one inside
            states.setdefault(id(optimizer.state), optimizer)
        for optimizer in states.values():
            notes += grow_state(
                optimizer, changed, regrow, self.rings.num_rings, self.unknown_state
            )
        self._bind()
        return notes

    def _regrow(self, growth: Growth) -> Regrow:
        """The step that the model is about to take, for copies of its weights: the same new entries and noise.

        Copies of some of the weights do; the model's own as they are now stand in for the others.
        """
        old = {name: tensor.detach() for name, tensor in self._body.tensors.items()}
        generator_state = self.generator.get_state()

        def regrow(copies: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            generator = torch.Generator(self.generator.device)
            generator.set_state(generator_state)
            grown = growth.tensors({**old, **copies}, generator)
            if self.noise:
                growth.add_noise(grown, self.noise, generator)
            return grown

        return regrow

    def _grow_average(self, average: Body, step: Step, growth: Growth, regrow: Regrow) -> None:
        """Grows an average with the very entries that the model got, so that it stays an average of it."""
        tensors = average.tensors
        average.install(step, regrow(tensors), growth.gradient_divisors(tensors))


def _method(method: str | GrowthMethod, variance_transfer: Mode) -> GrowthMethod:
    """The method that was asked for; variance transfer is a matter of "paired" alone."""
    paired = Paired(variance_transfer)  # checks it
    if isinstance(method, str):
        return paired if method == Paired.name else make_method(method)
    needed = ("name", "searches", "mode", "check", "grow")
    missing = [name for name in needed if not hasattr(method, name)]
    if isinstance(method, type) or missing:
        raise InputError(
            f"method is a {type(method).__name__} without {', '.join(missing) or 'parentheses'}; pass a name, or "
            "an object of growthring.methods such as Net2Net()."
        )
    return method
