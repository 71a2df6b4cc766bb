"""What a rule can state about scales: each verb makes one of the records that `graph/scales.py` lists."""

from __future__ import annotations

from collections.abc import Sequence

from growthring.graph.rules.records import Info
from growthring.graph.scales import Scales
from growthring.graph.trace import Op


class ScaleStatements:
    """States what the present operator does to the scales of activations.

    Attributes:
        op: the present operator.
        index: its number, counted over all traces of a model.
    """

    def __init__(self, scales: Scales) -> None:
        self.scales = scales
        self.index = -1
        self.op = Op("", (), {}, (), "")

    def where(self) -> str:
        """Names the present operator, for reasons."""
        return self.op.where()

    def new_scale(self) -> int:
        """A scale that nothing is known of: zeros have any."""
        return self.scales.fresh()

    def carry(self, *infos: Info) -> int:
        """One scale for all inputs and the output; returns the output's."""
        moving = [i.scale for i in infos if not i.constant]
        if len(moving) == len(infos) == 1:
            return infos[0].scale
        out = self.new_scale()
        self.scales.add("carry", tuple(i.scale for i in infos), out, where=self.where())
        return out

    def demand(self, *infos: Info) -> int:
        """Every input needs scale 1; returns the output's scale, which is 1."""
        out = self.new_scale()
        self.scales.add("demand", tuple(i.scale for i in infos), out, where=self.where())
        return out

    def need_one(self, scale: int) -> None:
        """This scale is 1; nothing is said of the output's."""
        self.scales.add("demand", (scale,), None, where=self.where())

    def multiply(self, a: Info, b: Info) -> int:
        """Scale of a product."""
        out = self.new_scale()
        self.scales.add("product", (a.scale, b.scale), out, where=self.where())
        return out

    def times_number(self, scale: int) -> int:
        """Scale after a product with a number of the model's code, which may change with a width."""
        out = self.new_scale()
        self.scales.add("scalar", (scale,), out, where=self.where(), op=self.index)
        return out

    def transform(self, x: Info, weight: Info) -> int:
        """Scale after a contraction with a weight."""
        if weight.use is None:
            return self.multiply(x, weight)
        out = self.new_scale()
        weight.use.kind = "weight"
        self.scales.add("weight", (x.scale,), out, (weight.label,), self.where())
        return out

    def gain(self, info: Info) -> int:
        """Scale of what a norm's gain multiplies: the gain's own, which is free if it is a parameter."""
        out = self.new_scale()
        if info.use is not None:
            info.use.kind = "gain"
            self.scales.add("own", (), out, (info.use.name,), self.where())
        else:
            self.scales.add("demand", (info.scale,), out, where=self.where())
        return out

    def norm_input(self, x: Info) -> None:
        """A norm takes this: it may have any scale."""
        self.scales.add("norm", (x.scale,), None, where=self.where())

    def running_statistics(self, x: Info, names: Sequence[str], eps: float) -> None:
        """The buffers hold a running mean and variance of this, and follow its scale."""
        self.scales.add("stats", (x.scale,), None, tuple(names), self.where(), eps=eps)

    def add_bias_scale(self, bias: Info, out: int) -> None:
        """A bias is added to an activation of scale `out`."""
        if bias.use is None:
            self.scales.add("carry", (bias.scale, out), None, where=self.where())
            return
        bias.use.kind = "bias"
        self.scales.add("bias", (out,), None, (bias.label,), self.where())
