"""Ends fades before their time, and says what that did to the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from growthring.core.wording import counted
from growthring.graph.check import check_model
from growthring.graph.isolation import own_settings
from growthring.graph.trace import ExampleInputs
from growthring.growing.fading import Fades
from growthring.growing.verify import Verification, outputs_of


@dataclass(frozen=True)
class FadeReport:
    """What ending fades did.

    Attributes:
        ended: modules whose statistics were still fading in, and how far they were (0 to 1).
        change: of the outputs in eval mode; None where nothing was fading, or nothing was measured.
    """

    ended: Mapping[str, float]
    change: Verification | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        change = None if self.change is None else self.change.as_dict()
        return {"ended": dict(self.ended), "change": change}

    def __str__(self) -> str:
        if not self.ended:
            return "nothing was fading in"
        low, high = min(self.ended.values()), max(self.ended.values())
        far = f"{low:.0%}" if low == high else f"{low:.0%} to {high:.0%}"
        norms = counted(len(self.ended), "norm")
        text = f"ended the fading in of {norms} at {far}"
        return text if self.change is None else f"{text}; outputs: {self.change}"


def end_fades(model: nn.Module, inputs: ExampleInputs | None = None) -> FadeReport:
    """Ends every fade on a model: a copy of one that was growing, say. It is a plain model then.

    Args:
        model: changed in place.
        inputs: what one call takes; if given, the change of the outputs is measured on it.

    >>> import copy, torch, growthring as gr
    >>> net = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2))
    >>> plan = gr.plan(net, torch.ones(1, 4), stages=2)
    >>> seed = plan.build_seed()
    >>> report = gr.Grower(seed, plan).grow()
    >>> end_fades(copy.deepcopy(seed)).ended
    {'1': 0.0}
    >>> print(end_fades(net))
    nothing was fading in
    """
    check_model(model, may_shard=True)
    return ended(model, Fades(model, ()), inputs)


@own_settings()
def ended(
    model: nn.Module,
    fades: Fades,
    inputs: ExampleInputs | None,
    also: Callable[[], None] = lambda: None,
) -> FadeReport:
    """Ends the fades of a model, and what `also` ends (its averages'); measures the model."""
    open_ones = fades.progress()
    if all(progress == 1 for progress in open_ones.values()):
        inputs = None  # nobody can tell the difference
    before = None if inputs is None else outputs_of(model, inputs)
    fades.finish()
    also()
    if before is None or inputs is None:
        return FadeReport(open_ones, None)
    return FadeReport(open_ones, before.change_to(outputs_of(model, inputs)))
