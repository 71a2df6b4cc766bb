"""One attempt: a copy of the model at other widths is traced and compared with what the axes predict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from growthring.core.axes import Ref
from growthring.errors import GrowthError, InputError
from growthring.graph.candidates import inside
from growthring.graph.compare import Failure, compare
from growthring.graph.follow import Scaled, Sizes
from growthring.graph.groups import Law
from growthring.graph.isolation import settings_of
from growthring.graph.places import Place
from growthring.graph.probe import Probe
from growthring.graph.rehearse import innermost
from growthring.graph.resize import empty_copy
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import trace


@dataclass
class Fit:
    """Outcome of fitting: the attributes that follow, the laws of factors, or what must be frozen and why.

    Attributes:
        attributes: attribute -> the axes whose sizes it holds.
        laws: operator -> laws that explain its factor.
        numeric: attributes that follow only because a root of them is a factor.
        blocked: widths that cannot change, and `reason`.
        notes: attributes that hold a width's number and do not follow, in words.
    """

    attributes: dict[Place, Sizes | Scaled] = field(default_factory=dict)
    laws: dict[int, tuple[Law, ...]] = field(default_factory=dict)
    numeric: set[Place] = field(default_factory=set)
    blocked: list[Ref] = field(default_factory=list)
    reason: str = ""
    notes: list[str] = field(default_factory=list)


def attempt(probe: Probe, result: Fit) -> Failure | None:
    """Traces a copy at the small widths and compares it with the prediction; fills in the laws."""
    result.laws = {}
    copied = copy_at(probe, result.attributes)
    for walk, training in zip(probe.walks, probe.modes, strict=True):
        try:
            copy_trace = trace(copied, probe.inputs, training, outputs=probe.outputs)
        except GrowthError as error:
            return _crash(walk, copied, error)
        failure = compare(probe, walk, copy_trace, result.laws)
        if failure is not None:
            return failure
    return None


def copy_at(probe: Probe, attributes: Mapping[Place, Sizes | Scaled]) -> nn.Module:
    """The model at the probe's small widths, or what the user's `build` makes of them."""
    if probe.build is None:
        return empty_copy(probe.model, probe.specs, attributes, probe.full, probe.small)
    with settings_of(probe.model):
        copied = probe.build()
    if not isinstance(copied, nn.Module):
        raise InputError(f"build(widths) returned a {type(copied).__name__}, not an nn.Module.")
    return copied


def _crash(walk: Walk, copied: nn.Module, error: GrowthError) -> Failure:
    """The copy's own code raised: find the innermost module on the stack."""
    paths = {id(module): path for path, module in copied.named_modules()}
    cause: BaseException = error.__cause__ or error
    module, line = innermost(paths, cause)
    starts = [i for i, op in enumerate(walk.trace.ops) if inside(op.module, module)]
    message = (str(cause).strip().splitlines() or [""])[0]
    text = f"the code of '{module or '(model)'}' does not follow another width ({message})"
    return Failure((0, starts[0] if starts else 0, line), module, text)
