"""The old gradient: accumulated in one pass over a stage's data, and taken out of the gradients of the next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from growthring.core.widen import formatted, widen_constant
from growthring.distributed.shards import is_shard
from growthring.errors import GrowthStepError, InputError, UnsupportedModelError
from growthring.graph.isolation import kept_random
from growthring.optim.state import Grown


@dataclass(frozen=True)
class OldGradient:
    """Ḡ: the gradient of the loss on a stage's data.

    Attributes:
        tensors: by the names of parameters.
        squares: ⟨Ḡ, Ḡ⟩ of each.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    squares: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> OldGradient:
        """Of tensors that are kept as they are.

        Raises:
            GrowthStepError: one of them is not finite.
        """
        squares = {name: inner(tensor, tensor) for name, tensor in tensors.items()}
        bad = [name for name, square in squares.items() if not bool(torch.isfinite(square))]
        if bad:
            raise GrowthStepError(
                f"the gradient of '{bad[0]}' over the stage's data is not finite (or its square is not): there is "
                "nothing that later steps could leave alone."
            )
        return cls(tensors, squares)

    def grown(self, changed: Mapping[Tensor, Grown]) -> OldGradient:
        """At the shapes after a growth: zero for new entries, wherever on their axes these are."""
        tensors = dict(self.tensors)
        for how in changed.values():
            if how.name in tensors and any(lay.grows for lay in how.layouts):
                old = tensors[how.name]
                tensors[how.name] = formatted(widen_constant(old, how.layouts, 0.0), old)
        # Zeros add nothing to a square but its last bit, by the order of its sum: as one that is loaded has it.
        return OldGradient.of(tensors)

    @torch.no_grad()
    def take_out(self, parameters: Mapping[str, Tensor], weight: float) -> None:
        """G ← G − λ (⟨G, Ḡ⟩ / ⟨Ḡ, Ḡ⟩) Ḡ, in place, for the gradients of some parameters together.

        Those without a gradient count on neither side. The device is not waited for: no number comes to the host.

        Args:
            parameters: by name.
            weight: λ.
        """
        pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        for name, old in self.tensors.items():
            new = parameters[name].grad if name in parameters else None
            if new is not None:
                check_dense(name, new)
                pairs.append((new, old, self.squares[name]))
        if not pairs:
            return
        where = pairs[0][2].device  # a model may be spread over several
        along = torch.stack([inner(new, old).to(where) for new, old, _ in pairs]).sum()
        square = torch.stack([each.to(where) for _, _, each in pairs]).sum()
        share = torch.where(square > 0, along / square, 0.0)
        for new, old, _ in pairs:
            new.addcmul_(old, share.to(new), value=-weight)


class Pass:
    """A pass over the data of a stage, as it is made.

    Attributes:
        num_examples: so far.
    """

    def __init__(self) -> None:
        self.num_examples = 0

    def add(self, loss: Tensor, num_examples: int) -> None:
        """Adds a batch's gradient.

        Args:
            loss: a mean over the batch.
            num_examples: in it.

        Raises:
            GrowthStepError: the loss is not finite.
        """
        if not isinstance(loss, Tensor) or loss.dim():
            raise InputError("the loss has to be a scalar tensor, a mean over the batch.")
        if not bool(torch.isfinite(loss.detach())):
            raise GrowthStepError(
                f"the loss is {float(loss.detach())} in the pass over the stage's data; the model is as it was."
            )
        (loss * num_examples).backward()
        self.num_examples += num_examples


@contextlib.contextmanager
def accumulated(
    model: nn.Module, room: dict[str, Tensor]
) -> Iterator[tuple[Pass, dict[str, Tensor]]]:
    """Backward passes inside add up in tensors of their own; gradients are afterwards as they were.

    Args:
        model: whose parameters need gradients.
        room: tensors of the parameters' shapes that are overwritten, so that no more memory is needed.

    Yields:
        The pass, and a dict that has the mean gradients by name at the end.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    own = {name: p.grad for name, p in trained.items()}
    total, found = Pass(), dict[str, Tensor]()
    try:
        for name, p in trained.items():
            p.grad = room.pop(name).zero_() if name in room else None
        with torch.enable_grad():
            yield total, found
        found |= {name: p.grad for name, p in trained.items() if p.grad is not None}
    finally:
        for name, p in trained.items():
            p.grad = own[name]
    if not total.num_examples:
        raise InputError("the pass over the stage's data had no examples.")
    for name, gradient in found.items():
        check_dense(name, gradient)
        # DistributedDataParallel may have put it into its bucket, which the next step writes to
        is_view = gradient.untyped_storage().nbytes() > gradient.numel() * gradient.element_size()
        found[name] = gradient.clone() if is_view else gradient
        found[name].div_(total.num_examples)


@contextlib.contextmanager
def as_trained(model: nn.Module) -> Iterator[None]:
    """Train mode inside; modes, statistics and random numbers are afterwards as they were."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    with kept_random():
        try:
            model.train()
            yield
        finally:
            for module, was in modes:
                module.training = was
            with torch.no_grad():
                for buffer, values in buffers:
                    buffer.copy_(values)


def check_whole(model: nn.Module) -> None:
    """Refuses parameters of which each process holds a part: a projection is over all of them.

    Raises:
        UnsupportedModelError: names one.
    """
    for name, p in model.named_parameters():
        if is_shard(p):
            raise UnsupportedModelError(
                f"'{name}' is cut by fully_shard, and DynamicOSGD projects whole gradients. Train with "
                "DistributedDataParallel, or without DynamicOSGD."
            )


def inner(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of all entries, in single precision at least.

    >>> inner(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    tensor(11.)
    """
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    if a.dtype.itemsize < 4:
        a, b = a.float(), b.float()
    return torch.dot(a.reshape(-1), b.reshape(-1))


def check_dense(name: str, gradient: Any) -> None:
    """Refuses a sparse gradient: what is left of it without its part along the old one is not sparse.

    Raises:
        InputError: it is.
    """
    if gradient.is_sparse:
        raise InputError(
            f"'{name}' has a sparse gradient, and DynamicOSGD needs dense ones. Use sparse=False."
        )
