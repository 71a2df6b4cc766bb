"""Plan: widths, epochs and batch sizes of every stage, what they cost, and the thin model to start from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from growthring.core.axes import refs
from growthring.core.presets import PresetName
from growthring.core.variance import Role
from growthring.core.wording import counted
from growthring.errors import PlanError
from growthring.graph.analysis import Build
from growthring.graph.groups import TensorSpec, WidthGroups
from growthring.graph.isolation import own_settings
from growthring.graph.resize import empty_copy
from growthring.graph.trace import ExampleInputs
from growthring.planning.compiling import measured, share_of_seconds
from growthring.planning.costs import Footprint, footprint
from growthring.planning.factories import call_build
from growthring.planning.fitting import fitted
from growthring.planning.initial import Initial
from growthring.planning.kept import Kept, flops_if_grown, kept_widths
from growthring.planning.lengths import Lengths
from growthring.planning.notes import seconds_notes
from growthring.planning.seeds import cut_seed, drawn_seed, seed_device
from growthring.planning.stated import is_meta
from growthring.planning.table import plan_text
from growthring.planning.timing import fit_to_run


@dataclass(frozen=True)
class Plan:
    """Widths per stage, and what is needed to build the seed and grow it.

    Attributes:
        groups: the width groups of the full model.
        stage_widths: for each stage, group key -> width in units (see `WidthGroup`), frozen groups included.
        initial: how each tensor of the full model is initialised.
        notes: what the plan rounded or could not do, in words.
        example_inputs: the inputs the model was traced with; growth is measured on them.
        outputs: the named parts of the model's output that count, or None for all.
        build: the user's factory, if there is one.
        model: the full model, which is never changed.
        shares: of the training that each stage takes.
        epochs: of each stage, if the run's length was given in epochs.
        stage_steps: optimizer steps of each stage, if they are known: `Grower.step` follows them.
        batch_sizes: of each stage.
        rate_factors: what each stage's batch size multiplies the learning rate by.
        optimizer: whose state the memory counts: sgd, adam, adamw, avagrad, lars or none.
        seconds: of a training step of each stage, if measured; compiled where that pays.
        compile_seconds: of torch.compile in each stage, if measured; 0 where compiling does not pay.
        dtypes: of the full model's parameters when the plan was made.
        preset: decides options of the Grower and of optimizers that are not given, see `growthring.core.presets`.
        data_shares: of data that grows with the stages, what each has of it; none where each has all.
    """

    groups: WidthGroups
    stage_widths: tuple[Mapping[int, int], ...]
    initial: Mapping[str, Initial]
    notes: tuple[str, ...]
    example_inputs: ExampleInputs
    model: nn.Module
    outputs: Sequence[str] | None = None
    build: Build | None = None
    shares: tuple[float, ...] = ()
    epochs: tuple[int, ...] = ()
    stage_steps: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    rate_factors: tuple[float, ...] = ()
    optimizer: str = "sgd"
    seconds: tuple[float, ...] | None = None
    compile_seconds: tuple[float, ...] | None = None
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    preset: PresetName = "default"
    data_shares: tuple[float, ...] = ()

    @property
    def num_stages(self) -> int:
        """Number of stages, the seed's included."""
        return len(self.stage_widths)

    def widths(self, group: str) -> list[int]:
        """Width of one group at every stage."""
        g = self.groups[group]
        return [widths[g.key] * g.unit for widths in self.stage_widths]

    @property
    def classes(self) -> tuple[int, ...]:
        """How many classes the outputs have at each stage; empty where they have all of them at every stage."""
        key = next((g.key for g in self.groups if g.is_classes), None)
        return () if key is None else tuple(widths[key] for widths in self.stage_widths)

    def named_widths(self, stage: int) -> dict[str, int]:
        """Width of every growable group at one stage, by name."""
        return self.groups.named(self.stage_widths[stage])

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
        by_key = {g.key: g for g in self.groups}
        reads = {r.group for axis in spec.reads() for r in refs(axis)}
        if all(by_key[g].frozen is not None for g in reads):
            return "input"
        others = [a for i, a in enumerate(spec.axes) if i not in spec.read | spec.kernel]
        is_output = all(by_key[r.group].is_output for a in others for r in refs(a))
        return "output" if is_output else "hidden"

    def inputs_for(self, model: nn.Module) -> ExampleInputs:
        """A copy of the example inputs for a model that may have been moved or cast since the plan was made.

        They go to the device of its parameters. Numbers of a type that parameters had are cast to the
        type that those parameters have now.
        """
        return fitted(self.example_inputs, self.dtypes, model)

    @property
    def is_meta(self) -> bool:
        """Whether the full model has no values: they were too many, and deviations were stated instead."""
        return is_meta(self.model)

    @own_settings()
    def build_seed(
        self,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> nn.Module:
        """A new model of stage-0 width; the given model stays untouched.

        Its tensors are the leading parts of the full model's, so the user's own initialiser (its
        distribution, its constants, its zero rows) is kept; weights are multiplied by √(full fan-in
        / seed fan-in), as that initialiser would. Of a model on the meta device there is nothing to cut: the seed
        is drawn, from normal distributions of the stated deviations, or is what `build` returns.

        Args:
            device: where the seed shall be; by default where the model is, the CPU for one on the meta device.
            generator: of the numbers that are drawn, if any are; by default torch's own.

        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> import growthring as gr
        >>> seed = gr.plan(net, torch.zeros(1, 4), stages=3).build_seed()
        >>> seed[0].out_features, tuple(seed[2].weight.shape)
        (2, (2, 2))
        """
        where = seed_device(device, self.is_meta)
        pieces = (self.model, self.groups, self.initial, self.stage_widths, self.build)
        seed = drawn_seed(*pieces, where, generator) if self.is_meta else cut_seed(*pieces)
        return seed if device is None else seed.to(device)

    # Costs.

    def empty_model(self, stage: int) -> nn.Module:
        """A model of one stage's widths whose values mean nothing."""
        widths = self.stage_widths[stage]
        if self.build is not None:
            return call_build(self.build, self.named_widths(stage), self.model)
        full = self.stage_widths[-1]
        return empty_copy(self.model, self.groups.specs, self.groups.attributes, full, widths)

    @cached_property
    def footprints(self) -> tuple[Footprint, ...]:
        """FLOPs, parameters and memory of each stage's model, counted on fake tensors."""
        found: list[Footprint] = []
        for stage, widths in enumerate(self.stage_widths):
            if stage and widths == self.stage_widths[stage - 1]:
                found.append(found[-1])
                continue
            model = self.empty_model(stage)
            found.append(footprint(model, self.inputs_for(model)))
        return tuple(found)

    @property
    def flops_share(self) -> float:
        """Training FLOPs as a share of fixed-size training for as many examples: Σ T_t F_t / (ΣT · F_full)."""
        return self._share([f.flops for f in self.footprints])

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The widths that keep their full size, and what is in layers of these widths."""
        return kept_widths(self.groups, self.footprints[-1])

    @property
    def flops_share_if_grown(self) -> float:
        """The share if what keeps its full size grew like the other widths."""
        return self._share(flops_if_grown(self.groups, self.stage_widths, self.footprints))

    def _share(self, flops: Sequence[float]) -> float:
        spent = sum(n * f for n, f in zip(self.examples, flops, strict=True))
        full = sum(self.examples) * self.footprints[-1].flops
        return spent / full if full else 1.0

    @property
    def examples(self) -> tuple[float, ...]:
        """How many examples each stage sees, up to a factor that all stages share."""
        if self.epochs:
            shares = self.data_shares or (1,) * len(self.epochs)
            return tuple(n * share for n, share in zip(self.epochs, shares, strict=True))
        if self.stage_steps:
            return tuple(n * b for n, b in zip(self.stage_steps, self.batch_sizes, strict=True))
        return self.shares

    @property
    def lengths(self) -> Lengths:
        """How long each stage lasts."""
        return Lengths(self.shares, self.epochs, self.stage_steps)

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps of the whole training, if they are known."""
        return sum(self.stage_steps) if self.stage_steps else None

    @property
    def memory(self) -> tuple[float, ...]:
        """Bytes of weights, gradients, optimizer state and activations in each stage's step."""
        pairs = zip(self.footprints, self.batch_sizes, strict=True)
        return tuple(f.memory(size, self.optimizer) for f, size in pairs)

    @property
    def seconds_share(self) -> float | None:
        """Training seconds as a share of fixed-size training, if `measure` was called; compiling counts in both."""
        if self.seconds is None:
            return None
        full = self.seconds[-1] / self.batch_sizes[-1]
        return share_of_seconds(self.examples, self.relative_seconds, full, self.compile_seconds)

    @property
    def relative_seconds(self) -> list[float]:
        """Measured seconds of an example at each stage, as shares of a full-size one; none if not measured."""
        if self.seconds is None:
            return []
        each = [s / b for s, b in zip(self.seconds, self.batch_sizes, strict=True)]
        return [s / each[-1] for s in each]

    def measure(self, repeats: int = 3, compile: bool = False) -> Plan:
        """The plan with the seconds of a training step of each stage on this machine.

        A step is a forward pass in train mode, a backward pass and a step of the plan's optimizer on a batch of the
        stage's size. Stages take turns, see `growthring.planning.timing.in_turns`.
        With `compile` (minutes) a stage is also compiled, and counted so where its steps repay that.
        """
        if self.is_meta:
            raise PlanError(
                f"{self.groups.model_type} is on the meta device, so no step of it can be timed. Plan in FLOPs, or "
                "a model with values."
            )
        twins = [fit_to_run(self.empty_model(t)) for t in range(self.num_stages)]
        stages = [(m, self.inputs_for(m), b) for m, b in zip(twins, self.batch_sizes, strict=True)]
        steps = self.stage_steps if compile else None
        seconds, spent = measured(stages, repeats, self.optimizer, steps)
        self.footprints  # noqa: B018 - counted once, for the plan with seconds too
        return self.at_same_widths(seconds=seconds, compile_seconds=spent)

    def at_same_widths(self, **changes: Any) -> Plan:
        """The plan with changes that leave its widths, and so its footprints, alone."""
        changed = replace(self, **changes)
        if "footprints" in self.__dict__:
            changed.__dict__["footprints"] = self.footprints
        return changed

    def steps(self, num_examples: int) -> list[int]:
        """Optimizer steps of each stage on a data set of so many examples, the last batch of an epoch included."""
        pairs = zip(self.epochs, self.batch_sizes, strict=True)
        return [n * math.ceil(num_examples / size) for n, size in pairs]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: lists over stages, and the shares of fixed-size training (0 to 1)."""
        result: dict[str, Any] = {
            "stages": self.num_stages,
            "widths": [self.named_widths(t) for t in range(self.num_stages)],
            "shares": list(self.shares),
            "epochs": list(self.epochs),
            "steps": list(self.stage_steps),
            "batch_sizes": list(self.batch_sizes),
            "rate_factors": list(self.rate_factors),
            "parameters": [f.parameters for f in self.footprints],
            "flops": [f.flops for f in self.footprints],
            "memory_bytes": list(self.memory),
            "flops_share": self.flops_share,
            "flops_share_if_grown": self.flops_share_if_grown,
            "kept": [kept.as_dict() for kept in self.kept],
            "notes": list(self.notes),
        }
        if self.data_shares:
            result["data_shares"] = list(self.data_shares)
        if self.groups.roles:
            result["roles"] = self.groups.roles
        if self.seconds is not None:
            shares, spent = self.relative_seconds, self.compile_seconds
            flops = [f.flops / (self.footprints[-1].flops or 1.0) for f in self.footprints]
            notes = seconds_notes((self.flops_share, self.seconds_share), flops, shares)
            result |= {"seconds": list(self.seconds), "seconds_share": self.seconds_share}
            result |= {} if spent is None else {"compile_seconds": list(spent)}
            result |= {"relative_seconds": shares, "notes": [*self.notes, *notes]}
        return result

    def __repr__(self) -> str:
        return f"<Plan of {self.groups.model_type}: {counted(self.num_stages, 'stage')}>"

    def __str__(self) -> str:
        return plan_text(self.groups.model_type, self.as_dict())
