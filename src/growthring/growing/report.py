"""GrowthReport: what one growth did, measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from growthring.core.wording import counted, listed
from growthring.growing.verify import Verification


@dataclass(frozen=True)
class GroupGrowth:
    """Width of one group before and after."""

    name: str
    before: int
    after: int


@dataclass(frozen=True)
class FactorGrowth:
    """Two factors of one product, such as heads × head size, of which at least one grew.

    Attributes:
        words: what the factors are called.
        count: the outer one.
        size: the inner one.
    """

    words: tuple[str, str]
    count: GroupGrowth
    size: GroupGrowth

    def __str__(self) -> str:
        pairs = zip(self.words, (self.count, self.size), strict=True)
        return ", ".join(
            f"{word} {g.before}" + (f" -> {g.after}" if g.after != g.before else " as before")
            for word, g in pairs
        )


@dataclass(frozen=True)
class GrowthReport:
    """What one growth did.

    Attributes:
        stage: the stage that the model is in now.
        parameters_before: number of parameters before.
        parameters_after: and after.
        groups: the groups that grew.
        products: the products of which both factors can grow, and what they did.
        factors: tensors whose old entries were rescaled, and by how much.
        output_factors: the factor on each model output that the mode leaves (1 where the function
            is kept).
        change: measured change of the outputs in eval mode without symmetry-breaking noise, on the
            example inputs and on fresh ones; None if not measured.
        train_change: the same in train mode.
        change_with_noise: the change in eval mode with noise.
        train_change_with_noise: the same in train mode.
        seconds: time for growing, without measuring.
        measure_seconds: time for measuring.
        search_flops: what the method's own optimisation on batches cost, forward and backward.
        search_examples: how many examples it saw.
        notes: in words, why outputs changed if they did.
    """

    stage: int
    parameters_before: int
    parameters_after: int
    groups: tuple[GroupGrowth, ...]
    factors: Mapping[str, float]
    output_factors: tuple[float, ...]
    change: Verification | None
    train_change: Verification | None
    change_with_noise: Verification | None
    train_change_with_noise: Verification | None
    seconds: float
    measure_seconds: float
    search_flops: float
    search_examples: int
    notes: tuple[str, ...]
    products: tuple[FactorGrowth, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        result: dict[str, Any] = {
            "stage": self.stage,
            "parameters_before": self.parameters_before,
            "parameters_after": self.parameters_after,
            "groups": {g.name: [g.before, g.after] for g in self.groups},
            "factors": dict(self.factors),
            "output_factors": list(self.output_factors),
            "change": _as_dict(self.change),
            "train_change": _as_dict(self.train_change),
            "change_with_noise": _as_dict(self.change_with_noise),
            "train_change_with_noise": _as_dict(self.train_change_with_noise),
            "seconds": self.seconds,
            "measure_seconds": self.measure_seconds,
            "search_flops": self.search_flops,
            "search_examples": self.search_examples,
            "notes": list(self.notes),
        }
        if self.products:
            result["products"] = [
                {
                    word: {"name": g.name, "before": g.before, "after": g.after}
                    for word, g in zip(p.words, (p.count, p.size), strict=True)
                }
                for p in self.products
            ]
        return result

    def __str__(self) -> str:
        lines = [
            f"stage {self.stage}: {self.parameters_before:,} -> {self.parameters_after:,} parameters in "
            f"{self.seconds:.3f} s"
        ]
        steps: dict[tuple[int, int], list[str]] = {}
        in_products = {g.name for p in self.products for g in (p.count, p.size)}
        for g in self.groups:
            if g.name in in_products:
                continue
            steps.setdefault((g.before, g.after), []).append(g.name)
        for (before, after), names in steps.items():
            lines.append(f"  width {before} -> {after}: {listed(names)}")
        products: dict[str, dict[str, None]] = {}  # queries and values may have sizes of their own
        for p in self.products:
            products.setdefault(str(p), {})[p.count.name] = None
        lines += [f"  {what}: {listed(list(own))}" for what, own in products.items()]
        if self.factors:
            low, high = min(self.factors.values()), max(self.factors.values())
            by = f"{low:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g} to {high:.4g}"
            lines.append(f"  {counted(len(self.factors), 'tensor')} rescaled by {by}")
        if any(abs(f - 1) > 1e-9 for f in self.output_factors):
            factors = ", ".join(f"{f:.6g}" for f in self.output_factors)
            lines.append(f"  factor on the outputs: {factors}")
        if self.search_examples:
            lines.append(
                f"  searched on {counted(self.search_examples, 'example')}, {self.search_flops:.3g} FLOPs"
            )
        if self.change is not None:
            lines.append(f"  outputs: {self.change}")
        if self.train_change is not None:
            lines.append(f"  in train mode: {self.train_change}")
        if self.change_with_noise is not None and self.change_with_noise != self.change:
            lines.append(f"  with noise: {self.change_with_noise}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def _as_dict(change: Verification | None) -> dict[str, Any] | None:
    return None if change is None else change.as_dict()
