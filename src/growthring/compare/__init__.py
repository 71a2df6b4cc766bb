"""Comparisons: growth methods, ablations and baselines at the same cost, over seeds."""

from growthring.compare.comparison import Comparison as Comparison
from growthring.compare.contenders import (
    DEFAULT as DEFAULT,
    KNOWN as KNOWN,
    Contender as Contender,
    parse_variant as parse_variant,
)
from growthring.compare.output import (
    manifest_of as manifest_of,
    results as results,
    write_outputs as write_outputs,
)
from growthring.compare.standings import Standing as Standing
from growthring.compare.table import format_table as format_table, notes as notes
