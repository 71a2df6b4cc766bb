"""RingOptimizer: what the optimizers of gr.optim share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from growthring.core.defaults import default_settings
from growthring.core.presets import PresetName
from growthring.errors import InputError
from growthring.optim.ages import ages
from growthring.optim.geometry import ParameterRings
from growthring.optim.initial import is_initialising
from growthring.optim.options import (
    DEFAULTS,
    RingOptions,
    check_options,
    complete,
    keep_rate_tensors,
    loaded_groups,
    option,
    settle,
)
from growthring.optim.rescaling import Rescaling, in_layout
from growthring.optim.ringbatch import CACHE_ENTRIES, RingBatch, buckets
from growthring.optim.ringrates import RingRates
from growthring.optim.saving import PLACE, check_saved, packed, unpacked
from growthring.optim.shards import Sums

_HOST = torch.device("cpu")


class RingOptimizer(Optimizer):
    """A torch optimizer with a rate for each ring.

    A mixin in front of a torch optimizer (or of `Optimizer` itself). Until a `Grower` binds it, it has
    no rings, and `step` is torch's own.
    """

    # Tensors of a parameter's size that it keeps: what a plan counts as memory.
    num_state_tensors: ClassVar[int] = 1
    # A parameter's state in which every ring needs a life of its own (Adam's age) is always ringed.
    _rings_have_state = False
    _takes_sparse = True
    # Options of this class that differ from what a preset says, by preset.
    _preset_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    _preset: str | None = None  # of the plan whose Grower has bound it

    def _init_rings(self, given: RingOptions) -> None:
        """Checks the options and writes them to every group (groups may bring their own)."""
        options = {**complete(given), PLACE: None}
        self.defaults |= options
        for group in self.param_groups:
            for name, value in options.items():
                group.setdefault(name, value)
            check_options(group)
        self._ring_rates = RingRates(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; the group may bring ring options of its own."""
        if "rate_adaptation" in self.defaults:  # else _init_rings checks
            check_options({**self.defaults, **param_group})
        super().add_param_group(param_group)
        if self._preset is not None:
            settle(self.param_groups[-1:], self._preset, self._preset_options)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_ring_rates": self._ring_rates}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in DEFAULTS.items():
                group.setdefault(name, self.defaults.get(name, value))
            group.setdefault(PLACE, None)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step.

        Args:
            closure: reevaluates the model and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        is_differentiable = bool(self.defaults.get("differentiable"))
        # numbers of steps belong on the host, where torch would put them on the default device
        with torch.set_grad_enabled(is_differentiable), default_settings(_HOST):
            if closure is None and is_initialising(self):
                with self._ring_rates.no_step():
                    self._step_groups()
            else:
                self._begin()
                with self._ring_rates.totals(self._sums()):
                    self._check_rules()
                    self._step_groups()
                self._end()
            if self._rings_have_state:
                self._ring_rates.complete_births()
        return loss

    def _step_groups(self) -> None:
        for group in self.param_groups:
            self._step_group(group)

    def _step_group(self, group: dict[str, Any]) -> None:
        """The step of one parameter group."""
        raise NotImplementedError

    # What a Grower does with it.

    def bind_rings(
        self, rings: Mapping[Tensor, ParameterRings], preset: PresetName = "default"
    ) -> None:
        """Tells the optimizer the rings of its parameters; the preset decides what was left to it."""
        settled = [dict(group) for group in self.param_groups]
        settle(settled, preset, self._preset_options)
        for group in settled:
            self._check_kernels(group)
        settle(self.param_groups, preset, self._preset_options)
        self._preset = preset
        self._ring_rates.bind(rings)

    def _check_kernels(self, group: Mapping[str, Any]) -> None:
        """Refuses settings of torch's under which a parameter cannot have more than one rate, or age."""
        name = type(self).__name__
        if group.get("fused") and "fused" not in self.defaults:
            raise no_kernel(name)
        for setting in ("capturable", "differentiable"):
            if group.get(setting):
                raise InputError(
                    f"{name}({setting}=True) takes one rate for a whole parameter, so it cannot know rings. "
                    f"Leave {setting} out, or use torch.optim.{name} with the Grower, which then only "
                    "carries its state."
                )
        if group.get("fused") and self._rings_have_state and option(group, "ages") == "ring":
            raise InputError(
                f"{name}(fused=True) corrects the bias of a whole parameter for one age, so it cannot keep "
                "ages='ring' (the paper's; the plan's preset decides where nothing is said). Pass "
                f"ages='shared' to {name}, or leave fused out."
            )

    # Diagnostics.

    def rate_factors(self) -> dict[str, Tensor]:
        """The factor on `lr` for each ring of each parameter that a Grower knows, by name.

        >>> import torch, growthring as gr
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> plan = gr.plan(net, torch.ones(1, 4), stages=2)
        >>> seed = plan.build_seed()
        >>> optimizer = gr.optim.SGD(seed.parameters(), lr=0.1, output_rate=True)
        >>> grower = gr.Grower(seed, plan, optimizer=optimizer)
        >>> optimizer.rate_factors()["2.weight"].tolist()  # the output layer: 1 / C_0
        [0.25]
        >>> report = grower.grow()
        >>> len(optimizer.rate_factors()["0.weight"])
        2
        """
        return self._ring_rates.rate_factors()

    def weight_norms(self) -> dict[str, Tensor]:
        """The Frobenius norm of each ring of each parameter, by name."""
        return self._ring_rates.weight_norms()

    def gradient_norms(self) -> dict[str, Tensor]:
        """The norm of each ring's gradient, by name, for parameters that have one."""
        return self._ring_rates.gradient_norms()

    # Saving and loading.

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with the births of the rings and the rates so far under "rings" of each group."""
        self._ring_rates.before_saving()
        return packed(super().state_dict(), self._ring_rates.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As torch's; also takes a state_dict of the torch counterpart.

        Raises:
            InputError: it is of other widths or another number of rings; nothing is changed then.
        """
        state, saved, record = unpacked(state_dict)
        check_saved(self._ring_rates, self, state_dict, record)
        groups = loaded_groups(self.param_groups, saved)
        rates = [group["lr"] for group in self.param_groups]
        super().load_state_dict({"state": state, "param_groups": groups})
        keep_rate_tensors(self.param_groups, rates)
        self._ring_rates.take_up(record)

    # For `step` of the subclasses.

    def _is_ringed(self, group: Mapping[str, Any], parameter: Tensor) -> bool:
        ring_rates = self._ring_rates
        return ring_rates.has_factors(group, parameter) or (
            self._rings_have_state
            and option(group, "ages") == "ring"
            and ring_rates.has_rings(parameter)
        )

    def _is_ringed_now(self, group: Mapping[str, Any], parameter: Tensor) -> bool:
        """Whether the step at hand differs from ring to ring."""
        return self._is_ringed(group, parameter)

    def _may_be_ringed(self, group: Mapping[str, Any]) -> bool:
        """Whether the group's options make any difference between rings."""
        has_ages = self._rings_have_state and option(group, "ages") == "ring"
        return has_ages or self._ring_rates.may_have_factors(group)

    def _check_gradients(self) -> None:
        """Refuses sparse gradients before anything is changed, where a dense one is needed."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None or not p.grad.is_sparse:
                    continue
                if not self._takes_sparse or self._is_ringed(group, p):
                    raise InputError(
                        f"'{self._ring_rates.rings_of(p).name}' has a sparse gradient, and "
                        f"{type(self).__name__} (or a rate for each ring) needs a dense one. Use "
                        "sparse=False, or torch's SGD or SparseAdam with the Grower."
                    )

    def _begin(self) -> None:
        """Before a step; nothing has been changed if it raises."""
        self._check_gradients()
        self._ring_rates.forget_initial()
        if not self._ring_rates:
            return
        self._ring_rates.begin_step()

    def _sums(self) -> Sums:
        """What a subclass has to know of whole parameters that are cut into shards; the same on all processes."""
        return ()

    def _check_rules(self) -> None:
        if not self._ring_rates:
            return
        for group in self.param_groups:
            # a user's code may fail: better now than half-way
            if callable(group["rate_adaptation"]):
                ringed = [p for p in group["params"] if self._ring_rates.has_factors(group, p)]
                for parameters in buckets(ringed):
                    self._ring_rates.factors(group, parameters)

    def _end(self) -> None:
        if self._ring_rates:
            self._ring_rates.end_step()

    def _split(
        self,
        group: Mapping[str, Any],
        lists: Sequence[list[Any]],
        most_entries: float = CACHE_ENTRIES,
    ) -> _Split:
        """Parameters (the first of parallel lists) whose rings matter apart from the others."""
        if not self._ring_rates or not self._may_be_ringed(group):
            return _Split(list(lists), [])
        ringed = [self._is_ringed_now(group, p) for p in lists[0]]
        plain = [
            [v for v, is_ringed in zip(vs, ringed, strict=True) if not is_ringed] for vs in lists
        ]
        parts = []
        places: dict[int, int] = {id(p): i for i, p in enumerate(lists[0])}
        for parameters in buckets(
            [p for p, is_ringed in zip(lists[0], ringed, strict=True) if is_ringed], most_entries
        ):
            chosen = [places[id(p)] for p in parameters]
            parts.append([[vs[i] for i in chosen] for vs in lists])
        return _Split(plain, parts)

    def _align_state(self, group: Mapping[str, Any]) -> None:
        """Gives state the memory layout of its parameter, on which fused kernels rely."""
        for p in group["params"]:
            state = self.state.get(p, {})
            for key, value in state.items():
                if isinstance(value, Tensor) and value.shape == p.shape:
                    state[key] = in_layout(p, value)

    @contextlib.contextmanager
    def _rescaled(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> Iterator[None]:
        """A step of torch's fused kernels inside, whose movements are scaled ring by ring afterwards."""
        rescaling = Rescaling(self._ring_rates)
        rescaling.begin(group, parameters)
        yield
        rescaling.end()

    def _factors(self, group: Mapping[str, Any], parameters: Sequence[Tensor]) -> Tensor:
        return self._ring_rates.factors(group, parameters)

    def _ages(
        self, group: Mapping[str, Any], parameters: Sequence[Tensor]
    ) -> list[tuple[float, ...]]:
        """Steps that each ring of each parameter has seen, or with shared ages the parameter."""
        is_own, count = option(group, "ages") == "ring", self._ring_rates.num_rings
        return [ages(self.state[p], count, is_own) for p in parameters]

    def _batch(self, parameters: Sequence[Tensor]) -> RingBatch:
        return self._ring_rates.batch(parameters)


def no_kernel(name: str) -> InputError:
    """The refusal of fused=True where torch has no such kernel."""
    return InputError(
        f"{name}(fused=True): torch has no fused kernel for it. Leave fused out; SGD, Adam and AdamW of "
        "gr.optim take it."
    )


class _Split:
    """Parallel lists: of parameters without rings, and of those with rings, by device and type."""

    def __init__(self, plain: list[list[Any]], ringed: list[list[list[Any]]]) -> None:
        self.plain, self.ringed = plain, ringed
