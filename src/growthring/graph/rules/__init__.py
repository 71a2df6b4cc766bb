"""One rule per operator: what happens to the axes, parities and scales of its tensors.

A rule is a function `rule(walk, op)` that states facts through the `Walk` and gives every output
its axes. Register your own with `register_rule`; an operator without a rule freezes everything it
touches, with the reason.
"""

from growthring.graph.rules import (
    complex_numbers as complex_numbers,
    contraction as contraction,
    einsum as einsum,
    elementwise as elementwise,
    experts as experts,
    factory as factory,
    norms as norms,
    patches as patches,
    recurrent as recurrent,
    reduction as reduction,
    reparametrised as reparametrised,
    selection as selection,
    structure as structure,
    writing as writing,
)
from growthring.graph.rules.records import Info as Info
from growthring.graph.rules.registry import Rule as Rule, register_rule as register_rule
from growthring.graph.rules.walk import Walk as Walk
from growthring.graph.trace import Op as Op, Value as Value
