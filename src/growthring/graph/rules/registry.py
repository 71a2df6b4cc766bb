"""Which rule is for which operator."""

from __future__ import annotations

from collections.abc import Callable

from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op

Rule = Callable[[Walk, Op], None]
RULES: dict[str, Rule] = {}


def register_rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers an axis rule for operators, by name without overload (`"aten.relu"`, `"mylib.my_op"`) or with it.

    The rule gets the `Walk` and the `Op`; it reads `walk.info(value)`, states facts (`walk.same`,
    `walk.contract`, `walk.freeze`, …) and must call `walk.set` for every output. In-place variants
    (`aten.relu_`) share the rule.

    >>> @register_rule("mylib.swish")
    ... def swish(walk: Walk, op: Op) -> None:
    ...     (x,) = op.inputs()
    ...     walk.even(walk.info(x).axes)
    ...     walk.set(op.outputs[0], walk.info(x).axes, walk.demand(walk.info(x)))
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            RULES[name] = rule
        return rule

    return register


def find_rule(op: Op) -> Rule | None:
    """The rule for an operator, or None; one for the overload goes before one for all."""
    return RULES.get(op.name) or RULES.get(op.base) or RULES.get(op.base.removesuffix("_"))
