"""verify: measures by how much two models differ on the same inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from growthring.distributed.fullyshard import mesh_of, passing
from growthring.distributed.shards import ranks_over
from growthring.errors import InputError
from growthring.graph.arithmetic import Arithmetic
from growthring.graph.isolation import (
    NO_MEMORY,
    call,
    callers_settings,
    copied,
    fixed_random,
    untouched,
)
from growthring.graph.results import Leavings, output_tensors
from growthring.graph.snapshot import Snapshot
from growthring.graph.trace import ExampleInputs, split_inputs

_PLAIN = Arithmetic()


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


@dataclass(frozen=True)
class Outputs:
    """What one pass of a model gave.

    Attributes:
        returned: the tensors that it returned.
        left: those that it left on its modules, by attribute; wider models may leave wider ones.
    """

    returned: list[torch.Tensor]
    left: dict[str, torch.Tensor]

    def change_to(self, other: Outputs, leading: bool = False) -> Verification:
        """How much another pass differs; what is left on modules counts where it is equally wide.

        Args:
            other: the other pass.
            leading: what the other one returned may have more entries along its last axis, which do not count.
        """
        returned = _led(self.returned, other.returned) if leading else other.returned
        same = [
            name
            for name, tensor in self.left.items()
            if name in other.left and other.left[name].shape == tensor.shape
        ]
        return compare_outputs(
            [*self.returned, *(self.left[name] for name in same)],
            [*returned, *(other.left[name] for name in same)],
        )


@contextlib.contextmanager
def _in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Train or eval mode without gradients, and the mode of every module as it was afterwards.

    Goes through `train()` on the way in and out: models that cache tensors in eval mode drop them
    there.
    """
    states = [(m, m.training) for m in model.modules()]
    try:
        model.train()
        if not training:
            model.eval()
        with torch.no_grad():
            yield
    finally:
        model.train()
        for module, was in states:
            module.training = was


def outputs_of(
    model: nn.Module,
    inputs: ExampleInputs,
    names: Sequence[str] | None = None,
    training: bool = False,
    arithmetic: Arithmetic = _PLAIN,
    kept: Snapshot | None = None,
) -> Outputs:
    """What a model gives in eval or train mode, without gradients; random masks hold their expectation.

    Args:
        model: afterwards it is as it was.
        inputs: what one call takes; they are not changed either.
        names: of an output with named parts, only these, and nothing that is left on modules.
        training: run in train mode.
        arithmetic: how operators compute.
        kept: what an `untouched` around several passes yielded.
    """
    mesh = mesh_of(model)
    if mesh is not None:
        ranks_over(mesh).meet()
    try:
        outputs = _pass(model, inputs, names, training, arithmetic.running(), kept)
    except NO_MEMORY:
        raise
    except Exception as error:
        if isinstance(error, NotImplementedError) or "_dynamo" in type(error).__module__:
            torch._dynamo.reset()  # torch.cond and the like fail from then on if they failed once
        if arithmetic != _PLAIN:
            raise
        # code of the model's own that does not run under a dispatch mode, or that fails anyway
        outputs = _pass(model, inputs, names, training, contextlib.nullcontext(), kept)
    return _judged(model, outputs)


def _pass(
    model: nn.Module,
    inputs: ExampleInputs,
    names: Sequence[str] | None,
    training: bool,
    running: contextlib.AbstractContextManager[Any],
    kept: Snapshot | None,
) -> Outputs:
    args, kwargs = split_inputs(copied(inputs))
    with (
        callers_settings(),
        untouched(model, kept),
        passing(model),
        _in_mode(model, training),
        fixed_random(),
        running,
    ):
        leavings = Leavings(model)
        returned = output_tensors(call(model, args, kwargs), names)
        left = leavings.tensors() if names is None else {}
        return Outputs(
            [t.detach().clone() for t in returned],
            {name: t.detach().clone() for name, t in left.items()},
        )


def _judged(model: nn.Module, outputs: Outputs) -> Outputs:
    """Of a model that is spread over processes the first one's outputs, so that all judge the same numbers."""
    mesh = mesh_of(model)
    if mesh is None:
        return outputs
    named = {f"returned.{i}": t for i, t in enumerate(outputs.returned)}
    named |= {f"left.{name}": t for name, t in outputs.left.items()}
    first = ranks_over(mesh).broadcast(named)
    return Outputs(
        [first[f"returned.{i}"] for i in range(len(outputs.returned))],
        {name: first[f"left.{name}"] for name in outputs.left},
    )


def verify(
    before: nn.Module,
    after: nn.Module,
    inputs: ExampleInputs,
    outputs: Sequence[str] | None = None,
    training: bool = False,
    leading: bool = False,
) -> Verification:
    """Measures how much `after` differs from `before` on the given inputs, in eval mode or in train mode.

    Args:
        before: a model.
        after: another one with outputs of the same shapes.
        inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments.
        outputs: of an output with named parts, only these.
        training: compare in train mode; dropout masks hold their expectation, so that masks of different
            widths can be compared.
        leading: outputs of `after` may have more entries along their last axis, those of new classes
            (`gr.plan(..., classes=)`): the old ones are compared.

    >>> net = nn.Linear(3, 2)
    >>> verify(net, net, torch.ones(1, 3)).relative
    0.0
    """
    for name, model in (("before", before), ("after", after)):
        if not isinstance(model, nn.Module):
            raise InputError(f"verify: `{name}` is a {type(model).__name__}, not an nn.Module.")
    first, second = (outputs_of(m, inputs, outputs, training) for m in (before, after))
    return first.change_to(second, leading)


def _led(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What came after, without the entries along the last axis that are more than there were before."""
    if len(before) != len(after):
        return list(after)  # which is refused
    pairs = zip(before, after, strict=True)
    return [b[..., : a.shape[-1]] if a.dim() and b.dim() else b for a, b in pairs]


def compare_outputs(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> Verification:
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
