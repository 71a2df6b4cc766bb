"""DynamicOSGD: gradients that first leave alone what the old data asked for (the paper's appendix).

G* = G − λ · proj_Ḡ(G),   proj_Ḡ(G) = (⟨G, Ḡ⟩ / ⟨Ḡ, Ḡ⟩) Ḡ,   λ: 1 → 0 over the stage.

Ḡ is the gradient of the loss on the data of the stage before, zero for what was added since; ⟨·, ·⟩ goes over all
parameters together.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from growthring.core.wording import counted
from growthring.data.batch import examples_in
from growthring.distributed.wrapping import unwrapped
from growthring.errors import GrowthStepError, InputError
from growthring.graph.trace import split_inputs
from growthring.growing.oldgradient import (
    OldGradient,
    Pass,
    accumulated,
    as_trained,
    check_whole,
)
from growthring.growing.searching import SearchBatches
from growthring.methods.base import Loss
from growthring.optim.initial import is_initialising
from growthring.optim.prepared import plain_optimizer
from growthring.optim.state import Grown
from growthring.streams import GrowingData, StageBatches

Anneal = Literal["linear", "cosine"] | Callable[[float], float]
ANNEALS: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


@dataclass
class _Memory:
    """What a growth changes, and a checkpoint holds.

    Attributes:
        gradient: Ḡ.
        is_old: whether it is of the stage before; else it is of the present one, for the next.
        progress: of the present stage, 0 to 1.
        is_told: whether somebody said that since the last step.
        num_examples: of the pass that was made by now.
    """

    gradient: OldGradient = field(default_factory=OldGradient)
    is_old: bool = False
    progress: float = 0.0
    is_told: bool = True
    num_examples: int = 0


class DynamicOSGD:
    """Keeps the gradients of a stage orthogonal to the gradient of the data before it, less and less so.

    At the end of each stage one more pass over its data accumulates its gradient (memory: one copy of the
    parameters). After the growth, the gradient of each batch loses its part along that one, times a weight λ that
    falls from 1 to 0 over the stage. It works on `p.grad` just before the optimizer's step, whatever the
    optimizer; rates per ring, momentum and weight decay come after it, as they always do.

    With `Grower(model, plan, optimizer, osgd=osgd)` there is nothing else to call: the pass is made before each
    growth, λ follows `Grower.step()`, and `Grower.state_dict()` has its state. Without a Grower, call `remember()`
    and then `begin_stage()` where the data grows, and `advance()` after each step.

    Args:
        model: as it is trained: plain, compiled, or in DistributedDataParallel.
        optimizer: before whose steps gradients are changed. None: call `project()` yourself after the backward
            pass, as with several optimizers, or in the closure of one that takes closures.
        loss: from outputs and targets to a scalar, a mean over the batch.
        batches: the data of all stages, as `gr.streams` has it; or (inputs, targets) of the present one: something
            to iterate over anew at every growth, or a function from a seed to such a thing. Without it call
            `remember(batches)` before each growth.
        anneal: λ over a stage: "linear", "cosine", or a function from the share of the stage that is done.

    Attributes:
        model: the plain module whose gradients it changes.
        growing: the data of all stages, if that was given.

    Raises:
        UnsupportedModelError: `fully_shard` has cut the model.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    >>> osgd = DynamicOSGD(net, optimizer, lambda outputs, targets: (outputs * targets).mean())
    >>> osgd.remember(
    ...     [(torch.tensor([[1.0, 0.0]]), torch.ones(1, 1))]
    ... )  # Ḡ = (1, 0), of one example
    1
    >>> osgd.begin_stage()
    >>> net.weight.grad = torch.tensor([[3.0, 4.0]])
    >>> osgd.project()
    >>> net.weight.grad
    tensor([[0., 4.]])
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        loss: Loss | None = None,
        batches: SearchBatches | GrowingData | None = None,
        *,
        anneal: Anneal = "linear",
    ) -> None:
        self._through, self.model = model, unwrapped(model)
        if not isinstance(self.model, nn.Module):
            raise InputError(f"model is a {type(model).__name__}, not an nn.Module.")
        check_whole(self.model)
        found = anneal if callable(anneal) else ANNEALS.get(anneal)
        if found is None:
            known = ", ".join(ANNEALS)
            raise InputError(f"anneal={anneal!r} is none of {known}, nor a function from 0 … 1.")
        self._anneal = found
        self._loss, self._batches = loss, batches
        self.growing = batches if isinstance(batches, GrowingData) else None
        self._held = {"memory": _Memory()}
        if optimizer is not None:
            if not isinstance(optimizer, Optimizer):
                raise InputError(
                    f"optimizer is a {type(optimizer).__name__}, not a torch optimizer. With several, pass none "
                    "and call project() after the backward pass."
                )
            plain_optimizer(optimizer).register_step_pre_hook(self._before_step)

    @property
    def weight(self) -> float:
        """λ of the next step; 0 where there is no old gradient.

        Raises:
            InputError: `anneal` gives no number from 0 to 1.
        """
        memory = self._memory
        if not memory.is_old:
            return 0.0
        value = self._anneal(memory.progress)
        if not isinstance(value, int | float) or not -1e-9 <= value <= 1 + 1e-9:
            raise InputError(
                f"anneal gave {value!r} at {memory.progress:.1%} of the stage: λ is a number from 0 to 1."
            )
        return min(max(float(value), 0.0), 1.0)

    @property
    def old_gradient(self) -> dict[str, Tensor]:
        """Ḡ by the names of parameters, as wide as these are now; of parameters without a gradient nothing."""
        return dict(self._memory.gradient.tensors)

    # While a stage is trained.

    def project(self) -> None:
        """Takes the part along the old gradient out of `p.grad`, times λ; nothing waits for the device."""
        if (weight := self.weight) > 0:
            self._memory.gradient.take_out(dict(self.model.named_parameters()), weight)

    def advance(self, progress: float) -> None:
        """Tells how much of the stage is done, 0 to 1; `Grower.step` does."""
        if not 0 <= progress <= 1:
            raise InputError(f"progress={progress!r}: how much of the stage is done, from 0 to 1.")
        self._memory.progress, self._memory.is_told = float(progress), True

    # Where one ends.

    def remember(self, batches: SearchBatches | None = None, loss: Loss | None = None) -> int:
        """One more pass over the data of the stage that ends: accumulates its gradient.

        The model runs in train mode; weights, statistics, gradients and random numbers are then as they were.
        Every example counts alike.

        Args:
            batches: (inputs, targets); by default those that were given.
            loss: by default the one that was given.

        Returns:
            How many examples that were.

        Raises:
            GrowthStepError: the loss or its gradient is not finite; there is then no old gradient.
        """
        source, loss = self._source(batches), loss or self._loss
        if loss is None:
            raise InputError("remember needs a loss: pass loss= to it, or to DynamicOSGD.")
        with self.accumulating() as total:
            for batch in source:
                if not isinstance(batch, tuple | list) or len(batch) != 2:
                    raise InputError(
                        f"batches have to give (inputs, targets); they gave a {type(batch).__name__}."
                    )
                args, kwargs = split_inputs(batch[0])
                value = loss(self._through(*args, **kwargs), batch[1])
                total.add(value, examples_in((batch[0], batch[1])))
        return total.num_examples

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[Pass]:
        """A pass of your own: what is added inside becomes the gradient of the stage that ends.

        >>> net = nn.Linear(1, 1)
        >>> osgd = DynamicOSGD(net)
        >>> with osgd.accumulating() as total:
        ...     for n in (2, 1):
        ...         total.add(net(torch.ones(n, 1)).mean(), num_examples=n)
        >>> osgd.old_gradient["bias"]
        tensor([1.])
        """
        check_whole(self.model)
        room = dict(self._memory.gradient.tensors)
        self._memory = _Memory()
        with as_trained(self.model), accumulated(self.model, room) as (total, found):
            yield total
        self._memory = _Memory(OldGradient.of(found), num_examples=total.num_examples)

    def begin_stage(self) -> None:
        """The data has grown: from now on steps leave alone what `remember` has found. `Grower.grow` does it.

        Raises:
            GrowthStepError: nothing was remembered in the stage that ends.
        """
        self._check_ready()
        self._memory = _Memory(self._memory.gradient, is_old=True)

    # What a Grower does with it.

    @property
    def roots(self) -> list[Any]:
        """Everything that a growth changes."""
        return [self._held]

    def end_stage(self, stage: int, batch_size: int) -> None:
        """Makes the pass over the stage's data, if nobody has.

        Args:
            stage: that ends.
            batch_size: of the pass, where batches are made.

        Raises:
            GrowthStepError: nobody has, and it does not know the data.
        """
        if not self._is_ready and self._loss is not None and self._batches is not None:
            own = self.growing and StageBatches.at(self.growing, stage, batch_size)
            self.remember(own)
        self._check_ready()

    def grow(self, changed: Mapping[Tensor, Grown]) -> list[str]:
        """Brings the stage's gradient to the new shapes; the next stage begins.

        Args:
            changed: how parameters grew.

        Returns:
            Notes for the report.
        """
        count = self._memory.num_examples
        self._memory = _Memory(self._memory.gradient.grown(changed))
        self.begin_stage()
        return [f"dynamic OSGD passed once more over {counted(count, 'example')}"] if count else []

    def state_dict(self) -> dict[str, Any]:
        """The old gradient, and how far λ has come."""
        memory = self._memory
        gradients = {name: tensor.detach() for name, tensor in memory.gradient.tensors.items()}
        return {"gradients": gradients, "is_old": memory.is_old, "progress": memory.progress}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up what was saved, of a model that has the saved shapes.

        Raises:
            InputError: it is no such state, or of another model; nothing is changed then.
        """
        needed = {"gradients", "is_old", "progress"}
        if set(state) != needed or not isinstance(state["gradients"], Mapping):
            raise InputError(
                f"this is not the state of a DynamicOSGD: it has {sorted(map(str, state))}, needed are "
                f"{sorted(needed)}."
            )
        parameters, found = dict(self.model.named_parameters()), dict[str, Tensor]()
        for name, old in state["gradients"].items():
            like = parameters.get(name)
            shape = tuple(old.shape) if isinstance(old, Tensor) else None
            if like is None or shape != tuple(like.shape):
                has = "no such parameter" if like is None else f"one of {tuple(like.shape)}"
                raise InputError(
                    f"the saved old gradient of '{name}' has the shape {shape}, the model has {has}: it is of "
                    "another model, or of another stage."
                )
            found[name] = old.detach().to(like).clone(memory_format=torch.preserve_format)
        is_old, progress = bool(state["is_old"]), float(state["progress"])
        self._memory = _Memory(OldGradient.of(found), is_old, progress)

    @property
    def _memory(self) -> _Memory:
        return self._held["memory"]

    @_memory.setter
    def _memory(self, memory: _Memory) -> None:
        self._held["memory"] = memory

    @property
    def _is_ready(self) -> bool:
        """Whether the gradient of the present stage is there for the next."""
        return bool(self._memory.gradient.tensors) and not self._memory.is_old

    def _check_ready(self) -> None:
        if not self._is_ready:
            raise GrowthStepError(
                "DynamicOSGD has no gradient of the stage that ends: call remember(batches) before the growth, or "
                "make it with loss= and batches= so that the Grower does."
            )

    def _source(self, batches: Any) -> Iterable[Any]:
        source: Any = self._batches if batches is None else batches
        if source is None or source is self.growing:
            raise InputError(
                "remember needs batches of the stage that ends: pass them to it, or batches= to DynamicOSGD (of "
                "growing data a Grower says the stage)."
            )
        fork = getattr(source, "fork", None)  # one pass of its own; training's stays where it is
        found: Iterable[Any] = (
            fork(0) if callable(fork) else source(0) if callable(source) else source
        )
        return found

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is not None:
            raise InputError(
                f"{type(optimizer).__name__}.step(closure) computes gradients where DynamicOSGD does not see them. "
                "Make it without the optimizer, and call project() at the end of the closure."
            )
        memory = self._memory
        if not memory.is_old or is_initialising(optimizer):
            return
        if not memory.is_told:
            raise InputError(
                "DynamicOSGD does not know how far the stage is: call Grower.step() (of a plan that knows its "
                "steps) or advance(progress) after each optimizer step."
            )
        self.project()
        memory.is_told = False
