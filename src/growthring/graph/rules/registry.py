"""Which rule is for which operator."""

from __future__ import annotations

from collections.abc import Callable

from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op
from growthring.graph.traits import TRAITS, Entries, Traits, spellings

Rule = Callable[[Walk, Op], None]
RULES: dict[str, Rule] = {}


def register_rule(
    *names: str,
    entries: Entries = "new",
    sizes: bool = False,
    size_at: int | None = None,
    degrees: tuple[float, ...] = (),
    reduces: bool = False,
    factor: str = "",
    modal: bool = False,
) -> Callable[[Rule], Rule]:
    """Registers an axis rule for operators, by name without overload (`"aten.relu"`, `"mylib.my_op"`) or with it.

    The rule gets the `Walk` and the `Op`; it reads `walk.info(value)`, states facts (`walk.same`,
    `walk.contract`, `walk.freeze`, …) and must call `walk.set` for every output. In-place variants
    (`aten.relu_`) share the rule.

    Args:
        names: the operators.
        entries: what becomes of the entries of its input: "same" (each stays where it is), "moved" (all are
            there, elsewhere or repeated), "some" (of them are there) or "new" (computed ones).
        sizes: whole numbers among the arguments are sizes, axes or positions, which show in the result's shape.
        size_at: the position of the argument that holds sizes, where other whole numbers are values.
        degrees: the powers with which results answer a factor on the input (a square 2, a mean 1).
        reduces: it combines entries in a way that new ones can fade into.
        factor: the name of the argument that it multiplies by.
        modal: it takes train or eval mode as an argument, and the rule holds in both.

    >>> @register_rule("mylib.swish")
    ... def swish(walk: Walk, op: Op) -> None:
    ...     (x,) = op.inputs()
    ...     walk.even(walk.info(x).axes)
    ...     walk.set(op.outputs[0], walk.info(x).axes, walk.demand(walk.info(x)))
    """
    traits = Traits(entries, sizes, size_at, degrees, reduces, factor, modal)

    def register(rule: Rule) -> Rule:
        for name in names:
            RULES[name], TRAITS[name] = rule, traits
        return rule

    return register


def find_rule(op: Op) -> Rule | None:
    """The rule for an operator, or None; one for the overload goes before one for all."""
    return next((RULES[name] for name in spellings(op.name) if name in RULES), None)
