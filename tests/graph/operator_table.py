"""Small models, one or more per operator: what must grow, what must be refused and why.

The rows are in `tables/`, a file for each file of `growthring/graph/rules/` and three for what rules make together.
"""

from tests.graph.tables import (  # noqa: F401 - each adds its rows
    attention,
    complex_numbers,
    contraction,
    einsum,
    elementwise,
    factory,
    networks,
    norms,
    parameters,
    patches,
    recurrent,
    reduction,
    reparametrised,
    selection,
    structure,
    writing,
)
from tests.graph.tables.base import ROWS as ROWS, Made as Made, Row as Row
