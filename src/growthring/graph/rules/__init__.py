"""One rule per operator: what happens to the axes, parities and scales of its tensors.

A rule is a function `rule(walk, op)` that states facts through the `Walk` and gives every output its axes. Register
your own with `register_rule`; an operator without a rule freezes everything it touches, with the reason.
"""

from growthring.graph.rules import contraction as contraction
from growthring.graph.rules import elementwise as elementwise
from growthring.graph.rules import norms as norms
from growthring.graph.rules import reduction as reduction
from growthring.graph.rules import structure as structure
from growthring.graph.rules.walk import Info as Info
from growthring.graph.rules.walk import Walk as Walk
from growthring.graph.rules.walk import register_rule as register_rule
