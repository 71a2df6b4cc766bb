"""How a rescaled weight travels: the activation scales of a traced model (method of variance transfer).

Think of each activation as multiplied by a scale s. A weight from g to h multiplied by s_h / s_g, a
bias by s_h: that is the same function as long as every operator in between passes s on. Each rule
records what its operator does:

    carry     inputs and output share one scale (ReLU, pooling, add, cat, reshape)
    demand    every input must have s = 1 (GELU, softmax, a plain constant); the output has s = 1
    product   s_out = s_a · s_b (gates, attention logits)
    weight    a contraction with a parameter: s_out = c · s_in, c free
    own       a parameter that is itself the activation (embedding, class token, norm gain): s_out = c
    bias      a parameter added to an activation: it is multiplied by s of that activation
    norm      an input of a norm: any scale, but for the norm's ε
    stats     running statistics of a BatchNorm input: mean · s, variance · s²
    result    a model output: s must be 1 (or is reported, where a rule is applied to the letter)
    scalar    a factor in the model's code that changes with a width: s_out = s_in · (new factor / old factor)^power

`growthring.core.variance` solves these records for one growth.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from growthring.core.variance import Record


@dataclass
class Scales:
    """The scale variables of a trace and the records of its operators, in order."""

    count: int = 0
    records: list[Record] = field(default_factory=list)

    def fresh(self) -> int:
        """A new scale variable."""
        self.count += 1
        return self.count - 1

    def add(
        self,
        kind: str,
        inputs: tuple[int, ...],
        output: int | None = None,
        names: tuple[str, ...] = (),
        where: str = "",
        eps: float = 0.0,
        op: int = -1,
        power: float = 1.0,
    ) -> None:
        """Appends a record (see the module's list of kinds)."""
        self.records.append(Record(kind, inputs, output, names, where, eps, op, power))
