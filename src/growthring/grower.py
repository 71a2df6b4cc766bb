"""Grower: one stage of growth on a model (and its optimizer), all or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from growthring.core.axes import Axis, Layout
from growthring.core.rings import RingMap
from growthring.core.variance import MODES, Factors, Mode
from growthring.core.widen import widen_constant
from growthring.errors import GrowthError, GrowthStepError, InputError
from growthring.fading import Fades
from growthring.graph.check import check_finite, check_model
from growthring.graph.skeleton import (
    adopt_attributes,
    follow_attributes,
    named_tensors,
    set_data,
)
from growthring.methods.paired import Step, add_noise, grow_tensors, transfer
from growthring.optim.state import widen_state
from growthring.plan import Plan
from growthring.report import GroupGrowth, GrowthReport
from growthring.verify import Verification, compare, outputs_of

METHODS = ("paired",)


class Grower:
    """Widens a seed model in place, stage by stage, until it has the shapes of the full model.

    Parameter objects keep their identity, so optimizers, schedulers and hooks go on pointing at
    them.

    Args:
        model: the seed from `plan.build_seed()`, or a model of some stage of the plan.
        plan: what to grow to.
        optimizer: a torch optimizer (or several) whose state grows along: tensors of a parameter's
            shape get zeros for new entries.
        method: how new entries are made; "paired" is the paper's method.
        variance_transfer: "preserving" (the default: rescale as far as the function stays the
            same), "paper" (Table 1 to the letter), "constraint" (the appendix's theorem) or "off".
        noise: size of the symmetry-breaking noise relative to the new weights' deviation; 0 is
            exact.
        generator: source of all random numbers; by default one seeded from `torch.initial_seed()`.

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
        optimizer: torch.optim.Optimizer | list[torch.optim.Optimizer] | None = None,
        method: str = "paired",
        variance_transfer: Mode = "preserving",
        noise: float = 1e-3,
        generator: torch.Generator | None = None,
    ) -> None:
        check_model(model)
        if not isinstance(plan, Plan):
            raise InputError(f"plan is a {type(plan).__name__}; pass what gr.plan(...) returned.")
        if generator is not None and not isinstance(generator, torch.Generator):
            raise InputError(
                f"generator is a {type(generator).__name__}; pass torch.Generator().manual_seed(...)."
            )
        if method not in METHODS:
            raise InputError(f"method='{method}' is not known; there is {', '.join(METHODS)}.")
        if variance_transfer not in MODES:
            raise InputError(
                f"variance_transfer='{variance_transfer}' is not one of {', '.join(MODES)}."
            )
        if not 0 <= noise < 1:
            raise InputError(
                f"noise={noise!r}: a share of the new weights' deviation, from 0 to below 1."
            )
        self.model, self.plan, self.method, self.mode, self.noise = (
            model,
            plan,
            method,
            variance_transfer,
            noise,
        )
        optimizers = (
            [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer or []
        )
        self.optimizers: list[torch.optim.Optimizer] = list(optimizers)
        self.generator = generator or torch.Generator().manual_seed(torch.initial_seed())
        self.stage = self._find_stage()
        self.rings = RingMap(
            {n: s.axes for n, s in plan.groups.specs.items()}, plan.stage_widths[0]
        )
        for t in range(1, self.stage + 1):
            self.rings.append(plan.stage_widths[t])
        self._fades = Fades(model, plan.groups.norms)
        self._check_optimizers()

    @property
    def is_full(self) -> bool:
        """Whether the last stage is reached."""
        return self.stage == self.plan.num_stages - 1

    def grow(self, measure: bool = True) -> GrowthReport:
        """Grows the model to the next stage, in place.

        The outputs on the plan's example inputs are compared before and after, without and with
        noise; a change that the mode does not allow is an error. Any error leaves model, optimizer
        and grower as they were.

        Args:
            measure: whether to run the model for that comparison.
        """
        if self.is_full:
            raise GrowthStepError(
                f"the model is at stage {self.stage}, the last of {self.plan.num_stages}; it has "
                "its full size."
            )
        started = time.perf_counter()
        self._check_shapes()
        check_finite(self.model)
        plan = self.plan
        step = Step(
            plan, plan.stage_widths[self.stage], plan.stage_widths[self.stage + 1], self.mode
        )
        tensors = named_tensors(self.model)
        num_before = sum(p.numel() for p in self.model.parameters())
        cache: dict[Axis, Layout] = {}
        generator_state = self.generator.get_state()
        undo: list[Callable[[], None]] = []
        outputs = _Outputs(self.model, plan)
        exact = noisy = None
        try:
            before = outputs() if measure else []
            for hold_norms in (False, True):
                factors = transfer(step, tensors, hold_norms)
                grown = grow_tensors(step, tensors, factors, self.generator, cache)
                undo += self._install(step, tensors, grown, cache)
                if not measure:
                    break
                exact = noisy = compare(before, outputs())
                shows = (
                    self.mode == "preserving" and bool(factors.rescaled) and exact.relative > 1e-3
                )
                if hold_norms or not shows:
                    self._check_change(exact, factors)
                    break
                # The ε of some norm shows: once more, without rescaling what it normalises.
                _undo(undo)
                self.generator.set_state(generator_state)
            if self.noise:
                add_noise(step, grown, self.noise, self.generator, cache)
                if measure:
                    noisy = compare(before, outputs())
        except BaseException as error:
            _undo(undo)
            self.generator.set_state(generator_state)
            if isinstance(error, Exception) and not isinstance(error, GrowthError):
                raise GrowthStepError(
                    f"growing to stage {self.stage + 1} failed ({type(error).__name__}: {error}); model, "
                    "optimizer and grower are as they were."
                ) from error
            raise
        self.stage += 1
        self.rings.append(step.after)
        seconds = time.perf_counter() - started - outputs.seconds
        return self._report(step, num_before, factors, exact, noisy, seconds, outputs.seconds)

    def advance(self, progress: float) -> None:
        """Tells how much of the present stage is done (0 to 1), so that faded statistics come in.

        Call it once per training step where the model has layer or RMS norms over a growing width;
        at 1 those norms are plain modules again. Without such norms it does nothing.
        """
        if not 0 <= progress <= 1:
            raise InputError(
                f"progress={progress!r}: the share of the stage that is done, from 0 to 1."
            )
        self._fades.advance(progress)
        if progress == 1:
            self.finish()

    def finish(self) -> None:
        """Ends every fade: nothing of growthring is left on the model."""
        self._fades.finish()

    @property
    def fading_norms(self) -> dict[str, float]:
        """Norms whose statistics are still fading in, and how far they are."""
        return self._fades.progress()

    def state_dict(self) -> dict[str, Any]:
        """What growth needs to remember: stage, rings, fades, generator.

        The model's own state_dict stays plain; save both.
        """
        return {
            "stage": self.stage,
            "rings": self.rings.state_dict(),
            "widths": [self.plan.named_widths(t) for t in range(self.plan.num_stages)],
            "fades": self._fades.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Brings the model to the saved stage's shapes, so that `model.load_state_dict` can follow."""
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
        plan = self.plan
        step = Step(plan, plan.stage_widths[self.stage], plan.stage_widths[stage], "off")
        cache: dict[Axis, Layout] = {}
        tensors = named_tensors(self.model)
        grown = {}
        for name, spec in plan.groups.specs.items():
            layouts = step.layouts(spec.axes, cache)
            if any(lay.grows for lay in layouts):
                grown[name] = widen_constant(tensors[name].detach(), layouts, 0.0)
        self._install(step, tensors, grown, cache)
        self._fades.load_state_dict(state["fades"])
        self.stage = stage
        self.rings.load_state_dict(state["rings"])
        self.generator.set_state(state["generator"])

    # One growth, taken apart.

    def _find_stage(self) -> int:
        """The stage whose shapes the model has."""
        shapes = {n: tuple(t.shape) for n, t in named_tensors(self.model).items()}
        specs = self.plan.groups.specs
        missing = [n for n in specs if n not in shapes]
        if missing:
            raise InputError(
                f"the model lacks '{missing[0]}', which the plan's model has. Pass "
                "plan.build_seed()."
            )
        for t, widths in enumerate(self.plan.stage_widths):
            if all(shapes[n] == spec.shape(widths) for n, spec in specs.items()):
                return t
        name, spec = next(
            (n, s) for n, s in specs.items() if shapes[n] != s.shape(self.plan.stage_widths[0])
        )
        raise InputError(
            f"the model has the shapes of no stage of the plan: '{name}' is {shapes[name]}, at "
            "stage 0 it would be "
            f"{spec.shape(self.plan.stage_widths[0])}. Pass plan.build_seed()."
        )

    def _check_optimizers(self) -> None:
        """An optimizer of other parameters would silently train nothing of the grown model."""
        own = {id(p) for p in self.model.parameters()}
        for optimizer in self.optimizers:
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise InputError(
                    f"optimizer holds a {type(optimizer).__name__}, not a torch optimizer."
                )
            held = [p for group in optimizer.param_groups for p in group["params"]]
            strange = sum(id(p) not in own for p in held)
            if strange == len(held):
                raise InputError(
                    f"none of the {len(held)} parameters of {type(optimizer).__name__} belong to the "
                    "model. Build the optimizer from the seed: Optimizer(seed.parameters(), ...)."
                )

    def _check_shapes(self) -> None:
        widths = self.plan.stage_widths[self.stage]
        tensors = named_tensors(self.model)
        for name, spec in self.plan.groups.specs.items():
            if name not in tensors or tuple(tensors[name].shape) != spec.shape(widths):
                found = "missing" if name not in tensors else tuple(tensors[name].shape)
                raise GrowthStepError(
                    f"'{name}' is {found} where stage {self.stage} of the plan has "
                    f"{spec.shape(widths)}: the model was "
                    "changed outside the grower."
                )

    def _install(
        self,
        step: Step,
        tensors: Mapping[str, torch.Tensor],
        grown: Mapping[str, torch.Tensor],
        cache: dict[Axis, Layout],
    ) -> list[Callable[[], None]]:
        """Puts the grown tensors, attributes, fades and optimizer state in place; returns what undoes it."""
        undo: list[Callable[[], None]] = []
        try:
            for name, new in grown.items():
                tensor = tensors[name]
                spec = step.plan.groups.specs[name]
                undo.append(_setter(tensor, tensor.data, tensor.grad))
                gradient = tensor.grad
                tensor.grad = None
                set_data(tensor, new)
                if gradient is not None:
                    tensor.grad = widen_constant(gradient, step.layouts(spec.axes, cache), 0.0)
            undo += self._follow(step)
            undo += self._fades.extend(step.plan.groups.statistics, step.before, step.after)
            for name in grown:
                spec = step.plan.groups.specs[name]
                layouts = step.layouts(spec.axes, cache)
                for optimizer in self.optimizers:
                    shape = spec.shape(step.before)
                    undo += widen_state(optimizer, tensors[name], name, shape, layouts)
        except BaseException:
            _undo(undo)
            raise
        return undo

    def _follow(self, step: Step) -> list[Callable[[], None]]:
        plan = self.plan
        if plan.build is None:
            return follow_attributes(self.model, plan.groups.attributes, step.before, step.after)
        named = {g.name: step.after[g.key] for g in plan.groups.growable}
        return adopt_attributes(self.model, plan.build(named))

    def _check_change(self, change: Verification, factors: Factors) -> None:
        """An unexplained change of the outputs means that something was grown wrongly: never let it pass."""
        found = change.relative
        if self.mode in ("paper", "constraint"):
            if factors.violations:
                return
            found = change.relative_after_scale
        # Far above what rounding does even in deep networks, far below what a wrong rule does.
        limit = min(4e4 * self.plan.groups.precision, 0.05)
        if self._has_eps_norms() and (factors.rescaled or self.mode in ("paper", "constraint")):
            limit = max(limit, 1e-2)
        if not found <= limit:
            raise GrowthStepError(
                f"growing to stage {self.stage + 1} would change the outputs by "
                f"{found:.1e} (relative; allowed "
                f"{limit:.0e}), so some layer does not follow its rule; model, optimizer and "
                "grower are as they were. Please "
                "report the model, and freeze the layers concerned meanwhile."
            )

    def _has_eps_norms(self) -> bool:
        return any(record.kind == "norm" for record in self.plan.groups.records)

    def _report(
        self,
        step: Step,
        num_before: int,
        factors: Factors,
        exact: Verification | None,
        noisy: Verification | None,
        seconds: float,
        measured: float,
    ) -> GrowthReport:
        groups = [
            GroupGrowth(g.name, step.before[g.key], step.after[g.key])
            for g in self.plan.groups.growable
            if step.before[g.key] != step.after[g.key]
        ]
        notes = []
        if factors.violations:
            listed = "; ".join(factors.violations[:4])
            notes.append(f"the rule '{self.mode}' cannot preserve the function here: {listed}")
        if self._fades:
            notes.append(
                f"{len(self._fades)} norms fade their statistics in; call Grower.advance during "
                "the stage"
            )
        rescaled = {n: c for n, c in factors.tensors.items() if abs(c - 1) > 1e-12}
        if (
            exact is not None
            and factors.rescaled
            and exact.relative > 5e3 * self.plan.groups.precision
        ):
            notes.append(
                "rescaled weights in front of norms: their ε makes the difference that is left"
            )
        return GrowthReport(
            stage=self.stage,
            parameters_before=num_before,
            parameters_after=sum(p.numel() for p in self.model.parameters()),
            groups=tuple(groups),
            factors=rescaled,
            output_factors=tuple(factors.outputs),
            change=exact,
            change_with_noise=noisy,
            seconds=seconds,
            measure_seconds=measured,
            notes=tuple(notes),
        )


class _Outputs:
    """Runs the model on the plan's example inputs, and keeps the time it takes."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.model, self.plan, self.seconds = model, plan, 0.0

    def __call__(self) -> list[torch.Tensor]:
        started = time.perf_counter()
        result = outputs_of(self.model, self.plan.example_inputs, self.plan.outputs)
        self.seconds += time.perf_counter() - started
        return result


def _undo(actions: list[Callable[[], None]]) -> None:
    """Takes everything back, the last first."""
    while actions:
        actions.pop()()


def _setter(
    tensor: torch.Tensor, data: torch.Tensor, gradient: torch.Tensor | None
) -> Callable[[], None]:
    def restore() -> None:
        tensor.grad = None
        set_data(tensor, data)
        tensor.grad = gradient

    return restore
