"""What a model costs: forward FLOPs and memory, by running it on fake tensors."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from growthring.errors import PlanError
from growthring.graph.isolation import callers_settings, copied, fixed_random, untouched
from growthring.graph.resize import named_tensors
from growthring.graph.standins import GROUPED_FLOPS, StandIns
from growthring.graph.trace import ExampleInputs, split_inputs
from growthring.optim import OPTIMIZERS

# Tensors of a parameter's size that an optimizer keeps.
OPTIMIZER_STATE = {name: kind.num_state_tensors for name, kind in OPTIMIZERS.items()} | {"none": 0}


@dataclass(frozen=True)
class Footprint:
    """What one forward pass needs.

    Attributes:
        flops: of the forward pass, per example (a multiply-add counts 2).
        parameters: their number.
        parameter_bytes: of parameters.
        trained_bytes: of those that need gradients.
        activation_bytes: what autograd keeps for the backward pass, per example.
        flops_of: weight -> FLOPs of the operators that take it, per example.
    """

    flops: float
    parameters: int
    parameter_bytes: int
    trained_bytes: int
    activation_bytes: float
    flops_of: Mapping[str, float] = field(default_factory=dict, repr=False)

    def memory(self, batch_size: int, optimizer: str = "sgd") -> float:
        """Bytes of weights, gradients, optimizer state and activations in a training step."""
        copies = 1 + OPTIMIZER_STATE[optimizer]
        fixed = self.parameter_bytes + copies * self.trained_bytes
        return fixed + batch_size * self.activation_bytes


def num_examples(inputs: ExampleInputs) -> int:
    """Examples in a batch of inputs: the length of the first axis of the first tensor that has one.

    >>> num_examples((torch.ones(5, 3),))
    5
    """
    for leaf in pytree.tree_leaves(split_inputs(inputs)):
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            if leaf.shape[0] == 0:
                raise PlanError("the example inputs are an empty batch.")
            return int(leaf.shape[0])
    return 1


def footprint(model: nn.Module, inputs: ExampleInputs, runs: bool = False) -> Footprint:
    """FLOPs and memory of a model, counted by torch on fake tensors: nothing is computed.

    Args:
        model: stays as it is.
        inputs: example inputs.
        runs: compute it on random weights first, which takes a fraction of the time if the model is small.

    >>> footprint(nn.Linear(3, 2), torch.ones(5, 3)).flops
    12.0
    """
    count = num_examples(inputs)
    error: Exception | None = None
    # Train mode is what training costs, and BatchNorm needs two examples there; where a model's code does
    # not run like that on fake tensors, its eval mode has the same FLOPs.
    # Where shapes depend on values (tokens picked by expert), it is run on random ones.
    ways = (
        *(((True, max(count, 2), False),) if runs else ()),
        (True, max(count, 2), True),
        (True, count, True),
        (False, count, True),
        (False, count, False),
    )
    for is_training, size, is_fake in ways:
        modes = {module: module.training for module in model.modules()}
        try:
            with callers_settings(), untouched(model), fixed_random():
                model.train(is_training)
                # what the model's code leaves in context variables goes with the context
                run = contextvars.copy_context().run
                return run(_footprint, model, repeated(inputs, size), size, is_fake)
        except Exception as caught:  # the user's own code
            error = error or caught
        finally:
            for module, mode in modes.items():
                module.training = mode
    raise PlanError(
        f"the cost of {type(model).__name__} cannot be counted: {type(error).__name__}: {error}"
    ) from error


def _footprint(model: nn.Module, inputs: tuple[Any, Any], count: int, is_fake: bool) -> Footprint:
    args, kwargs = inputs
    parameters = list(model.parameters())
    kept: dict[int, int] = {}
    mode = FakeTensorMode(allow_non_fake_inputs=True) if is_fake else None
    with mode or contextlib.nullcontext():
        fakes = {n: _fake(mode, t) for n, t in named_tensors(model).items()}
        own = {t.untyped_storage()._cdata: n for n, t in fakes.items()}
        fake_args, fake_kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: _fake(mode, t), (args, kwargs)
        )

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                kept[storage._cdata] = storage.nbytes()
            held.append(storage)  # so that no other storage takes its place in memory
            return tensor

        held: list[Any] = []
        counter = FlopCounterMode(display=False, custom_mapping=dict(GROUPED_FLOPS))
        by_weight = _ByWeight(counter, own)
        with (
            counter,
            by_weight,
            StandIns(),
            _countable(),
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t),
        ):
            torch.func.functional_call(model, fakes, fake_args, fake_kwargs)
    return Footprint(
        flops=counter.get_total_flops() / count,
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        trained_bytes=sum(p.numel() * p.element_size() for p in parameters if p.requires_grad),
        activation_bytes=sum(kept.values()) / count,
        flops_of={name: flops / count for name, flops in by_weight.flops.items()},
    )


class _ByWeight(TorchDispatchMode):
    """Tells which weight's FLOPs a counter counts; of an operator with several it is the largest."""

    def __init__(self, counter: FlopCounterMode, names: Mapping[int, str]) -> None:
        super().__init__()
        self._counter, self._names = counter, names
        self.flops: dict[str, float] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        before = self._counter.get_total_flops()
        result = func(*args, **(kwargs or {}))
        spent = self._counter.get_total_flops() - before
        if spent:
            tensors = [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
            own = {self._names.get(t.untyped_storage()._cdata): t.numel() for t in tensors}
            name = max(own, key=lambda n: (n is not None, own[n]))
            if name is not None:
                self.flops[name] = self.flops.get(name, 0.0) + spent
        return result


@contextlib.contextmanager
def _countable() -> Iterator[None]:
    """Attention and recurrent layers as the matrix products that the counter knows, not as one kernel."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _fake(mode: FakeTensorMode | None, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape: a fake one, or (a weight) one of small random values."""
    fake: torch.Tensor
    if mode is not None:
        fake = mode.from_tensor(tensor.detach(), static_shapes=True)
    elif tensor.requires_grad:
        fake = torch.randn_like(tensor).mul_(0.02).detach()
    else:
        fake = tensor.detach().clone()
    return fake.requires_grad_(tensor.requires_grad)


def repeated(inputs: ExampleInputs, batch_size: int) -> Any:
    """Example inputs, as (args, kwargs), over and over up to a batch size.

    >>> repeated(torch.arange(2), 3)[0]
    (tensor([0, 1, 0]),)
    """
    count = num_examples(inputs)

    def fill(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != count:
            return tensor
        index = torch.arange(batch_size, device=tensor.device) % count
        return tensor.detach()[index]

    return pytree.tree_map_only(torch.Tensor, fill, split_inputs(copied(inputs)))
