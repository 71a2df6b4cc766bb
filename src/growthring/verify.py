"""verify: measures by how much two models differ on the same inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from growthring.errors import InputError
from growthring.graph.running import callers_settings, fixed_random, fresh, untouched
from growthring.graph.trace import ExampleInputs, output_tensors, split_inputs


@dataclass(frozen=True)
class Verification:
    """How much outputs changed.

    Attributes:
        absolute: largest absolute difference.
        relative: that, relative to the largest absolute output before.
        scale: the factor on the outputs that explains most of the change (least squares; 1 if
            nothing changed).
        relative_after_scale: what is left, relative, once that factor is taken out.
        same_argmax: whether the largest entry along the last axis is the same everywhere.
        num_outputs: number of tensors compared.
    """

    absolute: float
    relative: float
    scale: float
    relative_after_scale: float
    same_argmax: bool
    num_outputs: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        text = f"relative change {self.relative:.2e} (absolute {self.absolute:.2e})"
        if abs(self.scale - 1) > 1e-6:
            text += (
                f", factor {self.scale:.6g} on the outputs leaves {self.relative_after_scale:.2e}"
            )
        return text + ("" if self.same_argmax else ", argmax differs")


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients, and the mode of every module as it was afterwards.

    Goes through `train()` on the way in and out: models that cache tensors in eval mode drop them
    there.
    """
    states = [(m, m.training) for m in model.modules()]
    try:
        model.train()
        model.eval()
        with torch.no_grad():
            yield
    finally:
        model.train()
        for module, was in states:
            module.training = was


def outputs_of(
    model: nn.Module, inputs: ExampleInputs, names: Sequence[str] | None = None
) -> list[torch.Tensor]:
    """The tensors that a model returns in eval mode, without gradients."""
    args, kwargs = split_inputs(fresh(inputs))
    with callers_settings(), untouched(model), evaluating(model), fixed_random():
        return [t.detach().clone() for t in output_tensors(model(*args, **kwargs), names)]


def verify(
    before: nn.Module,
    after: nn.Module,
    inputs: ExampleInputs,
    outputs: Sequence[str] | None = None,
) -> Verification:
    """Measures how much `after` differs from `before` on the given inputs, in eval mode.

    Args:
        before: a model.
        after: another one with outputs of the same shapes.
        inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments.
        outputs: of an output with named parts, only these.

    >>> net = nn.Linear(3, 2)
    >>> verify(net, net, torch.ones(1, 3)).relative
    0.0
    """
    for name, model in (("before", before), ("after", after)):
        if not isinstance(model, nn.Module):
            raise InputError(f"verify: `{name}` is a {type(model).__name__}, not an nn.Module.")
    return compare(outputs_of(before, inputs, outputs), outputs_of(after, inputs, outputs))


def compare(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> Verification:
    """The same measurement on outputs at hand."""
    shapes = [tuple(t.shape) for t in before], [tuple(t.shape) for t in after]
    if shapes[0] != shapes[1]:
        raise InputError(f"the two models return different shapes: {shapes[0]} and {shapes[1]}.")
    pairs = [(_real(a), _real(b)) for a, b in zip(before, after, strict=True) if a.numel()]
    # Entries that are not finite (masked logits) must be the same; the others are compared.
    odd = any(
        not torch.equal(a[~_finite(a, b)].nan_to_num(1.5), b[~_finite(a, b)].nan_to_num(1.5))
        for a, b in pairs
    )
    finite = [(a.where(_finite(a, b), 0), b.where(_finite(a, b), 0)) for a, b in pairs]
    dot = sum(float((a * b).sum()) for a, b in finite)
    square = sum(float((a * a).sum()) for a, _ in finite)
    scale = dot / square if square > 0 else 1.0
    absolute = relative = left = float("inf") if odd else 0.0
    same = True
    for (a, b), (raw_a, raw_b) in zip(finite, pairs, strict=True):
        size = max(float(a.abs().max()), torch.finfo(torch.float64).tiny)
        difference = float((a - b).abs().max())
        absolute = max(absolute, difference)
        relative = max(relative, difference / size)
        left = max(left, float((a * scale - b).abs().max()) / size)
        if a.dim() and a.shape[-1] > 1:
            same = same and bool((raw_a.argmax(-1) == raw_b.argmax(-1)).all())
    return Verification(absolute, relative, scale, left, same, len(pairs))


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def _finite(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(a) & torch.isfinite(b)
